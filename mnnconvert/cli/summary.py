"""What a conversion did and what a model holds, as text for people, from the same data that `--json` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from mnnconvert.cli.output import Output, size
from mnnconvert.errors import Diagnostic
from mnnconvert.options import ConversionOptions

MOST_ROWS = 40
UNQUANTIZED = ("", "float32", "fp32", "float")

Record = Mapping[str, Any]


def print_conversion(report: Record, verification: list[str], options: ConversionOptions, out: Output) -> None:
    """Source, passes, weights, sizes, notes and verdict of a ConversionReport given as a dictionary.

    `verification` holds the lines of its verdict, empty when the file was not compared with its source.
    """
    out.detail(_headline(report, options), "bold")
    _print_passes(report["passes"], options, out)
    _print_layers(report["layers"], options, out)
    out.detail("")
    if not options.plan:
        out.detail(f"Size      {sizes(report)}")
    if report["layers"]:
        out.detail(f"{'Size' if options.plan else '':10}{weight_sizes(report)}")
    for note in report["diagnostics"]:
        out.diagnostic(Diagnostic(**note), label="note", style="yellow") if not out.quiet else None
    if report.get("quantized") is not None and verification:
        verification = [f"the float graph: {verification[0]}", *verification[1:]]
    _print_verdict(verification, options, out)
    _print_quantized(report.get("quantized"), out)
    out.detail("Plan only: nothing was written." if options.plan else f"Wrote     {report['target']}", "bold")
    if options.html is not None:
        out.detail(f"Report    {options.html}")
    out.detail(f"Took      {report['seconds']:.2f} s")


def sizes(report: Record) -> str:
    """`4.1 MB -> 1.2 MB (29 %)`, with the external weight file counted in and named."""
    before, external = report["source_bytes"], report["external_bytes"]
    after = report["target_bytes"] + external
    text = f"{size(before)} -> {size(after)}"
    if before:
        text += f" ({after / before:.0%} of the source)"
    return text + (f", of which {size(external)} in the external weight file" if external else "")


def weight_sizes(report: Record) -> str:
    """What the weights came, or will come, to; a weight that several layers share counts once."""
    before, after = report["weights"]["bytes_before"], report["weights"]["bytes_after"]
    share = f" ({after / before:.0%})" if before else ""
    return f"weights {size(before)} -> {size(after)}{share}"


def _headline(report: Record, options: ConversionOptions) -> str:
    target = "plan" if options.plan else report["target"]
    nodes = f"{report['nodes_before']} nodes -> {report['nodes_after']} operators"
    return f"{report['source']} ({report['framework']}) -> {target}: {nodes}"


def _print_passes(passes: Sequence[Record], options: ConversionOptions, out: Output) -> None:
    shown = [p for p in passes if p["changes"] or options.dump_pass or options.debug]
    if out.quiet or not shown:
        return
    out.detail("")
    rows = [(p["name"], p["changes"], f"{p['seconds'] * 1000:.1f}") for p in shown]
    out.table(("Pass", ">Changes", ">ms"), rows)


LAYER_COLUMNS = (
    ("Layer", lambda x: x["name"]),
    ("Operator", lambda x: x["op"]),
    ("Stored as", lambda x: stored_as(x)),
    (">Before", lambda x: size(x["bytes_before"])),
    (">After", lambda x: size(x["bytes_after"])),
)
MEASURES = ((">Error", "error"), (">Expected", "predicted"), (">On data", "weighted_error"), (">SQNR dB", "sqnr"))


def _print_layers(layers: Sequence[Record], options: ConversionOptions, out: Output) -> None:
    """Every layer with weights once any of them was re-encoded: stored how or left why, at what cost in error."""
    if out.quiet or all(layer["precision"] in UNQUANTIZED for layer in layers):
        return
    shown = layers if options.debug else layers[:MOST_ROWS]
    measures = [(title, key) for title, key in MEASURES if any(x.get(key) is not None for x in layers)]
    rows = [(*(read(x) for _, read in LAYER_COLUMNS), *(x.get(key) for _, key in measures)) for x in shown]
    out.detail("")
    out.table([title for title, _ in (*LAYER_COLUMNS, *measures)], rows)
    _print_rest(layers[len(shown) :], out)
    _print_layer_notes(layers, out)


def _print_layer_notes(layers: Sequence[Record], out: Output) -> None:
    """What the plan or the calibration says about single layers, equal words once."""
    names: dict[str, list[str]] = {}
    for layer in layers:
        for text in layer.get("notes", ()):
            names.setdefault(text, []).append(layer["name"])
    for text, of in names.items():
        more = f" and {len(of) - 1} more" if len(of) > 1 else ""
        out.detail(f"  {of[0]}{more}: {text}")


def stored_as(layer: Record) -> str:
    """`4 bit, block 64, hqq`: what a layer's weights became and by which method, or why they stayed as they were."""
    parts = [layer["precision"]]
    if layer["block"]:
        parts.append(f"block {layer['block']}")
    if layer.get("symmetric"):
        parts.append("symmetric")
    if layer["method"]:
        parts.append(layer["method"])
    reason = f" ({layer['reason']})" if layer.get("reason") else ""
    return ", ".join(parts) + reason


