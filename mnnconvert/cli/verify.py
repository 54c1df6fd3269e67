"""`mnnconvert verify SRC MNN`: does the converted file give the answers of its source?"""

from __future__ import annotations

from mnnconvert.cli.output import Output
from mnnconvert.cli.parser import Arguments, Syntax
from mnnconvert.option_types import Option
from mnnconvert.options import COMMON, ConversionOptions

ACCURACY_MISSED = 3

SYNTAX = Syntax(
    usage="mnnconvert verify SRC MNN [--inputs FILE.npz] [--gates FILE.toml] [--tolerance X] [--engine NAME]",
    summary="Run source and converted model on the same inputs and compare all outputs; exit code 3 on a miss.",
    options=(
        Option("--inputs", "inputs", "path", "arrays by input name; made up otherwise", metavar="FILE.npz"),
        Option("--gates", "gates", "path", "bounds per metric and output", metavar="FILE.toml"),
        Option(
            "--tolerance",
            "tolerance",
            "float",
            "largest accepted relative difference",
            default=ConversionOptions.tolerance,
            low=0,
            metavar="X",
        ),
        Option("--prototxt", "prototxt", "path", "description of the net, where SRC is a .caffemodel", metavar="FILE"),
        Option("--engine", "engine", "text", "what runs the MNN file: ours, or mnn if installed", metavar="NAME"),
        *COMMON,
    ),
    words=("SRC", "MNN"),
    required=2,
    examples=("mnnconvert verify m.onnx m.mnn", "mnnconvert verify m.onnx m.mnn --engine mnn --gates gates.toml"),
)


def run(arguments: Arguments, out: Output) -> int:
    from mnnconvert import api

    result = api.verify(
        arguments.words[0],
        arguments.words[1],
        inputs=arguments.text("inputs"),
        gates=arguments.text("gates"),
        tolerance=arguments.real("tolerance"),
        engine=arguments.text("engine"),
        prototxt=arguments.text("prototxt"),
    )
    code = 0 if result.passed else ACCURACY_MISSED
    out.data({"ok": result.passed, "exit_code": code, **result.to_dict()})
    for line in result.lines():
        out.result(line)
    return code
