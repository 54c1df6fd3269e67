"""What the options and the recipe files ask of the weights, and the files that keep it for another time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from stat import S_ISDIR
from typing import TYPE_CHECKING, Any

import numpy as np

from mnnconvert.errors import UsageError, unreadable
from mnnconvert.ir import Graph, Node
from mnnconvert.options import ConversionOptions
from mnnconvert.quantizers.plan import LayerPlan, kinds_of, names_of, weight_bytes
from mnnconvert.quantizers.recipe import NEEDS_DATA, Recipe, Rule, Setting
from mnnconvert.quantizers.recipe_file import checked, read_recipe, rule_from, write_recipe

if TYPE_CHECKING:
    from mnnconvert.verify.inputs import Feed

DEFAULT_METHOD = "lsq"
FIELDS = {
    "bits": "weight_quant_bits",
    "block": "weight_quant_block",
    "symmetric": "weight_quant_asymmetric",
    "method": "quant_method",
    "half_scales": "weight_quant_scale_bit",
}
"""Field of a setting -> the option that says it."""


def recipe_of(options: ConversionOptions) -> Recipe:
    """The recipe that options, --recipe and --compressionParamsFile make together.

    Options on the command line replace the [default] of a recipe file. Rules follow each other in the order compression
    file, recipe file, command line, so that the last of these that fits a layer counts.
    """
    recipe = _of_file(options)
    asked = {name: getattr(recipe.default, name) for name in FIELDS}
    asked |= {name: value for name, value in _spoken(options).items() if options.given(FIELDS[name])}
    if options.hqq:
        asked["method"] = "hqq"
    default = checked("the options", lambda: Setting(**asked))
    rules = (*_compression_rules(options), *recipe.rules, *(rule_from(text) for text in options.quant_rule))
    embedding = recipe.embedding if options.quant_embedding is None else options.quant_embedding
    made: Recipe = checked("the recipe", lambda: Recipe(default, rules, options.fp16, embedding))
    _refuse_idle(made, options)
    return made


def _of_file(options: ConversionOptions) -> Recipe:
    method = "gptq" if options.data is not None else DEFAULT_METHOD
    default = Setting(method=method)
    return Recipe(default) if options.recipe is None else read_recipe(Path(options.recipe), default)


def _spoken(options: ConversionOptions) -> dict[str, Any]:
    """The fields of a setting as the options have them."""
    return {
        "bits": options.weight_quant_bits,
        "block": options.weight_quant_block,
        "symmetric": not options.weight_quant_asymmetric,
        "method": options.quant_method,
        "half_scales": options.weight_quant_scale_bit == 16,
    }


def _compression_rules(options: ConversionOptions) -> Sequence[Rule]:
    from mnnconvert.quantizers.compression_params import read_params

    path = options.compression_params_file
    if path is None or not os.path.exists(path):
        return ()
    return read_params(Path(path))


def _refuse_idle(recipe: Recipe, options: ConversionOptions) -> None:
    """Refuse what could have no effect, and methods without the data that they need."""
    flags = {"--recipe": options.recipe, "--compressionParamsFile": options.compression_params_file}
    for flag, path in flags.items():
        if path is not None and not recipe.codes_weights:
            raise UsageError.of(
                "option-without-effect",
                f"{flag} {path} asks for no weight to be coded",
                hint="say how many bits, there or with --weightQuantBits",
            )
    lacking = [m for m in sorted(recipe.methods) if m in NEEDS_DATA and options.data is None]
    if lacking:
        raise UsageError.of(
            "missing-data", f"the method {lacking[0]} needs inputs of the model", hint="give them with --data PATH"
        )


def blocks_of(recipe: Recipe) -> Callable[[Node], int] | int:
    """What block size the recipe asks for by node, for the pass that cuts layers so that blocks fit; 0 when none."""
    settings = [recipe.default, *(r.setting(recipe.default) for r in recipe.rules)]
    if not any(s.bits and s.block for s in settings):
        return 0

    def block(node: Node) -> int:
        number = recipe.rule_for(names_of(node), kinds_of(node), weight_bytes(node))
        setting = settings[0 if number is None else number + 1]
        return setting.block if setting.bits else 0

    return block


def save_recipe(recipe: Recipe, layers: Iterable[LayerPlan], path: Path) -> None:
    """Write the recipe that was used, with the layers it was used on as comments."""
    from mnnconvert.schema.files import replacing

    with replacing(path, text=True) as stream:
        stream.write(write_recipe(recipe, (_described(x) for x in layers)))


def _described(layer: LayerPlan) -> str:
    stored = f"{layer.precision}, {layer.reason}" if layer.reason else layer.precision
    return f"{layer.name!r}: {layer.op}, {stored}, {layer.bytes_after} bytes"


def save_params(layers: Iterable[LayerPlan], path: Path) -> None:
    """Write the layers as MNN's compression file."""
    from mnnconvert.quantizers.compression_params import params_of
    from mnnconvert.schema.files import replacing

    with replacing(path) as stream:
        stream.write(params_of(layers, path))


def read_samples(path: Path, graph: Graph) -> list[Feed]:
    """Calibration inputs: an .npz file is one sample or batch, an .npy file one of a model with a single input, and a
    folder holds any number of these, taken in the order of their names.

    Raises `missing-file`, `unreadable-file`, and `bad-input` for a wrong name, rank, size or type.
    """
    from mnnconvert.runtime_ref.session import Session
    from mnnconvert.verify.engines import SessionEngine
    from mnnconvert.verify.inputs import load_npz

    infos = SessionEngine(Session(graph, backend="reference")).inputs
    return [load_npz(file, infos) for file in _sample_files(path)]


def _sample_files(path: Path) -> list[Path]:
    try:
        if not S_ISDIR(path.stat().st_mode):
            return [path]
        files = sorted(p for p in path.iterdir() if p.suffix.lower() in (".npz", ".npy"))
    except OSError as error:
        raise unreadable(path, error) from error
    if not files:
        raise UsageError.of("bad-input", f"'{path}' holds no .npz or .npy files", file=path)
    return files


def prepare(graph: Graph) -> Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]:
    """A runner of a graph for calibration: our executor with compiled kernels where there are any."""
    from mnnconvert.runtime_ref.session import Session

    return Session(graph).run
