"""Reads a model of any framework: what it is, which frontend knows it, and what has to be told beside its file."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mnnconvert.errors import ConversionError, Diagnostic, UsageError, unreadable
from mnnconvert.frameworks import FRONTENDS, SUFFIXES, TOLD
from mnnconvert.ir import Graph, Shape
from mnnconvert.ir.types import format_shape
from mnnconvert.options import ConversionOptions

if TYPE_CHECKING:
    from mnnconvert.frontends.torch.inputs import InputOptions

Note = Callable[[str, str, str], None]


def imported(options: ConversionOptions, note: Note = lambda reference, message, hint: None) -> Graph:
    """The graph of a source model as its frontend makes it, before any pass; `note` is told what a user should know."""
    framework = options.framework or guess_framework(Path(options.model_file or ""))
    require_frontend(framework)
    if framework != "TORCH" and (options.input_type or options.input_value):
        raise UsageError.of(
            "option-without-effect", "--input-type and --input-value are for TorchScript, which may leave them open"
        )
    graph = _read(framework, options, note)
    if options.save_static_model:
        _require_static(graph)
    if not options.allow_custom_op:
        _refuse_plugins(graph)
    return graph


def _read(framework: str, options: ConversionOptions, note: Note) -> Graph:
    source, shapes, batch = Path(options.model_file or ""), given_shapes(options), options.batch or 0
    if framework == "MNN":
        from mnnconvert.schema.reader import read_model

        if shapes or batch:
            raise UsageError.of(
                "option-without-effect", "input sizes can only be fixed while a source model is converted"
            )
        return read_model(source)
    if framework == "TFLITE":
        from mnnconvert.frontends.tflite.reader import read_tflite

        return read_tflite(source, shapes, batch)
    if framework == "TF":
        from mnnconvert.frontends.tensorflow.reader import read_tensorflow

        return read_tensorflow(source, shapes, batch, options.signature or "")
    if framework == "CAFFE":
        from mnnconvert.frontends.caffe.reader import read_caffe

        return read_caffe(source, options.prototxt, shapes, batch)
    if framework == "TORCH":
        from mnnconvert.frontends.torch.reader import read_torch

        return read_torch(source, torch_inputs(options), note)
    from mnnconvert.frontends.onnx.reader import read_onnx

    return read_onnx(source, shapes, batch)


def given_shapes(options: ConversionOptions) -> dict[str, Shape]:
    """The sizes that the options give to inputs."""
    return {**fixed_shapes(options.input_config_file), **options.input_shape}


def torch_inputs(options: ConversionOptions) -> InputOptions:
    """What the options say of the inputs of a Torch model."""
    from mnnconvert.frontends.torch.inputs import input_options

    return input_options(given_shapes(options), options.input_type, options.input_value, options.batch or 0)


def inputs_of_script(source: Path, mnn: Path, values: Iterable[str] = ()) -> InputOptions | None:
    """What a converted file tells of the inputs of the script that it was made of; None where the source is no script.

    `values` such as "rate:16000" are what the user says beside it.
    """
    from mnnconvert.frontends.torch.files import kind_of_file
    from mnnconvert.frontends.torch.inputs import input_options, said_by
    from mnnconvert.schema.reader import read_model

    if guess_framework(source) != "TORCH" or kind_of_file(source) != "script":
        return None
    told = said_by(read_model(mnn))
    return replace(told, values={**told.values, **input_options({}, (), values, 0).values})


def told_of(framework: str, chosen: Mapping[str, str]) -> dict[str, str]:
    """The part of `chosen` that says something about models of this framework."""
    return {name: text for name, text in chosen.items() if TOLD[name] == framework}


def check_told(chosen: Mapping[str, str], frameworks: Collection[str]) -> None:
    """Refuse what would have no effect: it tells of models of a framework that is not among these."""
    problems = [
        Diagnostic("option-without-effect", f"--{name} is for {TOLD[name]} models; here is none", hint="Leave it out.")
        for name in chosen if TOLD[name] not in frameworks
    ]  # fmt: skip
    if problems:
        raise UsageError(problems)


def read_source(path: Path, framework: str | None = None, chosen: Mapping[str, str] | None = None) -> Graph:
    """The graph of any model file as it is read, before passes; the framework is guessed where it is not given.

    `chosen` holds what else tells the model (`ConversionOptions.chosen`).
    """
    framework = framework or guess_framework(path)
    told = told_of(framework, chosen or {})
    options = ConversionOptions.from_keywords(model_file=str(path), framework=framework, allow_custom_op=True, **told)
    with without_collection():
        return imported(options)


@contextmanager
def without_collection() -> Iterator[None]:
    """No search for cycles meanwhile: a graph is made of them, and all of it is in use until the end."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def guess_framework(path: Path) -> str:
    """The framework of a file by its suffix, or by its first bytes; a folder is a SavedModel."""
    known = SUFFIXES.get((path.suffix or path.name).lower())
    if known:
        return known
    if os.path.isdir(path):
        return "TF"
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except OSError as error:
        raise unreadable(path, error) from error
    if head[4:8] == b"TFL3":
        return "TFLITE"
    if head.startswith((b"PK\3\4", b"\x80\2")):  # what torch.save makes: an archive, or once a pickle
        return "TORCH"
    if head[:1] == b"\x08" and len(head) > 2:  # ModelProto.ir_version comes first
        return "ONNX"
    raise UsageError.of("unknown-framework", f"'{path}' does not tell what framework it is from", hint="say it with -f")


