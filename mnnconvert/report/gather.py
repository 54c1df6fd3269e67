"""Reports on what was done: a conversion, or a verification of two files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mnnconvert.conversion import ConversionReport, prepare_source
from mnnconvert.errors import ConversionError
from mnnconvert.options import ConversionOptions
from mnnconvert.report.content import Content, of_model, with_errors, with_source
from mnnconvert.verification import ANY_ERROR, Request, verify_files
from mnnconvert.verify.verification import VerificationResult

UNTOLD = ("source-engine-failed", "source-engine-missing", "run-failed")
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
        source, target, inputs=options.inputs, tolerance=tolerance, seed=options.seed, runs=1, layers_if_told=True,
        options=options, chosen=options.chosen,
    ))  # fmt: skip


def of_verification(request: Request, result: VerificationResult) -> Content:
    """The report of a verification, with its layers where they were compared.

    The passes shown are those of a conversion with the options of the request done again. Where these do not convert
    the source, the notes say so, and the page has neither passes nor weights before.
    """
    content = replace(of_model(request.mnn), proof=result, source=str(request.source))
    given = request.options
    options = given or ConversionOptions.from_keywords(model_file=str(request.source), **request.chosen)
    try:
        before, done = prepare_source(options)
    except ConversionError as error:
        content = replace(content, notes=tuple(error.diagnostics))
    else:
        content = with_source(content, str(request.source), before, done.nodes_before, done.source_bytes)
        content = replace(content, passes=tuple(done.passes), notes=tuple(done.diagnostics))
    return content if result.layers is None else with_errors(content, result.layers)


def _with_layers(content: Content, request: Request) -> Content:
    """The content with errors of layers where the engine tells the values inside; with a note where a run fails."""
    try:
        layers = verify_files(request).layers
    except ConversionError as error:
        if any(d.reference not in UNTOLD for d in error.diagnostics):
            raise
        return replace(content, notes=(*content.notes, *error.diagnostics))
    return content if layers is None else with_errors(content, layers)
