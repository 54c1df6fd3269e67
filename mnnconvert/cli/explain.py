"""`mnnconvert explain REFERENCE`: what an error means and what to do about it."""

from __future__ import annotations

from mnnconvert.cli.output import Output
from mnnconvert.cli.parser import Arguments, Syntax
from mnnconvert.errors import UsageError
from mnnconvert.option_types import did_you_mean
from mnnconvert.options import COMMON
from mnnconvert.references import CATALOGUE, Reference

SYNTAX = Syntax(
    usage="mnnconvert explain [REFERENCE]",
    summary="Explain the name in brackets of an error or note; without one, list all.",
    options=COMMON,
    words=("REFERENCE",),
    examples=("mnnconvert explain unsupported-op",),
)


def run(arguments: Arguments, out: Output) -> int:
    word = arguments.word(0)
    if word is None:
        out.data({name: _record(reference) for name, reference in CATALOGUE.items()})
        out.table(("Reference", "Meaning"), [(name, reference.meaning) for name, reference in CATALOGUE.items()])
        return 0
    reference = _find(word)
    out.data(_record(reference))
    out.result(reference.name, "bold")
    out.result(f"  {reference.meaning}")
    out.result(f"  What to do: {reference.remedy}")
    return 0


def _find(word: str) -> Reference:
    """The reference, also as pasted from a message: `error[unsupported-op]:`."""
    name = word.lower().removeprefix("error").removeprefix("note").strip("[]: ")
    if name not in CATALOGUE:
        hint = did_you_mean(name, CATALOGUE) or "mnnconvert explain lists all."
        raise UsageError.of("unknown-reference", f"There is no reference {word!r}.", hint=hint)
    return CATALOGUE[name]


def _record(reference: Reference) -> dict[str, str]:
    return {"reference": reference.name, "meaning": reference.meaning, "remedy": reference.remedy}
