"""`mnnconvert compress SRC OUT`: bits for each weight, so that the model fits a budget and loses least."""

from __future__ import annotations

from typing import Any

from mnnconvert.cli.output import Output, size
from mnnconvert.cli.parser import Arguments, Syntax
from mnnconvert.errors import UsageError
from mnnconvert.option_types import Option
from mnnconvert.options import COMMON, OPTIONS, ConversionOptions

SHARED = ("framework", "prototxt", "batch", "input_shape", "input_config_file", "verify", "tolerance", "seed", "target",
          "save_external_data", "plan", "html")  # fmt: skip

SYNTAX = Syntax(
    usage="mnnconvert compress SRC OUT (--max-size 5MB | --max-drop cosine=0.002 | --avg-bits 4.5) [--data PATH]",
    summary="Convert a model with bits and blocks chosen for each weight, to lose least within a budget.",
    options=(
        Option("--max-size", "max_size", "text", "bytes of the whole file, such as 5MB or 4.5MiB", metavar="SIZE"),
        Option("--max-drop", "max_drop", "text", "the smallest file that loses no more of cosine, top1 or error",
               metavar="METRIC=X"),
        Option("--avg-bits", "avg_bits", "float", "bits per weight with their scales", low=1, high=32, metavar="X"),
        Option("--data", "data", "path", "inputs to judge and calibrate with: .npz, .npy, or a folder", metavar="PATH"),
        Option("--saveRecipe", "save_recipe", "path", "where the recipe goes (OUT.recipe.toml)", metavar="FILE"),
        *(option for option in OPTIONS if option.field in SHARED),
        *COMMON,
    ),
    words=("SRC", "OUT"),
    required=1,
    examples=(
        "mnnconvert compress m.onnx m.mnn --max-size 5MB --data samples/",
        "mnnconvert compress m.onnx m.mnn --max-drop cosine=0.002 --data samples/",
        "mnnconvert compress m.onnx --avg-bits 4.5 --plan",
    ),
)  # fmt: skip


def run(arguments: Arguments, out: Output) -> int:
    from mnnconvert.cli.summary import print_conversion
    from mnnconvert.compression import Compression, goal_of, options_of

    goal = goal_of(
        arguments.text("max_size"),
        None if arguments["avg_bits"] is None else arguments.real("avg_bits"),
        arguments.text("max_drop"),
    )
    options = options_of(**_keywords(arguments))
    result = Compression(options, goal, out.progress).run()
    report = result.conversion
    assert report is not None
    lines = report.verification.lines() if report.verification is not None else []
    document = report.to_dict()
    out.data({"ok": True, "exit_code": 0, **document, "compression": result.to_dict()})
    print_conversion(document, list(lines), options, out)
    print_compression(result.to_dict(), options, out)
    return 0


def _keywords(arguments: Arguments) -> dict[str, Any]:
    """The options of the conversion that is asked for."""
    target, shared = arguments.word(1), {*SHARED, "data", "save_recipe"}
    if target is None and not arguments["plan"]:
        raise UsageError.of("missing-option", "There is no file to write.", hint=f"Usage: {SYNTAX.usage}")
    given = {name: value for name, value in arguments.values.items() if name in shared}
    default = {} if target is None else {"save_recipe": f"{target}.recipe.toml"}
    return {"model_file": arguments.words[0], "mnn_model": target, **default, **given}


def print_compression(result: dict[str, Any], options: ConversionOptions, out: Output) -> None:
    """The size that was reached, the error predicted and measured, and what one setting for all would give."""
    error, predicted = (result[key] ** 0.5 for key in ("measured", "predicted"))
    out.detail(f"Chosen    {size(result['size'])}, {result['average_bits']:.2f} bits per weight")
    out.detail(f"          relative error of the outputs {error:.3g} (predicted {predicted:.3g})")
    if result["written"] is not None and options.data is not None:
        out.detail(f"          {result['written']['error']:.3g} in the file, as calibrated")
    for title, bytes_, error in result["uniform"]:
        out.detail(f"          {title} for all: {size(bytes_)}, error {error**0.5:.3g}")
    if options.save_recipe is not None and not options.plan:
        out.detail(f"Recipe    {options.save_recipe}")
