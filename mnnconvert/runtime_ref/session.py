"""Load a model and run it, with compiled kernels or with the numpy definitions of the ops."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mnnconvert.errors import ConversionError, Diagnostic, UsageError
from mnnconvert.ir import F32, I8, U8, Graph, Node, Shape, Value
from mnnconvert.ir.types import format_shape
from mnnconvert.ops.layout import Opaque
from mnnconvert.runtime_ref.cache import Caches
from mnnconvert.runtime_ref.codes import with_codes
from mnnconvert.runtime_ref.cpu.library import usable_cores
from mnnconvert.runtime_ref.reference import Recorder, ReferenceExecutor
from mnnconvert.schema.reader import read_model

Arrays = dict[str, np.ndarray]
WIDENED: dict[str, np.dtype] = {"bfloat": F32, "float": F32, "int": I8, "uint": U8}  # by how the name of a type begins


@dataclass(frozen=True)
class TensorInfo:
    """Name, element type as the source framework declares it, and shape of an input or output."""

    name: str
    dtype: np.dtype
    shape: Shape | None


@dataclass(frozen=True)
class OpTime:
    """Time and result bytes of one piece of work in a profiled run: a kernel of an op, or its numpy "reference".

    `along` names the ops that are computed together with it.
    """

    name: str
    kind: str
    seconds: float
    nbytes: int
    kernel: str = "reference"
    along: tuple[str, ...] = ()


class Executor(Protocol):
    """What computes a graph."""

    def run(
        self, graph: Graph, feeds: dict[Value, np.ndarray], wanted: Iterable[Value], record: Recorder | None = None
    ) -> dict[Value, np.ndarray]: ...


class Session:
    """A model that is ready to run.

    `backend` "cpu" runs compiled kernels on `threads` threads (0: as many as the process may use), or numpy where none
    were built; `Session.backend` tells. "reference" runs the numpy definitions. "opencl" runs OpenCL kernels, and what
    has none by its definition: `Session.fallbacks` tells, and with `strict` it is the error `no-kernel`. There `tune`
    measures which variants of kernels are the fastest, and remembers it for the device. With `precision` "fast",
    products with coded weights may round their other operand to 8 bits; "exact" computes them in float32; "half" is for
    opencl: floats lie as float16 between ops, which compute in float32.
    Ops between values with steps compute on 8-bit codes (`codes.py`); such a value is returned as the codes say.
    Sizes may differ from run to run wherever the model leaves them open. Feeds of another float or integer type are
    converted when nothing is lost. A session may be used from several threads; its runs follow one another.

    With `kv_cache` the ops that can (`Attention` with its attribute `kv_cache`) keep their keys and values: each run
    goes on where the last one ended, as when a text is written word by word, until `reset()`. A run that fails, or that
    only measures, leaves them as they were. Without, each run begins afresh.
    """

    def __init__(
        self,
        graph: Graph,
        backend: str = "cpu",
        threads: int = 0,
        precision: str = "exact",
        kv_cache: bool = False,
        tune: bool = False,
        strict: bool = False,
    ):
        _refuse_opaque(graph)
        _refuse_unmade(graph)
        coded = with_codes(graph)
        self.graph = graph = coded.graph
        self.inputs = [TensorInfo(v.name, self._declared(v.name, v), v.shape) for v in graph.inputs]
        self.outputs = [TensorInfo(name, self._declared(name, v), v.shape) for name, v in graph.outputs]
        self._values = {v.name: v for v in graph.values()} | {name: code for name, (code, _) in coded.codes.items()}
        self._steps = dict(coded.codes.values())
        self._lock = threading.RLock()
        self._caches = Caches() if kv_cache else None
        wanted = Wanted(backend, threads, precision, tune, strict)
        self._executor, self.backend = _executor(graph, wanted, self._caches)

    def _declared(self, name: str, value: Value) -> np.dtype:
        return np.dtype(self.graph.source_types.get(name, str(value.dtype)))

    def run(self, feeds: Mapping[str, Any], outputs: Sequence[str] | None = None) -> Arrays:
        """The named outputs (all by default); any intermediate value may be named. Raises `bad-input`, `run-failed`."""
        wanted = self._wanted(outputs)
        with self._lock:
            arrays = self._execute(feeds, {v for _, v in wanted})
        return {name: self._restore(name, value, arrays[value]) for name, value in wanted}

    def profile(self, feeds: Mapping[str, Any]) -> list[OpTime]:
        """Time and result bytes of every op, in order of execution."""
        times: list[OpTime] = []

        def record(nodes: Sequence[Node], kernel: str, seconds: float, nbytes: int) -> None:
            first, *along = nodes
            times.append(OpTime(first.name, first.op.kind, seconds, nbytes, kernel, tuple(n.name for n in along)))

        with self._lock:
            self._execute(feeds, self.graph.output_values, record)
        return times

    @property
    def fallbacks(self) -> dict[str, int]:
        """The ops that runs so far computed by their definition because the backend has no kernel, and how many."""
        return dict(getattr(self._executor, "fallbacks", {}))

    def reset(self) -> None:
        """Forget the keys and values of earlier runs; without `kv_cache` there are none."""
        if self._caches is not None:
            with self._lock:
                self._caches.cut({})

    def _execute(
        self, feeds: Mapping[str, Any], values: set[Value], record: Recorder | None = None
    ) -> dict[Value, np.ndarray]:
        """The values. What attentions add to their caches stays, unless the run fails or is recorded."""
        checked = self._check(feeds)
        if self._caches is None:
            return self._executor.run(self.graph, checked, values, record)
        before, keep = self._caches.lengths(), False
        try:
            arrays = self._executor.run(self.graph, checked, values, record)
            keep = record is None
        finally:
            if not keep:
                self._caches.cut(before)
        return arrays

    def _wanted(self, outputs: Sequence[str] | None) -> list[tuple[str, Value]]:
        if outputs is None:
            return self.graph.outputs
        named = dict(self._values) | dict(self.graph.outputs)
        unknown = [name for name in outputs if name not in named]
        if unknown:
            raise UsageError.of(
                "bad-input", f"the model has no value '{unknown[0]}'", outputs=", ".join(o.name for o in self.outputs)
            )
        return [(name, named[name]) for name in outputs]

    def _check(self, feeds: Mapping[str, Any]) -> dict[Value, np.ndarray]:
        names = [v.name for v in self.graph.inputs]
        problems = [f"there is no input '{name}'" for name in feeds if name not in names]
        problems += [f"the input '{name}' is missing" for name in names if name not in feeds]
        if problems:
            raise UsageError.of("bad-input", "; ".join(problems), inputs=", ".join(names))
        symbols: dict[str, int] = {}
        return {v: _convert(np.asarray(feeds[v.name]), v, symbols) for v in self.graph.inputs}

    def _restore(self, name: str, value: Value, array: np.ndarray) -> np.ndarray:
        """The output as the source declares it: a bool is a bool again, and a code what it stands for."""
        if value in self._steps:
            return self._steps[value].decode(array)
        declared = self.graph.source_types.get(name)
        return array != 0 if declared == "bool" else np.asarray(array)


def load(path: str | Path, backend: str = "cpu", **options: Any) -> Session:
    """A session for a `.mnn` file; `options` are those of `Session`."""
    return Session(read_model(Path(path)), backend, **options)


@dataclass(frozen=True)
class Wanted:
    """How a session is to compute; see `Session`."""

    backend: str
    threads: int
    precision: str
    tune: bool
    strict: bool


PRECISIONS = {"cpu": ("exact", "fast"), "reference": ("exact", "fast"), "opencl": ("exact", "fast", "half")}


def _executor(graph: Graph, wanted: Wanted, caches: Caches | None) -> tuple[Executor, str]:
    if wanted.backend not in PRECISIONS:
        what = f"there is no backend '{wanted.backend}'"
        raise UsageError.of("unsupported-backend", what, hint=", ".join(PRECISIONS))
    if wanted.precision not in PRECISIONS[wanted.backend]:
        allowed = " or ".join(PRECISIONS[wanted.backend])
        raise UsageError.of("out-of-range", f"precision is {allowed} on {wanted.backend}, not '{wanted.precision}'")
    if wanted.backend == "opencl":
        from mnnconvert.runtime_ref.opencl.device import device
        from mnnconvert.runtime_ref.opencl.executor import OpenClExecutor

        half = wanted.precision == "half"
        return OpenClExecutor(graph, device(), caches, half=half, tune=wanted.tune, strict=wanted.strict), "opencl"
    if wanted.backend == "cpu":
        from mnnconvert.runtime_ref.cpu.library import library

        kernels = library()
        if kernels is not None:
            from mnnconvert.runtime_ref.cpu.executor import CpuExecutor

            exact = wanted.precision == "exact"
            return CpuExecutor(graph, kernels, wanted.threads or usable_cores(), exact, caches), "cpu"
    return ReferenceExecutor(graph, caches), "reference"


def _refuse_opaque(graph: Graph) -> None:
    unknown = Counter(n.op.kind for g in graph.graphs() for n in g.nodes if isinstance(n.op, Opaque))
    if unknown:
        raise ConversionError(
            Diagnostic("unsupported-op", f"the executor does not know the op {kind}", {"uses": str(count)})
            for kind, count in unknown.items()
        )


def _refuse_unmade(graph: Graph) -> None:
    """A damaged file may read what nothing computes."""
    for each in graph.graphs():
        made = set(each.inputs)
        for node in each.nodes:
            missing = next((v for v in node.inputs if v not in made and v.tensor is None), None)
            if missing is not None:
                raise ConversionError.of("bad-mnn-file", f"'{node.name}' reads '{missing.name}' before it is computed")
            made.update(node.outputs)
        lost = next((name for name, v in each.outputs if v not in made and v.tensor is None), None)
        if lost is not None:
            raise ConversionError.of("bad-mnn-file", f"the output '{lost}' is never computed")


def _convert(array: np.ndarray, value: Value, symbols: dict[str, int]) -> np.ndarray:
    """A feed in the element type of the graph; UsageError where type, rank or size do not fit."""
    _check_shape(array, value, symbols)
    array = widened(array)
    if array.dtype == value.dtype:
        return array
    if array.dtype.kind not in "fiub" or (array.dtype.kind == "f") != (value.dtype.kind == "f"):
        raise UsageError.of("bad-input", f"the input '{value.name}' takes {value.dtype}, not {array.dtype}")
    with np.errstate(over="ignore"):
        converted = array.astype(value.dtype)
    if value.dtype.kind == "f" and np.isinf(converted).sum() > np.isinf(array).sum():
        raise UsageError.of("bad-input", f"the input '{value.name}' holds values that {value.dtype} cannot hold")
    if value.dtype.kind != "f" and not (converted == array).all():
        raise UsageError.of("bad-input", f"the input '{value.name}' holds values that {value.dtype} cannot hold")
    return converted


def widened(array: np.ndarray) -> np.ndarray:
    """Floats and integers of the ml_dtypes package, which numpy does not know, in types that hold all of them."""
    if array.dtype.kind != "V":
        return array
    found = [wide for prefix, wide in WIDENED.items() if array.dtype.name.startswith(prefix)]
    return array.astype(found[0]) if found else array


def _check_shape(array: np.ndarray, value: Value, symbols: dict[str, int]) -> None:
    expected = value.shape
    fits = expected is None or len(expected) == array.ndim
    for size, dim in zip(array.shape, expected or (), strict=False):
        if isinstance(dim, int):
            fits &= size == dim
        elif isinstance(dim, str):
            fits &= symbols.setdefault(dim, size) == size
    if not fits:
        known = {k: v for k, v in symbols.items() if any(d == k for d in expected or ())}
        bound = ", ".join(f"{k} = {v}" for k, v in known.items())
        raise UsageError.of(
            "bad-input",
            f"the input '{value.name}' takes {format_shape(expected)}, not {list(array.shape)}",
            sizes=bound,
        )
