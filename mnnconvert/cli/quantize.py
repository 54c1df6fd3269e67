"""`mnnconvert quantize IN.mnn OUT.mnn CONFIG.json`: the int8 form of a float model, from samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mnnconvert.cli.output import Output, size
from mnnconvert.cli.parser import Arguments, Syntax
from mnnconvert.option_types import Option
from mnnconvert.options import COMMON

if TYPE_CHECKING:
    from mnnconvert.calibration.report import Agreement, LayerReport, QuantizationReport
    from mnnconvert.ir.types import Steps

SYNTAX = Syntax(
    usage="mnnconvert quantize IN.mnn OUT.mnn CONFIG.json [--resume]",
    summary="Write the int8 form of a float model, with ranges observed on samples. The configuration file is that of\n"
    "MNN's mnnquant, and has more keys (docs/int8.md).",
    options=(
        Option("--resume", "resume", "flag", "keep what was observed, and go on from there", default=False),
        *COMMON,
    ),
    words=("IN.mnn", "OUT.mnn", "CONFIG.json"),
    required=3,
    examples=("mnnconvert quantize m.mnn m.int8.mnn calibration.json",),
)


def run(arguments: Arguments, out: Output) -> int:
    from mnnconvert import api

    source, target, config = arguments.words
    report = api.quantize(source, target, config, resume=bool(arguments["resume"]), progress=out.progress)
    out.data({"ok": True, "exit_code": 0, **report.to_dict()})
    if not out.quiet:
        show_layers(report, out)
    for name, reason in report.skipped:
        out.note(f"{name} stays in floats: {reason}")
    for name, agreement in report.outputs.items():
        out.result(f"{name}: {in_words(agreement)}, on {report.verified} of {report.samples} samples")
    for name in report.poor:
        out.warning(
            f"{name} has less than the {report.min_sqnr:g} dB of min_sqnr: give more varied samples, or try the method "
            "MSE, adaptive rounding, equalize or smooth"
        )
    sizes = f"{size(report.source_bytes)} -> {size(report.target_bytes)}"
    out.result(f"wrote {target}: {len(report.layers)} layers in int8, {sizes}, {report.seconds:.1f} s")
    return 0


def show_layers(report: QuantizationReport, out: Output) -> None:
    """A row for each layer."""
    if report.pairs:
        out.note(f"channels of {report.pairs} pairs of layers were rescaled")
    columns = ("Layer", "Weights", ">Weight dB", ">Result dB", ">Cosine", ">Clipped %", "Operand", "Result")
    out.table(columns, [_row(layer) for layer in report.layers], f"{report.method} on {report.samples} samples")


def _row(layer: LayerReport) -> tuple[object, ...]:
    agreement = layer.agreement
    numbers = layer.weight_sqnr, agreement.sqnr, agreement.cosine, 100 * layer.clipped
    return (layer.name, layer.weight_method, *numbers, _steps(layer.input), _steps(layer.output))


def _steps(steps: Steps) -> str:
    return f"{steps.scale:.4g}" + (f" from {steps.zero:g}" if steps.zero else "")


def in_words(agreement: Agreement) -> str:
    """For example "31.2 dB, cosine 0.99963, top-1 as in float 98.4 %"."""
    text = f"{agreement.sqnr:.1f} dB, cosine {agreement.cosine:.5f}"
    return text if agreement.top1 is None else f"{text}, top-1 as in float {agreement.top1:.1%}"
