"""Engines: whatever runs a model file on named inputs, behind one small interface.

`OnnxRuntimeEngine` is the source of truth for ONNX files; `SessionEngine` wraps our own executor. The runtime of the
released MNN package, which has to be kept at arm's length, is in `mnn_engine.py`.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from mnnconvert.errors import ConversionError, MnnConvertError

if TYPE_CHECKING:
    import onnx

    from mnnconvert.verify.layers import SourceLayer

Feeds = Mapping[str, np.ndarray]
Outputs = dict[str, np.ndarray]
Change = Callable[[np.ndarray], np.ndarray]

TWIN_BYTES = 500_000_000  # larger models are not opened a second time


@dataclass(frozen=True)
class TensorInfo:
    """What an engine says about an input or output: a string is a symbolic size, None an unknown one.

    The whole type or shape is None where the engine tells it only by running (outputs of the MNN runtime). Where
    it is not 0, `step` is the distance of the numbers that a quantized model can give: 1 for codes. `role` is what an
    input is for, where the model tells ("sizes", "scales", "shape", "count", "index"); indices lie below `limit`.
    """

    name: str
    dtype: np.dtype | None
    shape: tuple[int | str | None, ...] | None
    step: float = 0.0
    role: str = ""
    limit: int = 0


class Engine(Protocol):
    """Runs one model. `exact_kinds` is False where the runtime stands int32 in for bool and narrow integers.

    `notes` says what a reader of its answers has to know.
    """

    @property
    def name(self) -> str: ...

    @property
    def exact_kinds(self) -> bool: ...

    @property
    def notes(self) -> Sequence[str]: ...

    @property
    def inputs(self) -> Sequence[TensorInfo]: ...

    @property
    def outputs(self) -> Sequence[TensorInfo]: ...

    def run(self, feeds: Feeds) -> Outputs:
        """All outputs by name. A ConversionError says why the model could not be run."""
        ...


class SessionEngine:
    """Our own executor: anything with `inputs`, `outputs` (name, dtype, shape) and `run(feeds)`."""

    exact_kinds = True
    notes = ()

    def __init__(self, session: Any, name: str = "mnnconvert"):
        self.name = name
        self._session = session
        self.inputs = [_info(value) for value in session.inputs]
        self.outputs = [_info(value) for value in session.outputs]

    def run(self, feeds: Feeds) -> Outputs:
        return {name: np.asarray(array) for name, array in self._session.run(dict(feeds)).items()}

    def layers(self) -> Sequence[SourceLayer]:
        """See `IntermediateEngine`."""
        from mnnconvert.verify.layers import SourceLayer

        return [
            SourceLayer(n.name, n.op.kind, tuple(v.name for v in n.inputs), tuple(v.name for v in n.outputs))
            for n in self._session.graph.nodes
        ]

    def run_values(self, feeds: Feeds, names: Sequence[str]) -> Outputs:
        """See `IntermediateEngine`."""
        results: Outputs = self._session.run(dict(feeds), list(names))
        return results

    def with_branches(self, taken: Mapping[str, bool]) -> SessionEngine:
        """See `branches.Branching`."""
        from mnnconvert.runtime_ref.session import Session
        from mnnconvert.verify.branches import with_branches

        return SessionEngine(Session(with_branches(self._session.graph, taken)), self.name)


def _info(value: Any) -> TensorInfo:
    return TensorInfo(value.name, np.dtype(value.dtype), None if value.shape is None else tuple(value.shape))


class OnnxRuntimeEngine:
    """onnxruntime on the CPU. Graph optimisations are off unless asked for: they are free to change the numbers.

    onnxruntime refuses a few legal models; for these it is given an equal one (see `onnx_repair`): nodes of one name
    are renamed when the model is opened, and SAME padding with dilation becomes explicit once a run fixes the sizes.
    Products of unsigned and signed bytes, which may saturate, are made exact and noted (see `onnx_saturation`).
    """

    name = "onnxruntime"
    exact_kinds = True

    def __init__(self, path: str | Path, *, threads: int = 1, optimize: bool = False):
        self.path = Path(path)
        self._threads, self._optimize = threads, optimize
        self.notes: list[str] = []
        self._constants: dict[str, Any] = {}  # OrtValues that replace initializers; a session only points at them
        self._session = self._open()
        self.inputs = self._with_roles([self._describe(value) for value in self._session.get_inputs()])
        self.outputs = [self._describe(value) for value in self._session.get_outputs()]

    def _with_roles(self, inputs: list[TensorInfo]) -> list[TensorInfo]:
        """The inputs with what they are for. Models that can have none but pictures and sound are not parsed for it."""
        if not any(_may_be_sizes(info) for info in inputs) or self.path.stat().st_size > TWIN_BYTES:
            return inputs
        from mnnconvert.verify.onnx_roles import roles_of

        roles = roles_of(self._model().graph)
        return [
            replace(i, role=roles[i.name].name, limit=roles[i.name].limit) if i.name in roles else i for i in inputs
        ]

    @staticmethod
    def available() -> bool:
        return find_spec("onnxruntime") is not None

    def run(self, feeds: Feeds) -> Outputs:
        try:
            return self._run(self._session, feeds)
        except _refusals() as problem:
            if "AutoPadType" not in str(problem):
                raise self._failed("could not run the model", problem) from problem
        return self._run_with_explicit_pads(feeds)

    def layers(self) -> Sequence[SourceLayer]:
        """See `IntermediateEngine`."""
        from mnnconvert.verify.onnx_values import layers_of

        return layers_of(self.proto.graph)

    def run_values(self, feeds: Feeds, names: Sequence[str]) -> Outputs:
        """See `IntermediateEngine`: the model is run up to the last of these values. Sequences are left out."""
        from mnnconvert.verify.onnx_values import reduced

        made = {name for node in self.proto.graph.node for name in node.output}
        inside = [name for name in dict.fromkeys(names) if name in made]
        found = {name: np.asarray(feeds[name]) for name in names if name in feeds}
        try:
            results = self._session_of(reduced(self.proto, inside)).run(inside, dict(feeds)) if inside else []
        except _refusals() as problem:
            if "AutoPadType" not in str(problem):
                raise self._failed("could not tell the values inside the model", problem) from problem
            self.proto = self._padded(feeds)
            results = self._session_of(reduced(self.proto, inside)).run(inside, dict(feeds))
        return found | {n: a for n, a in zip(inside, results, strict=True) if isinstance(a, np.ndarray)}

    def with_branches(self, taken: Mapping[str, bool]) -> OnnxRuntimeEngine:
        """See `branches.Branching`."""
        from mnnconvert.verify.onnx_values import with_branches

        twin = copy.copy(self)
        twin.proto = with_branches(self.proto, taken)
        return twin

    @cached_property
    def proto(self) -> onnx.ModelProto:
        """The model that is run."""
        return self._model()

    def _padded(self, feeds: Feeds) -> onnx.ModelProto:
        from mnnconvert.verify.onnx_repair import with_explicit_pads

        return with_explicit_pads(self._model(), {name: array.shape for name, array in feeds.items()})

    def with_constants(self, change: Change) -> OnnxRuntimeEngine | None:
        """The same model with `change` applied to the float32 initializers of its main graph; None beyond 500 MB.

        Initializers in external files stay as they are. The new session reads the changed ones where they lie, so
        that it holds no more than the old one does.
        """
        constants = self._changed_constants(change)
        if constants is None:
            return None
        twin = copy.copy(self)
        twin._constants = constants
        twin._session = twin._open()
        return twin

    def _changed_constants(self, change: Change) -> dict[str, Any] | None:
        import onnx
        import onnxruntime
        from onnx import numpy_helper

        if self.path.stat().st_size > TWIN_BYTES:
            return None
        tensors = onnx.load(str(self.path), load_external_data=False).graph.initializer
        if sum(_bytes_of(tensor) for tensor in tensors) > TWIN_BYTES:
            return None
        return {
            tensor.name: onnxruntime.OrtValue.ortvalue_from_numpy(change(numpy_helper.to_array(tensor)))
            for tensor in tensors
            if tensor.data_type == onnx.TensorProto.FLOAT and tensor.data_location != onnx.TensorProto.EXTERNAL
        }

    def _run(self, session: Any, feeds: Feeds) -> Outputs:
        names = [value.name for value in self.outputs]
        results = session.run(names, dict(feeds))
        return {name: np.asarray(array) for name, array in zip(names, results, strict=True)}

    def _run_with_explicit_pads(self, feeds: Feeds) -> Outputs:
        try:
            return self._run(self._session_of(self._padded(feeds).SerializeToString()), feeds)
        except _refusals() as problem:
            raise self._failed("could not run the model", problem) from problem

    def _open(self) -> Any:
        from mnnconvert.verify.onnx_saturation import may_saturate

        _require_onnxruntime()
        exact = may_saturate(self.path)
        try:
            return self._session_of(self._model().SerializeToString() if exact else str(self.path))
        except _refusals() as problem:
            if exact or "same node name" not in str(problem):
                raise self._failed("could not open the model", problem) from problem
        try:
            return self._session_of(self._model().SerializeToString())
        except _refusals() as problem:
            raise self._failed("could not open the model", problem) from problem

    def _model(self) -> onnx.ModelProto:
        """The file with unique node names and exact products; external tensors stay references that are followed."""
        import onnx
        from google.protobuf.message import DecodeError

        from mnnconvert.verify.onnx_repair import with_unique_node_names
        from mnnconvert.verify.onnx_saturation import with_unsigned_factors

        try:
            model = with_unique_node_names(onnx.load(str(self.path), load_external_data=False))
        except DecodeError as problem:
            raise self._failed("could not open the model", problem) from problem
        moved = with_unsigned_factors(model)
        if moved:
            kinds = ", ".join(dict.fromkeys(moved))
            self.notes = [f"{self.name} ran {kinds} with its signed operand made unsigned, as mixed sums may saturate"]
        return model

    def _session_of(self, source: str | bytes) -> Any:
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # it would send usage events, and keep them under ~/.cache
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        if not self._optimize:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        for name, value in self._constants.items():
            options.add_initializer(name, value)
        if self._constants:  # which would copy them
            options.add_session_config_entry("session.disable_prepacking", "1")
        if isinstance(source, bytes):
            folder = str(self.path.resolve().parent)
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
        return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])

    def _describe(self, value: Any) -> TensorInfo:
        dtype = _dtype_of(value.type)
        if dtype is None:
            raise ConversionError.of(
                "source-engine-failed",
                f"'{value.name}' is a {value.type}; only tensors of numbers can be fed and compared.",
                engine=self.name,
                file=self.path,
                hint="Convert with --verify never, or cut the model so that its inputs and outputs are tensors.",
            )
        return TensorInfo(value.name, dtype, tuple(value.shape))

    def _failed(self, what: str, problem: Exception) -> MnnConvertError:
        return ConversionError.of(
            "source-engine-failed",
            f"onnxruntime {what}: {_short(problem)}",
            engine=self.name,
            file=self.path,
            hint="Check that the source model runs by itself; --inputs gives it inputs that it accepts.",
        )


def _may_be_sizes(info: TensorInfo) -> bool:
    return info.dtype is not None and (
        info.dtype.kind in "iu" or (info.dtype.kind == "f" and len(info.shape or ()) == 1)
    )


def _bytes_of(tensor: onnx.TensorProto) -> int:
    import onnx

    itemsize: int = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    return int(math.prod(tensor.dims)) * itemsize


_NUMPY_NAMES = {"float": "float32", "double": "float64", "float8e4m3fn": "float8_e4m3fn", "float8e5m2": "float8_e5m2"}


def _dtype_of(onnx_type: str) -> np.dtype | None:
    """The element type of onnxruntime's "tensor(float)"; None for sequences, maps and types that numpy lacks."""
    import ml_dtypes

    if not onnx_type.startswith("tensor("):
        return None
    element = onnx_type[len("tensor(") : -1]
    element = _NUMPY_NAMES.get(element, element)
    if element == "string":
        return np.dtype(object)
    scalar: Any = getattr(ml_dtypes, element, None) or np.sctypeDict.get(element)
    return None if scalar is None else np.dtype(scalar)


def _require_onnxruntime() -> None:
    if not OnnxRuntimeEngine.available():
        raise ConversionError.of(
            "source-engine-missing",
            "onnxruntime is not installed, so the source model cannot be run.",
            hint="pip install 'mnnconvert[verify]', or convert with --verify never.",
        )


def _refusals() -> tuple[type[Exception], ...]:
    """What onnxruntime raises: its own exceptions have no common base, and wrong feeds give Python's."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    own = [value for value in vars(state).values() if isinstance(value, type) and issubclass(value, Exception)]
    return (*own, RuntimeError, ValueError, TypeError)


def _short(problem: Exception) -> str:
    """The message without onnxruntime's code prefix, on one line of bearable length."""
    text = " ".join(str(problem).split())
    text = text.rpartition("[ONNXRuntimeError] : ")[2]
    return text if len(text) <= 400 else text[:397] + "..."
