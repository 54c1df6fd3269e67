"""`mnnconvert show FILE`: what is inside a model, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnnconvert.cli.output import Output, size
from mnnconvert.cli.parser import Arguments, Syntax
from mnnconvert.cli.summary import print_values, print_weights, quantization, shape
from mnnconvert.errors import UsageError
from mnnconvert.option_types import Option, did_you_mean
from mnnconvert.options import COMMON, OPTIONS

if TYPE_CHECKING:
    from mnnconvert.layers import Histogram, Layer

BAR = 40  # characters of the highest bar of a histogram
MERGED = 2  # bins that make one line

SOURCE = tuple(option for option in OPTIONS if option.field in ("framework", "prototxt", "signature"))

SYNTAX = Syntax(
    usage="mnnconvert show FILE [--layer NAME]... [--html FILE]",
    summary="Show what is inside a model: operators, layers, and how the weights are stored and spread.",
    options=(
        Option("--layer", "layer", "texts", "all about a layer, by name or pattern (repeatable)", default=(),
               metavar="NAME"),
        Option("--html", "html", "path", "write a page with sizes, graph and histograms", metavar="FILE"),
        *SOURCE,
        *COMMON,
    ),
    words=("FILE",),
    required=1,
    examples=(
        "mnnconvert show m.mnn", "mnnconvert show m.mnn --layer 'encoder.*'",
    ),
)  # fmt: skip


def run(arguments: Arguments, out: Output) -> int:
    from mnnconvert.describe import look_into
    from mnnconvert.frameworks import TOLD
    from mnnconvert.layers import layers_of, totals

    path = Path(arguments.words[0])
    framework = arguments.text("framework")
    chosen_by = {name: text for name in TOLD if (text := arguments.text(name)) is not None}
    found, graph = look_into(path, framework, chosen_by)
    info, layers = found.to_dict(), layers_of(graph)
    patterns = arguments.texts("layer")
    chosen = choose(layers, patterns)
    names = {layer.name for layer in chosen}
    weights = [w for w in info["weights"] if w["name"] in names]
    spread = {layer.name: _histogram(layer) for layer in chosen if layer.weight is not None} if patterns else {}
    sums = totals(layers)
    page = arguments.text("html")
    if page is not None:
        _write_page(path, Path(page), framework, chosen_by)
    out.data({
        "ok": True, "exit_code": 0, "file": str(path), "html": page,
        **{name: info[name] for name in ("framework", "inputs", "outputs", "file_bytes", "external_bytes")},
        "totals": sums, "weights": weights, "layers": [_record(layer, spread) for layer in chosen],
    })  # fmt: skip
    if patterns:
        for layer in chosen:
            _print_layer(layer, spread.get(layer.name), out)
    else:
        _print_model(path, info, layers, sums, out)
    if page is not None:
        out.note(f"wrote {page}")
    return 0


def _write_page(path: Path, target: Path, framework: str | None, chosen: dict[str, str]) -> None:
    from mnnconvert.report import write_page
    from mnnconvert.report.content import of_model
    from mnnconvert.schema.files import refuse_same

    refuse_same(path, target)
    write_page(of_model(path, framework, chosen), target)


def _histogram(layer: Layer) -> Histogram:
    from mnnconvert.layers import histogram, sample

    assert layer.weight is not None  # asked for layers that have one
    return histogram(sample(layer.weight.tensor), layer.weight.elements)


def _record(layer: Layer, spread: dict[str, Histogram]) -> dict[str, Any]:
    found = spread.get(layer.name)
    return layer.to_dict() | ({} if found is None else {"histogram": found.to_dict()})


def choose(layers: Sequence[Layer], patterns: Sequence[str]) -> list[Layer]:
    """The layers that match any pattern, all when there is none; a pattern that matches nothing is a UsageError."""
    for pattern in patterns:
        if not any(_fits(layer, pattern) for layer in layers):
            hint = did_you_mean(pattern, [layer.name for layer in layers]) or "mnnconvert show FILE lists all."
            raise UsageError.of("unknown-layer", f"No layer matches {pattern!r}.", hint=hint)
    return [layer for layer in layers if not patterns or any(_fits(layer, p) for p in patterns)]


def _fits(layer: Layer, pattern: str) -> bool:
    """By exact name too, as names may hold brackets."""
    return layer.name == pattern or fnmatchcase(layer.name, pattern)


def _print_model(
    path: Path, info: dict[str, Any], layers: Sequence[Layer], sums: Sequence[dict[str, Any]], out: Output
) -> None:
    parameters, held = (sum(row[key] for row in sums) for key in ("parameters", "bytes"))
    whole = size(info["file_bytes"] + info["external_bytes"])
    out.result(f"{path}: {whole}, {len(layers)} layers, {parameters:,} parameters, from {info['framework']}", "bold")
    print_values(info, out)
    rows = [(r["op"], r["count"], f"{r['parameters']:,}", size(r["bytes"]), f"{r['bytes'] / held:.1%}" if held else "-")
            for r in sums]  # fmt: skip
    out.table(("Operator", ">Count", ">Parameters", ">Size", ">Share"), rows, title="\nOperators")
    if not info["weights"]:
        out.note("This model has no weights.")
        return
    out.result("")
    print_weights(info["weights"], out, everything=True)
    out.note(quantization(info["weights"]))


def _print_layer(layer: Layer, spread: Histogram | None, out: Output) -> None:
    """All that is known about one layer, and the histogram of its weight."""
    out.result(layer.name, "bold")
    weight = layer.weight
    facts = {
        "computes": layer.text,
        "inputs": ", ".join(layer.inputs) or "none",
        "outputs": f"{', '.join(layer.outputs)}: {layer.dtype} {shape(layer.shape)}",
        "source": ", ".join(name for name in layer.origin if name != layer.name),
        "constants": f"{layer.parameters:,} numbers in {size(layer.bytes)}" if layer.bytes else "",
        "weight": "" if weight is None else f"{shape(weight.shape)}, {weight.stored}, {size(weight.bytes)}",
        "scales": "" if weight is None or weight.scales is None else "{:.4g} to {:.4g}".format(*weight.scales),
    }
    for name, value in facts.items():
        if value:
            out.result(f"  {name:10}{value}")
    if spread is not None:
        out.result(f"  {'numbers':10}mean {spread.mean:.4g}, deviation {spread.deviation:.4g}, {_odd(spread)}")
        for line in bars(spread):
            out.detail(f"  {line}")
    out.detail("")


def _odd(spread: Histogram) -> str:
    parts = [f"{spread.zeros:,} zeros"]
    parts += [f"{spread.odd:,} NaN or infinite"] if spread.odd else []
    parts += [f"from {spread.counted:,} of {spread.elements:,}"] if spread.counted < spread.elements else []
    return ", ".join(parts)


def bars(spread: Histogram) -> list[str]:
    """The histogram as lines: where each begins, a bar, and the count."""
    counts = [sum(spread.counts[i : i + MERGED]) for i in range(0, len(spread.counts), MERGED)]
    most, width = max(counts) or 1, (spread.high - spread.low) / len(counts)
    return [f"{spread.low + i * width:>10.4g}  {'#' * round(BAR * count / most):{BAR}}  {count:,}"
            for i, count in enumerate(counts)]  # fmt: skip
