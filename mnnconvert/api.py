"""The Python interface: convert, load, run, verify, and what the command line needs beside them."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnnconvert.errors import ConversionError, UsageError, unreadable
from mnnconvert.options import ConversionOptions

if TYPE_CHECKING:
    from torch.nn import Module

    from mnnconvert.calibration.report import QuantizationReport
    from mnnconvert.compression import Compressed
    from mnnconvert.conversion import ConversionReport
    from mnnconvert.describe import ModelInfo
    from mnnconvert.difference import ModelDifference
    from mnnconvert.runtime_ref.session import Session
    from mnnconvert.verify.verification import VerificationResult

Progress = Callable[[str, float], None]
PathLike = str | os.PathLike[str]


def convert(
    source: PathLike | Module,
    target: PathLike,
    *,
    framework: str | None = None,
    example_inputs: Sequence[Any] | None = None,
    dynamic_shapes: Any = None,
    **keywords: Any,
) -> ConversionReport:
    """Convert the model file (or torch module) `source` to the MNN file `target`.

    A module is traced with `example_inputs`, the arguments of its forward, and `dynamic_shapes` as torch.export takes
    it, which says what sizes stay open. Keywords are the command-line options in snake_case (`weight_quant_bits=4`,
    short `weight_bits=4`). Raises ConversionError (UsageError and GateError among them), with `.diagnostics`; `target`
    is only touched by a finished file.
    """
    if not isinstance(source, str | os.PathLike):
        from mnnconvert.frontends.torch.module import convert_module

        return convert_module(source, target, example_inputs, dynamic_shapes, convert, keywords)
    if example_inputs is not None or dynamic_shapes is not None:
        raise UsageError.of(
            "option-without-effect", "example_inputs and dynamic_shapes are for a module, not for a file"
        )
    options = ConversionOptions.from_keywords(
        model_file=os.fspath(source), mnn_model=os.fspath(target), framework=framework, **keywords
    )
    return convert_with(options, None)


def convert_with(options: ConversionOptions, progress: Progress | None = None) -> ConversionReport:
    """As `convert`, with options that were read already; `progress(stage, fraction)` is called on the way."""
    from mnnconvert.conversion import Conversion

    return Conversion(options, progress).run()


def compress(
    source: PathLike,
    target: PathLike,
    *,
    max_size: str | int | None = None,
    max_drop: str | None = None,
    avg_bits: float | None = None,
    data: PathLike | None = None,
    progress: Progress | None = None,
    **keywords: Any,
) -> Compressed:
    """Convert with bits and blocks chosen for each weight, so that the outputs change least within a goal.

    One of: `max_size` of the file (bytes, or text such as "5MB"), `avg_bits` per weight with scales, `max_drop` such as
    "cosine=0.002" (also top1, error). `data` are inputs as for `convert`; keywords are options of a conversion. Raises
    what `convert` raises, and `budget-too-small`.
    """
    from mnnconvert.compression import Compression, goal_of, options_of

    goal = goal_of(max_size, avg_bits, max_drop)
    places = {"model_file": os.fspath(source), "mnn_model": os.fspath(target)}
    options = options_of(**places, data=None if data is None else os.fspath(data), **keywords)
    return Compression(options, goal, progress).run()


def load(
    path: PathLike,
    *,
    backend: str = "cpu",
    threads: int = 0,
    precision: str = "exact",
    kv_cache: bool = False,
    tune: bool = False,
    strict: bool = False,
) -> Session:
    """A session for a `.mnn` file.

    `backend` "cpu" runs compiled kernels (numpy where none were built, see `Session.backend`), "opencl" OpenCL kernels,
    "reference" the numpy definitions. `threads` 0 takes as many as the process may use. `precision` "fast" (cpu) lets
    products with coded weights round their other operand to 8 bits, "half" (opencl) keeps floats as float16. With
    `kv_cache` attentions that can keep their keys and values from run to run, until `Session.reset()`. `tune` measures
    which variants of OpenCL kernels are the fastest here, once per device. An op without an OpenCL kernel is computed
    on the CPU, and counted in `Session.fallbacks`; with `strict` it is the error `no-kernel`.
    """
    from mnnconvert.runtime_ref.session import load as load_session

    if threads < 0:
        raise UsageError.of("out-of-range", f"threads takes a number from 0 on, not {threads}")
    return load_session(
        Path(path), backend, threads=threads, precision=precision, kv_cache=kv_cache, tune=tune, strict=strict
    )


def verify(
    source: PathLike,
    mnn: PathLike,
    inputs: PathLike | Mapping[str, Any] | None = None,
    gates: PathLike | None = None,
    *,
    tolerance: float | None = None,
    engine: str | None = None,
    seed: int = 0,
    input_shape: Mapping[str, Sequence[int]] | None = None,
    runs: int | None = None,
    per_layer: bool = False,
    bisect: bool = False,
    repro: PathLike | None = None,
    html: PathLike | None = None,
    prototxt: PathLike | None = None,
    signature: str | None = None,
    options: ConversionOptions | None = None,
    progress: Progress | None = None,
) -> VerificationResult:
    """Run both models on the same inputs and compare all outputs.

    `inputs` are arrays by input name, or a path that `mnnconvert.feeding.read_feeds` knows: .npz, .npy, a folder of
    these or of MNN's recorded cases, a configuration of images. Without, they are made up from `seed`: `runs` runs (two
    at other sizes where sizes are open, else one), with the sizes that `input_shape` gives. `tolerance` is relative to
    the largest value of an output (1e-3); `gates` is a TOML file of bounds, which judge alone where no tolerance is
    given. `engine` "mnn" runs the MNN file in MNN's own runtime instead of ours, "opencl" with our OpenCL
    kernels.

    `per_layer` compares all layers and names the first bad one, `bisect` does the conversion again (with `options`) and
    names the step that changes the answer, `repro` is a folder that the first bad layer is written to. A Caffe model
    needs the `prototxt` of its net, a SavedModel of several signatures one of these. `html` is a page to write.
    """
    from mnnconvert.verification import Request, verify_files

    given = (("prototxt", prototxt), ("signature", signature))
    chosen = {name: str(value) for name, value in given if value is not None}
    request = Request(
        source=Path(source), mnn=Path(mnn), inputs=inputs, gates=None if gates is None else Path(gates),
        tolerance=tolerance, engine=engine, seed=seed, shapes=dict(input_shape or {}), runs=runs, per_layer=per_layer,
        layers_if_told=html is not None, bisect=bisect, repro=None if repro is None else Path(repro), options=options,
        chosen=chosen, progress=progress or (lambda stage, fraction: None),
    )  # fmt: skip
    if html is None:
        return verify_files(request)
    from mnnconvert.report import write_page
    from mnnconvert.report.gather import of_verification
    from mnnconvert.schema.files import refuse_same

    for read in (source, mnn):
        refuse_same(Path(read), Path(html))
    result = verify_files(request)
    write_page(of_verification(request, result), Path(html))
    return result


def quantize(
    source: PathLike, target: PathLike, config: PathLike, *, resume: bool = False, progress: Progress | None = None
) -> QuantizationReport:
    """Write the int8 form of the float file `source` to `target`, with ranges observed on samples.

    `config` is a JSON file with the keys of MNN's quantization tool (docs/int8.md). With `resume` what was observed is
    kept in `target`.state.npz until the work is done, and a run that was interrupted goes on from there.
    """
    from mnnconvert.calibration.calibrate import calibrate

    return calibrate(Path(source), Path(target), Path(config), resume, progress)


def info(path: PathLike) -> ModelInfo:
    """What is inside a `.mnn` file."""
    from mnnconvert.describe import describe

    return describe(Path(path))


def diff(
    before: PathLike, after: PathLike, *, run: bool = True, inputs: PathLike | Mapping[str, Any] | None = None,
    seed: int = 0, prototxt: PathLike | None = None, signature: str | None = None,
) -> ModelDifference:  # fmt: skip
    """What differs between two model files: layers, weights, inputs and outputs, and (with `run`) the answers.

    Both get the same `inputs` (arrays by name, or an .npz file; made up from `seed` otherwise); where they cannot, the
    notes say why. `prototxt` describes the net of Caffe weights, `signature` is that of a SavedModel.
    """
    from mnnconvert.difference import compare_files

    told = {"prototxt": None if prototxt is None else os.fspath(prototxt), "signature": signature}
    chosen = {name: text for name, text in told.items() if text is not None}
    return compare_files(Path(before), Path(after), run=run, inputs=inputs, seed=seed, chosen=chosen)


def to_json(mnn: PathLike, target: PathLike) -> None:
    """Write the JSON form of a `.mnn` file."""
    from mnnconvert.schema import json_form
    from mnnconvert.schema.files import refuse_same, replacing
    from mnnconvert.schema.reader import read_net

    refuse_same(Path(mnn), Path(target))
    net = read_net(Path(mnn))
    with replacing(Path(target), text=True) as stream:
        json_form.to_json(net, stream)


def from_json(source: PathLike, mnn: PathLike) -> None:
    """Write the `.mnn` file of a JSON form; the same bytes as the file it was made from."""
    from mnnconvert.schema import flatbuffer, json_form, tables
    from mnnconvert.schema.files import refuse_same, replacing

    refuse_same(Path(source), Path(mnn))
    try:
        text = Path(source).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConversionError.of(
            "bad-json-model", f"'{source}' is not text: {error.reason}", file=source, offset=error.start
        ) from error
    except OSError as error:
        raise unreadable(source, error) from error
    net = json_form.from_json(text, tables.Net)
    with replacing(Path(mnn)) as stream:
        flatbuffer.write(net, stream)


def supported_ops(framework: str = "ONNX") -> list[dict[str, Any]]:
    """The source ops that are translated: name, the oldest opset of each rule, and limits.

    An ONNX op without a rule that the standard defines through others is translated "through its function body".
    Operators of TFLite and TensorFlow have versions instead of opsets, and those of Caffe none; all are read, so that
    `since` is 1.
    """
    from mnnconvert.sources import require_frontend

    require_frontend(framework)
    if framework.upper() == "TFLITE":
        return _tflite_ops()
    if framework.upper() == "TF":
        return _tensorflow_ops()
    if framework.upper() == "CAFFE":
        return _caffe_ops()
    if framework.upper() == "TORCH":
        from mnnconvert.frontends.torch.coverage import covered

        return covered()
    from mnnconvert.frontends.onnx import functions, rules  # noqa: F401  (registers the rules)
    from mnnconvert.frontends.onnx.registry import RULES, supported

    ruled = [(r.domain, r.op, r.since, r.limits) for r in supported()]
    bodies = ((*key, since, "through its function body") for key, since in functions.defined().items())
    listed = (*ruled, *(each for each in bodies if each[:2] not in RULES))
    return [{"name": f"{d}.{op}" if d else op, "since": since, "limits": limits} for d, op, since, limits in listed]


def _tflite_ops() -> list[dict[str, Any]]:
    from mnnconvert.frontends.tflite import rules  # noqa: F401  (registers the rules)
    from mnnconvert.frontends.tflite.registry import RULES

    return _unversioned([(rule.op, rule.limits) for rule in RULES.values()])


def _tensorflow_ops() -> list[dict[str, Any]]:
    from mnnconvert.frontends.tensorflow import rules  # noqa: F401  (registers the rules)
    from mnnconvert.frontends.tensorflow.importer import SOURCES
    from mnnconvert.frontends.tensorflow.registry import RULES

    listed = [(name, "") for name in SOURCES] + [(rule.op, rule.limits) for rule in RULES.values()]
    return _unversioned(listed)


def _caffe_ops() -> list[dict[str, Any]]:
    from mnnconvert.frontends.caffe import rules  # noqa: F401  (registers the rules)
    from mnnconvert.frontends.caffe.registry import RULES

    listed = [(rule.op, rule.limits) for rule in RULES.values()] + [("Input", "")]
    return _unversioned(listed)


def _unversioned(listed: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    return [{"name": op, "since": 1, "limits": limits} for op, limits in sorted(listed)]


def kernels_of(backend: str = "cpu") -> dict[str, Any]:
    """Every op of MNN with whether kernels of a backend, "cpu" or "opencl", compute (most forms of) it.

    "runs" is what they run on: an instruction set, or a device. Raises `unsupported-backend` where there is no device.
    """
    import mnnconvert.ops  # noqa: F401  (registers the ops)
    from mnnconvert.ops.base import sorted_ops

    runs, rules = _opencl_rules() if backend == "opencl" else _cpu_rules()
    return {"runs": runs, "ops": [{"name": op.__name__, "compiled": op in rules} for op in sorted_ops()]}


def _cpu_rules() -> tuple[str | None, Collection[type]]:
    from mnnconvert.runtime_ref.cpu import lowering  # noqa: F401  (registers the rules)
    from mnnconvert.runtime_ref.cpu.library import library
    from mnnconvert.runtime_ref.cpu.lower import RULES

    found = library()
    return (None, ()) if found is None else (found.level, RULES)


def _opencl_rules() -> tuple[str, Collection[type]]:
    from mnnconvert.runtime_ref.opencl import lowering  # noqa: F401  (registers the rules)
    from mnnconvert.runtime_ref.opencl.device import device
    from mnnconvert.runtime_ref.opencl.lower import RULES

    return device().name, RULES