def require_frontend(framework: str) -> None:
    """Refuse frameworks that have no frontend."""
    if framework.upper() not in FRONTENDS:
        raise ConversionError.of(
            "framework-not-available", f"there is no frontend for {framework} models", hint="export the model to ONNX"
        )


def fixed_shapes(path: str | None) -> dict[str, Shape]:
    """Input sizes of an MNN input configuration file: `input_names = a,b` and `input_dims = 1x3x224x224,1x8`."""
    if path is None:
        return {}
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise unreadable(path, error) from error
    except UnicodeDecodeError as error:
        raise ConversionError.of("unreadable-file", f"cannot read '{path}': {error}", file=path) from error
    pairs = {key.strip(): value.strip() for key, _, value in (line.partition("=") for line in lines) if value}
    names = [n.strip() for n in pairs.get("input_names", "").split(",") if n.strip()]
    dims = [d.strip() for d in pairs.get("input_dims", "").split(",") if d.strip()]
    if not names or len(names) != len(dims) or not all(all(p.isdigit() for p in d.split("x")) for d in dims):
        raise UsageError.of(
            "bad-input", f"'{path}' needs lines like 'input_names = a,b' and 'input_dims = 1x3x8x8,1x4'", file=path
        )
    return {name: tuple(int(p) for p in d.split("x")) for name, d in zip(names, dims, strict=True)}


def plugins(graph: Graph) -> list[str]:
    """Names of the ops in a graph that come from plug-ins."""
    from mnnconvert.ops.plugin import PluginOp

    return sorted({n.op.plugin for g in graph.graphs() for n in g.nodes if isinstance(n.op, PluginOp)})


def _refuse_plugins(graph: Graph) -> None:
    problems = [
        Diagnostic(
            "custom-op",
            f"'{name}' comes from a plug-in: only a runtime with a kernel of that name can run the file",
            {"op": name},
            "--allowCustomOp writes it all the same",
        )
        for name in plugins(graph)
    ]
    if problems:
        raise ConversionError(problems)


def _require_static(graph: Graph) -> None:
    problems = [
        Diagnostic(
            "open-size",
            f"the input '{v.name}' has the sizes {format_shape(v.shape)}, of which {_open(v.shape)} is open",
            {"input": v.name},
            f"fix it with --input-shape {v.name}:1x3x224x224 or the like",
        )
        for v in graph.inputs if v.shape is None or not all(isinstance(d, int) for d in v.shape)
    ]  # fmt: skip
    if problems:
        raise ConversionError(problems)


def _open(shape: Shape | None) -> str:
    return "everything" if shape is None else ", ".join(str(d) for d in shape if not isinstance(d, int))


def bytes_on_disk(source: Path, graph: Graph) -> int:
    """Bytes of the model file (or of all in its folder) and of the external files that its weights lie in."""
    from mnnconvert.ir.tensor import file_of

    found = (file_of(v.tensor) for g in graph.graphs() for v in g.constants())
    files = {path for path in found if path is not None}
    files.update(source.rglob("*") if source.is_dir() else [source])
    return sum(f.stat().st_size for f in files if f.is_file())
