"""Reports on what was done: a conversion, or a verification of two files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from mnnconvert.conversion import ConversionReport, prepare_source
from mnnconvert.errors import ConversionError
from mnnconvert.options import ConversionOptions
from mnnconvert.report.content import Content, of_model, with_errors, with_source
from mnnconvert.verification import ANY_ERROR, Request, verify_files
from mnnconvert.verify.layers import LayerwiseResult
from mnnconvert.verify.verification import VerificationResult

UNTOLD = ("no-layer-values", "source-engine-failed", "source-engine-missing", "run-failed")
"""Why the errors of layers may stay unknown while all else can be told."""


def of_conversion(options: ConversionOptions, report: ConversionReport) -> Content:
    """The report of a conversion that wrote a file; layers are compared where the conversion was proved."""
    source, target = Path(report.source), Path(report.target or "")
    before, _ = prepare_source(replace(options, dump_pass=False, debug=False))
    content = with_source(of_model(target), str(source), before, report.nodes_before, report.source_bytes)
    content = replace(
        content, proof=report.verification, quantized=report.quantized, passes=tuple(report.passes),
        notes=tuple(report.diagnostics),
    )  # fmt: skip
    if report.verification is None:
        return content
    tolerance = options.tolerance if report.quantized is None else ANY_ERROR
    return _with_layers(content, Request(
        source, target, inputs=options.inputs, tolerance=tolerance, seed=options.seed, runs=1, options=options,
        chosen=options.chosen,
    ))  # fmt: skip


def of_verification(
    source: Path, mnn: Path, result: VerificationResult, options: ConversionOptions, inputs: Any, seed: int
) -> Content:
    """The report of a verification. The passes shown are those of a conversion with `options` done again.

    Where these options do not convert the source, the notes say so, and the page has neither passes nor weights before.
    """
    content = replace(of_model(mnn), proof=result, source=str(source))
    try:
        before, done = prepare_source(options)
    except ConversionError as error:
        content = replace(content, notes=tuple(error.diagnostics))
    else:
        content = with_source(content, str(source), before, done.nodes_before, done.source_bytes)
        content = replace(content, passes=tuple(done.passes), notes=tuple(done.diagnostics))
    if result.layers is not None:
        return with_errors(content, result.layers)
    return _with_layers(content, Request(
        source, mnn, inputs=inputs, tolerance=result.tolerance.relative, seed=seed, runs=1, options=options,
        chosen=options.chosen,
    ))  # fmt: skip


def _with_layers(content: Content, request: Request) -> Content:
    """The content with errors of layers; with a note where engine or model do not tell the values inside."""
    try:
        layers = _layers(request)
    except ConversionError as error:
        if any(d.reference not in UNTOLD for d in error.diagnostics):
            raise
        return replace(content, notes=(*content.notes, *error.diagnostics))
    return content if layers is None else with_errors(content, layers)


def _layers(request: Request) -> LayerwiseResult | None:
    return verify_files(replace(request, per_layer=True)).layers
