"""The table of operators as a whole."""

from pathlib import Path

import tflite
from tflite_cases import T, one, refusal

from mnnconvert import api
from mnnconvert.frontends.tflite import rules  # noqa: F401  (registers the rules)
from mnnconvert.frontends.tflite.registry import RULES

FOLDER = Path(__file__).parent
COMPOSED = ("UNSORTED_SEGMENT_", "NON_MAX_SUPPRESSION_V")  # names that tests put together from parts
STRINGS_AND_TABLES = {
    "EMBEDDING_LOOKUP_SPARSE", "HASHTABLE", "HASHTABLE_FIND", "HASHTABLE_IMPORT", "HASHTABLE_LOOKUP", "HASHTABLE_SIZE",
    "LSH_PROJECTION", "SKIP_GRAM",
}  # fmt: skip
"""What works on strings and on tables of them, which MNN does not have."""


def test_every_rule_has_a_case():
    text = "".join(path.read_text(encoding="utf-8") for path in FOLDER.glob("test_*.py"))
    spelled = {name: (name, name.removeprefix("STABLEHLO_")) for name, _ in RULES}
    missing = [name for name, ways in spelled.items() if all(f'"{way}"' not in text for way in ways)]
    assert [name for name in missing if not name.startswith(COMPOSED)] == []


def test_every_rule_is_of_an_operator_that_there_is():
    known = vars(tflite.BuiltinOperator)
    assert [name for name, custom in RULES if not custom and name not in known] == []
    assert [name for name, custom in RULES if custom and name in known] == []


def test_the_table_lists_every_rule():
    listed = api.supported_ops("TFLITE")
    assert len(listed) == len(RULES) >= 180
    assert {op["name"] for op in listed} == {name for name, _ in RULES}


def test_what_has_no_equal_is_refused_by_name():
    for name in STRINGS_AND_TABLES:
        (problem,) = refusal(one(name, [T((2,))], [T()]))
        assert problem.reference == "unsupported-op" and name in problem.message
