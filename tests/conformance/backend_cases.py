"""The backend test cases that the onnx package generates and ships, in one form: model, feeds, expected outputs."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.backend.test.case.node as node_cases
from onnx.backend.test import loader

DATA = Path(loader.DATA_DIR)
PLAIN = {1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13}  # TensorProto.DataType of the numbers and bools that numpy has
NARROW = {16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26}  # of the floats and integers that it has not
DOUBTFUL = {
    "test_bernoulli": "random numbers",
    "test_resize_downsample_scales_cubic_align_corners": "onnxruntime and we use the rounded output size here",
    "test_resize_downsample_scales_linear_align_corners": "onnxruntime and we use the rounded output size here",
    "test_squeezenet": "its softmax is of numbers near 1e10, where the rounding of float32 alone is 1000",
}


@dataclass(frozen=True)
class Case:
    """One case. `group` is the op under test, or the kind of case where there is no single one.

    `narrow` names a type of few bits that an input or output has, if any. `apart` says why the case is not judged: it
    has a sequence or a string as input or output, or it expects what no float32 program can be held to.
    """

    name: str
    group: str
    model: onnx.ModelProto
    runs: tuple[tuple[dict[str, np.ndarray], dict[str, np.ndarray]], ...]
    rtol: float
    atol: float
    narrow: str = ""
    apart: str = ""


def all_cases(without: Collection[str] = ()) -> Iterator[Case]:
    """Every case, by kind and name. `without` names modules of node cases, for those that take long to be made."""
    ops: dict[str, str] = {}
    for case in sorted(_generated(without), key=lambda c: c.name):
        base = case.name.split("_expanded")[0]
        ops.setdefault(base, case.model.graph.node[0].op_type)
        yield _case(case, ops[base], case.model, case.data_sets)
    for kind in ("simple", "pytorch-converted", "pytorch-operator"):
        for case in sorted(loader.load_model_tests(kind=kind), key=lambda c: c.name):
            model = onnx.load(Path(case.model_dir) / "model.onnx")
            folders = sorted(Path(case.model_dir).glob("test_data_set_*"))
            yield _case(case, kind, model, [_stored(folder, model) for folder in folders])
    for case in sorted(loader.load_model_tests(kind="real"), key=lambda c: c.name):
        path = DATA / "light" / Path(case.url).name
        model = onnx.load(path)
        yield _case(case, "light", model, [_counted(path, model)])


def _generated(without: Collection[str]) -> list[Any]:
    """The cases of ops; the package makes them when their modules are imported."""
    packages = [node_cases]
    while packages:
        package = packages.pop()
        for _, name, is_package in pkgutil.iter_modules(package.__path__):
            if name not in without:
                module = importlib.import_module(f"{package.__name__}.{name}")
                packages += [module] if is_package else []
    return list(node_cases._NodeTestCases)


def _stored(folder: Path, model: onnx.ModelProto) -> tuple[list[Any], list[Any]]:
    """The protos of a folder of test data, as arrays where they are tensors."""
    return tuple(
        [
            _loaded(folder / f"{kind}_{i}.pb", info)
            for i, info in enumerate(infos[: len(list(folder.glob(kind + "_*")))])
        ]
        for kind, infos in (("input", model.graph.input), ("output", model.graph.output))
    )


def _loaded(path: Path, info: onnx.ValueInfoProto) -> Any:
    if not info.type.HasField("tensor_type"):
        return None
    return onnx.numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes()))


def _counted(path: Path, model: onnx.ModelProto) -> tuple[list[Any], list[Any]]:
    """The inputs that the package makes up for its light models, from 0 to 1, and the outputs beside the model."""
    known = {t.name for t in model.graph.initializer}
    infos = [i for i in model.graph.input if i.name not in known]
    shapes = [[d.dim_value or 1 for d in i.type.tensor_type.shape.dim] for i in infos]
    outputs = [_loaded(path.with_name(f"{path.stem}_output_{i}.pb"), o) for i, o in enumerate(model.graph.output)]
    return [(np.arange(np.prod(s)).reshape(s) / np.prod(s)).astype(np.float32) for s in shapes], outputs


def _case(case: Any, group: str, model: onnx.ModelProto, data_sets: Any) -> Case:
    known = {t.name for t in model.graph.initializer}
    inputs = [i for i in model.graph.input if i.name not in known]
    infos = (*inputs, *model.graph.output)
    reasons = [_reason(info) for info in infos]
    narrow = [_type_name(i) for i in infos if i.type.tensor_type.elem_type in NARROW]
    reasons += [reason for name, reason in DOUBTFUL.items() if f"{case.name}_".startswith(f"{name}_")]
    apart = next((reason for reason in reasons if reason), "")
    runs = [
        tuple(
            {i.name: _array(value) for i, value in zip(infos, values, strict=False)}
            for infos, values in ((inputs, run[0]), (model.graph.output, run[1]))
        )
        for run in (data_sets if not apart else ())
    ]
    return Case(
        case.name, group, model, tuple(runs), max(case.rtol, 1e-3), max(case.atol, 1e-7), *narrow[:1] or [""], apart
    )


def _reason(info: onnx.ValueInfoProto) -> str:
    """Why an input or output is no tensor of plain numbers."""
    kind = info.type.WhichOneof("value")
    if kind != "tensor_type":
        return (kind or "unknown_type").replace("_type", "")
    return "" if info.type.tensor_type.elem_type in PLAIN | NARROW else _type_name(info)


def _type_name(info: onnx.ValueInfoProto) -> str:
    return onnx.TensorProto.DataType.Name(info.type.tensor_type.elem_type).lower()


def _array(value: Any) -> np.ndarray:
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)
