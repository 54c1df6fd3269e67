"""`mnnconvert show FILE`: the weights of an MNN model, layer by layer."""

from __future__ import annotations

from fnmatch import fnmatchcase

from mnnconvert.cli.output import Output
from mnnconvert.cli.parser import Arguments, Syntax
from mnnconvert.cli.summary import Record, print_weights, quantization
from mnnconvert.errors import UsageError
from mnnconvert.option_types import Option, did_you_mean
from mnnconvert.options import COMMON

SYNTAX = Syntax(
    usage="mnnconvert show FILE [--layer NAME]...",
    summary="Show how the weights of an MNN model are stored: bits, blocks, sizes and ranges of every layer.",
    options=(
        Option("--layer", "layer", "texts", "a layer by name or pattern (repeatable)", default=(), metavar="NAME"),
        *COMMON,
    ),
    words=("FILE",),
    required=1,
    examples=("mnnconvert show m.mnn", "mnnconvert show m.mnn --layer 'encoder.*'"),
)


def run(arguments: Arguments, out: Output) -> int:
    from mnnconvert import api

    weights = list(api.info(arguments.words[0]).to_dict()["weights"])
    chosen = choose(weights, arguments.texts("layer"))
    out.data({"file": arguments.words[0], "weights": chosen})
    if chosen:
        print_weights(chosen, out, everything=True)
        out.note(quantization(chosen))
    else:
        out.note("This model has no weights.")
    return 0


def choose(weights: list[Record], patterns: tuple[str, ...]) -> list[Record]:
    """The layers that match any pattern, all when there is none; a pattern that matches nothing is a UsageError."""
    for pattern in patterns:
        if not any(fnmatchcase(weight["name"], pattern) for weight in weights):
            hint = did_you_mean(pattern, [weight["name"] for weight in weights]) or "mnnconvert show FILE lists all."
            raise UsageError.of("unknown-layer", f"No layer with weights matches {pattern!r}.", hint=hint)
    return [w for w in weights if not patterns or any(fnmatchcase(w["name"], p) for p in patterns)]