def _print_rest(rest: Sequence[Record], out: Output) -> None:
    if rest:
        kinds = Counter(stored_as(layer) for layer in rest)
        listed = "; ".join(f"{count} x {kind}" for kind, count in kinds.most_common(4))
        out.detail(f"... and {len(rest)} more ({listed}); --debug lists all.")


def _print_verdict(verification: list[str], options: ConversionOptions, out: Output) -> None:
    if verification:
        first, *more = verification
        out.detail(f"Verified  {first}", "green")
        for line in more:
            out.detail(f"          {line}")
    elif not options.plan:
        reason = "as --verify never asks" if options.verify == "never" else "the notes say why"
        out.detail(f"Verified  no: the file was not compared with its source ({reason}).", "yellow")


def _print_quantized(quantized: Record | None, out: Output) -> None:
    """What the compressed weights do to each output: the float graph was proved, this is the price."""
    if quantized is None or out.quiet:
        return
    rows = [
        (f"{number}", o["name"], o["cosine"], o["sqnr"], o["max_rel"], o["top1"])
        for number, run in enumerate(quantized["runs"], 1)
        for o in (
            {"name": each["name"], **(each["measured"] or {})}
            for each in (run["comparison"] or {"outputs": []})["outputs"]
        )
        if "cosine" in o
    ]
    out.table(
        ("Run", "Output", ">Cosine", ">SQNR dB", ">Max error / largest", ">Top-1"),
        rows,
        title="\nCompressed weights against the source",
    )


def print_info(info: Record, path: str, out: Output, *, everything: bool) -> None:
    """Inputs, outputs, origin, sizes, operators and weights of a ModelInfo given as a dictionary."""
    out.result(path, "bold")
    facts = {"version": info["version"], "converted from": info["framework"], **info["metadata"]}
    facts["size"] = size(info["file_bytes"])
    if info["external_bytes"]:
        facts["external weights"] = size(info["external_bytes"])
    for name, value in facts.items():
        out.result(f"  {name}: {value if value not in (None, '') else '-'}")
    print_values(info, out)
    operators = sorted(info["op_counts"].items(), key=lambda item: (-item[1], item[0]))
    out.table(("Operator", ">Count"), operators, title=f"\nOperators ({sum(info['op_counts'].values())})")
    if info["weights"]:
        out.result(f"\n{quantization(info['weights'])}", "bold")
        print_weights(info["weights"], out, everything=everything)


def print_values(info: Record, out: Output) -> None:
    """The inputs and outputs of a ModelInfo given as a dictionary."""
    values = [(side, v["name"], v["dtype"], shape(v["shape"]), v["format"]) for side, v in _values(info)]
    out.table(("", "Name", "Type", "Shape", "Layout"), values, title="\nInputs and outputs")


def _values(info: Record) -> list[tuple[str, Record]]:
    return [*(("in", value) for value in info["inputs"]), *(("out", value) for value in info["outputs"])]


def shape(sizes: Sequence[object] | None) -> str:
    """`1x3x?x224`: open sizes by their name, or a question mark."""
    if sizes is None:
        return "any"
    return "x".join("?" if s in (None, -1) else str(s) for s in sizes) or "scalar"


def quantization(weights: Sequence[Record]) -> str:
    """One line on all weights, such as `Weights: 12 in 4 bits, 2 in 32 bits; 1.2 MB`."""
    counts = Counter(weight["bits"] for weight in weights)
    listed = ", ".join(f"{count} in {bits} bits" for bits, count in sorted(counts.items()))
    return f"Weights: {listed}; {size(sum(weight['bytes'] for weight in weights))}"


def print_weights(weights: Sequence[Record], out: Output, *, everything: bool) -> None:
    """The weights table of `--info` and `show`."""
    shown = weights if everything else weights[:MOST_ROWS]
    rows = [(w["name"], w["op"], w["bits"], w["block"] or None, _scheme(w), size(w["bytes"]), _range(w)) for w in shown]
    out.table(("Layer", "Operator", ">Bits", ">Block", "Scheme", ">Size", "Range"), rows)
    if len(weights) > len(shown):
        out.result(f"... and {len(weights) - len(shown)} more; --debug lists all.")


def _scheme(weight: Record) -> str | None:
    if weight["bits"] > 8 or weight["symmetric"] is None:
        return None
    scheme = "symmetric" if weight["symmetric"] else "asymmetric"
    return f"{scheme}, int8" if weight.get("computes") == "int8" else scheme


def _range(weight: Record) -> str | None:
    if weight["minimum"] is None or weight["maximum"] is None:
        return None
    return f"[{weight['minimum']:.4g}, {weight['maximum']:.4g}]"
