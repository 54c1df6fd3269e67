"""The IDL parser, and that the generated classes are those of `mnn.fbs`."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from mnnconvert.schema import generate, tables
from mnnconvert.schema.base import Field
from mnnconvert.schema.idl import Enum, Union, parse

TEXT = """
// A comment.
namespace Some.Where;
enum Color : byte { RED = 0, GREEN = -2, }
table Leaf {}
union Any { Leaf = 1, }
table Root {
  size: int = 3 (id: 0);   // trailing
  color: Color = GREEN (id: 1, key);
  any: Any (id: 3);
  values: [float] (id: 4);
  flag: bool = true (id: 5);
  ratio: float = 0.5 (id: 6);
}
root_type Root;
"""


def test_parses_the_subset():
    schema = parse(TEXT)
    assert schema.root == "Root"
    assert schema.enums == {"Color": Enum("Color", "byte", {"RED": 0, "GREEN": -2})}
    assert schema.unions == {"Any": Union("Any", {"Leaf": 1})}
    assert schema.tables["Root"].fields == (
        Field("size", 0, "int", 3),
        Field("color", 1, "Color", -2),
        Field("any", 3, "Any", None),
        Field("values", 4, "[float]", None),
        Field("flag", 5, "bool", True),
        Field("ratio", 6, "float", 0.5),
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("id: 4", "id: 5", "the ids of table Root"),
        ("any: Any (id: 3)", "any: Any (id: 2)", "the ids of table Root"),
        ("(id: 0)", "", "field size has no id"),
        ("[float]", "[flot]", "undefined types: flot"),
        (": byte", ": text", "line 4: enum Color cannot be stored"),
        ("table Leaf", "struct Leaf", "line 5: unknown declaration 'struct'"),
        ("GREEN = -2,", "GREEN = -2", "expected ','"),
    ],
)
def test_names_what_is_wrong(old, new, message):
    with pytest.raises(ValueError, match=message):
        parse(TEXT.replace(old, new, 1))


def test_generated_module_is_current(capsys):
    assert generate.main(["--check"]) == 0
    schema = parse(generate.SOURCE.read_text())
    assert (len(schema.enums), len(schema.unions), len(schema.tables)) == (30, 1, 123)


def test_check_notices_a_stale_module(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(generate, "TARGET", tmp_path / "tables.py")
    assert generate.main(["--check"]) == 1
    assert "is stale" in capsys.readouterr().err
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0


def test_a_table_is_a_plain_object():
    conv = tables.Convolution2DCommon(kernelX=3, padMode=tables.PadMode.SAME)
    assert (conv.kernelX, conv.strideX, conv.padMode) == (3, 1, tables.PadMode.SAME)
    assert conv != tables.Convolution2DCommon(kernelX=3)
    assert repr(conv) == "Convolution2DCommon(kernelX=3, padMode=<PadMode.SAME: 2>)"
    with pytest.raises(TypeError, match="has no field kernelZ"):
        tables.Convolution2DCommon(kernelZ=3)
    with pytest.raises(AttributeError):
        conv.kernelZ = 3


def test_equality_is_that_of_the_file():
    nan = np.array([np.nan], np.float32)
    assert tables.Scale(scaleData=nan) == tables.Scale(scaleData=nan.copy())
    assert tables.Scale(scaleData=nan) != tables.Scale(scaleData=None)
    assert tables.ELU(alpha=0.1) == tables.ELU(alpha=float(np.float32(0.1)))
    assert tables.ELU(alpha=0.1) != tables.ELU(alpha=0.2)
    assert tables.ELU() != tables.Selu()


def test_importing_the_tables_does_not_import_numpy():
    code = "import sys, mnnconvert.schema.tables; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
