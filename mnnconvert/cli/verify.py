"""`mnnconvert verify SRC MNN`: does the converted file give the answers of its source, and if not, from where on?"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from mnnconvert.cli.output import Output
from mnnconvert.cli.parser import Arguments, Syntax
from mnnconvert.cli.summary import shape
from mnnconvert.option_types import Option
from mnnconvert.options import COMMON, OPTIONS, ConversionOptions

if TYPE_CHECKING:
    from mnnconvert.verify.layers import LayerReport, LayerwiseResult
    from mnnconvert.verify.verification import VerificationResult

ACCURACY_MISSED = 3
SOURCE, LAYERS, REPORTS = "Inputs and bounds", "Where it goes wrong", "Reports"
AGAIN = ("framework", "prototxt", "signature", "input_value", "optimize_level", "disable_pass", "transformer_fuse",
         "use_gelu_approximation", "convert_matmul_to_conv")  # fmt: skip
"""Options of the conversion that a bisection, which does it again, has to know."""
CONVERSION = tuple(option for option in OPTIONS if option.field in AGAIN)

SYNTAX = Syntax(
    usage="mnnconvert verify SRC MNN [--per-layer] [--bisect] [--inputs PATH] [--gates FILE.toml] [--engine NAME]",
    summary="Run source and converted model on the same inputs and compare all outputs; exit code 3 on a miss.",
    options=(
        Option(
            "--inputs", "inputs", "path",
            "an .npz or .npy file, a folder of these or of recorded cases, or a .json that describes images; "
            "made up otherwise",
            SOURCE, metavar="PATH",
        ),
        Option("--input-shape", "input_shape", "shapes", "sizes of one made-up input (repeatable)", SOURCE, {},
               metavar="NAME:SIZExSIZE"),
        Option("--runs", "runs", "int", "how many made-up inputs; open sizes alternate", SOURCE, low=1, high=1000,
               metavar="N"),
        Option("--seed", "seed", "int", "seed of made-up inputs", SOURCE, 0, low=0, metavar="N"),
        Option("--gates", "gates", "path", "bounds per metric and output, layer or file", SOURCE, metavar="FILE.toml"),
        Option("--tolerance", "tolerance", "float",
               f"largest accepted relative difference: {ConversionOptions.tolerance:g}, or with --gates none", SOURCE,
               low=0, metavar="X"),
        Option("--engine", "engine", "text", "what runs the MNN file: ours, opencl, or mnn if installed", SOURCE,
               metavar="NAME"),
        Option("--per-layer", "per_layer", "flag", "compare all layers and name the first bad one", LAYERS, False),
        Option("--bisect", "bisect", "flag", "convert again and name the pass or weight that changes the answer",
               LAYERS, False),
        Option("--repro", "repro", "path", "write the first bad layer, its inputs and both outputs", LAYERS,
               metavar="DIR"),
        Option("--junit", "junit", "path", "write the checks as JUnit XML", REPORTS, metavar="FILE.xml"),
        Option("--sarif", "sarif", "path", "write what failed as SARIF 2.1.0", REPORTS, metavar="FILE.sarif"),
        Option("--html", "html", "path", "write a page: verdict, errors and sizes of layers, graph, weights", REPORTS,
               metavar="FILE"),
        *CONVERSION,
        *COMMON,
    ),
    words=("SRC", "MNN"),
    required=2,
    examples=(
        "mnnconvert verify m.onnx m.mnn",
        "mnnconvert verify m.onnx m.mnn --per-layer --bisect --repro layer",
        "mnnconvert verify m.onnx m.mnn --engine mnn --gates gates.toml --junit report.xml",
    ),
)  # fmt: skip


def run(arguments: Arguments, out: Output) -> int:
    from mnnconvert import api

    source, mnn = arguments.words[:2]
    result = api.verify(
        source,
        mnn,
        inputs=arguments.text("inputs"),
        gates=arguments.text("gates"),
        tolerance=None if arguments["tolerance"] is None else arguments.real("tolerance"),
        engine=arguments.text("engine"),
        seed=arguments.number("seed"),
        input_shape=_shapes(arguments),
        runs=None if arguments["runs"] is None else arguments.number("runs"),
        per_layer=bool(arguments["per_layer"]),
        bisect=bool(arguments["bisect"]),
        repro=arguments.text("repro"),
        html=arguments.text("html"),
        prototxt=arguments.text("prototxt"),
        signature=arguments.text("signature"),
        options=_conversion(arguments),
        progress=out.progress,
    )
    code = 0 if result.passed else ACCURACY_MISSED
    written = _write_reports(result, arguments)
    out.data({"ok": result.passed, "exit_code": code, **result.to_dict()})
    if arguments["per_layer"] and result.layers is not None:
        print_layers(result.layers, out)
    for line in result.lines():
        out.result(line)
    page = arguments.text("html")
    for path in (*result.repro.values(), *written, *([page] if page is not None else [])):
        out.note(f"wrote {path}")
    if os.environ.get("GITHUB_ACTIONS") == "true":
        _tell_github(result, source, mnn, out)
    return code


def _write_reports(result: VerificationResult, arguments: Arguments) -> list[str]:
    """Write the files that were asked for; their paths. None of them may be one that was read."""
    source, mnn = (Path(word) for word in arguments.words[:2])
    writers = {"junit": _write_junit, "sarif": _write_sarif}
    asked = {name: path for name in writers if (path := arguments.text(name)) is not None}
    if not asked:
        return []
    from mnnconvert.schema.files import refuse_same

    for name, path in asked.items():
        for read in (source, mnn):
            refuse_same(read, Path(path))
        writers[name](result, arguments, Path(path))
    return list(asked.values())


def _write_junit(result: VerificationResult, arguments: Arguments, path: Path) -> None:
    from mnnconvert.schema.files import replacing
    from mnnconvert.verify.reports import junit

    with replacing(path, text=True) as stream:
        stream.write(junit(result, arguments.words[1]))


def _write_sarif(result: VerificationResult, arguments: Arguments, path: Path) -> None:
    from mnnconvert.cli.report import installed_version
    from mnnconvert.schema.files import replacing
    from mnnconvert.verify.reports import sarif

    source, mnn = arguments.words[:2]
    with replacing(path, text=True) as stream:
        json.dump(sarif(result, source, mnn, installed_version("mnnconvert") or "0"), stream, indent=2)


def _shapes(arguments: Arguments) -> dict[str, tuple[int, ...]]:
    given = arguments["input_shape"]
    return given if isinstance(given, dict) else {}


def _conversion(arguments: Arguments) -> ConversionOptions:
    """The conversion that a bisection does again."""
    given = {option.field: arguments[option.field] for option in CONVERSION}
    files = {"model_file": arguments.words[0], "mnn_model": arguments.words[1]}
    return ConversionOptions.from_keywords(**given, **files, verify="never")


def print_layers(result: LayerwiseResult, out: Output) -> None:
    """One row for each layer, in the order of computation, and the notes."""
    peer = any(layer.peer is not None for layer in result.layers)
    columns = ["Layer", "Operator", "Shape", ">SQNR dB", ">Own dB", ">Cosine", ">Max error", ">Largest"]
    columns += [">MNN dB"] if peer else []
    rows = [[*_cells(layer), *([_sqnr(layer.peer)] if peer else []), _mark(layer)] for layer in result.layers]
    out.table([*columns, ""], rows)
    out.detail("SQNR of the whole run, and of each layer alone on the values of the source.")
    for note in result.notes:
        out.note(note)
    if result.unmatched:
        out.note(f"{result.unmatched} more nodes are part of the layers that follow them.")


def _cells(layer: LayerReport) -> list[object]:
    m = layer.total
    own = None if layer.own is None else layer.own.sqnr
    return [layer.name, layer.op, shape(layer.shape), m.sqnr, own, m.cosine, m.max_abs, m.largest]


def _sqnr(measured: object) -> object:
    return getattr(measured, "sqnr", None)


def _mark(layer: LayerReport) -> str:
    if layer.reason:
        return "bad"
    if layer.disputed:
        return "disputed"
    if layer.first_nan is not None:
        return "NaN"
    return "rounded" if layer.lossy else ""


def _tell_github(result: VerificationResult, source: str, mnn: str, out: Output) -> None:
    """Annotations, and a table in the summary of the job."""
    from mnnconvert.schema.files import unwritable
    from mnnconvert.verify import reports

    for line in reports.github_annotations(result, mnn):
        out.result(line)
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if not summary:
        return
    try:
        with open(summary, "a", encoding="utf-8") as stream:
            stream.write(reports.markdown(result, source, mnn))
    except OSError as error:
        out.warning(str(unwritable(Path(summary), error).diagnostics[0]))  # the verdict stands without it
