"""A TFLite file as plain records. Nothing in the file is believed: lengths, indices and sizes are checked here, once.

The generated accessors of the `tflite` package read wherever an offset points; what they stumble over becomes one
`bad-tflite-file`.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from mnnconvert.errors import ConversionError

BAD = "bad-tflite-file"
MISTAKES = (
    struct.error,
    ValueError,
    LookupError,
    TypeError,
    OverflowError,
    AttributeError,
)  # of reading bad bytes
STORED = {
    "float32": "<f4", "float16": "<f2", "float64": "<f8", "int8": "i1", "uint8": "u1", "int16": "<i2", "uint16": "<u2",
    "int32": "<i4", "uint32": "<u4", "int64": "<i8", "uint64": "<u8", "bool": "?", "complex64": "<c8",
    "complex128": "<c16",
}  # fmt: skip
ABSENT = -1  # index of an operand that is left out


@dataclass(frozen=True)
class Sparsity:
    """How the elements of a sparse tensor are stored (TACO: dense or compressed levels, then blocks)."""

    order: tuple[int, ...]
    blocks: tuple[int, ...]
    levels: tuple[tuple[int, np.ndarray | None, np.ndarray | None], ...]  # dense size, or segments and indices


@dataclass(frozen=True)
class SourceTensor:
    """A tensor of a subgraph. An open size is -1. `scale` and `zero` are empty where it is not quantized.

    `data` are the bytes of a constant, a view of the file; None for what is computed.
    """

    name: str
    type: str
    shape: tuple[int, ...] | None
    scale: np.ndarray
    zero: np.ndarray
    axis: int
    data: np.ndarray | None
    variable: bool = False
    sparsity: Sparsity | None = None

    @property
    def quantized(self) -> bool:
        """Whether its codes stand for other numbers. Wider integers do only as a bias (`compose.bias_of`)."""
        return self.scale.size > 0 and self.type in ("int4", "int8", "uint8", "int16")

    def array(self) -> np.ndarray:
        """The stored numbers in their own type; integers of 4 bits as int8."""
        if self.data is None or self.shape is None:
            raise ConversionError.of(BAD, f"the tensor '{self.name}' holds no data")
        if self.type == "int4":
            return _unpacked(self.data, self.shape, self.name)
        kind = np.dtype("<u2") if self.type == "bfloat16" else np.dtype(STORED.get(self.type, "u1"))
        if self.type not in STORED and self.type != "bfloat16":
            raise ConversionError.of("unsupported-type", f"'{self.name}' is a tensor of {self.type}")
        if self.sparsity is not None:
            with reading(f"the sparse tensor '{self.name}' is damaged"):
                return _dense(self.data.view(kind), self.sparsity, self.shape, self.name)
        if self.data.nbytes != kind.itemsize * int(np.prod(self.shape, dtype=object)):
            raise ConversionError.of(
                BAD, f"the tensor '{self.name}' of {list(self.shape)} {self.type} holds {self.data.nbytes} bytes"
            )
        array = self.data.view(kind).reshape(self.shape)
        return (array.astype("<u4") << 16).view("<f4") if self.type == "bfloat16" else array


@dataclass(frozen=True)
class SourceOperator:
    """One operator: its name in capitals (that of a custom op as it is), operands and results by index, options."""

    name: str
    custom: bool
    version: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Any
    custom_options: bytes
    intermediates: tuple[int, ...] = ()

    def option(self, name: str, default: Any = 0) -> Any:
        """An option by the name of its accessor; `default` where the operator has no options."""
        accessor = getattr(self.options, name, None)
        if accessor is None:
            return default
        with reading(f"the option {name} of {self.name} cannot be read"):
            return accessor()


@dataclass(frozen=True)
class SourceGraph:
    """A subgraph."""

    name: str
    tensors: list[SourceTensor]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operators: list[SourceOperator]


@dataclass(frozen=True)
class Signature:
    """A way to call the model: the names that `SignatureRunner` takes and gives, by tensor index."""

    key: str
    graph: int
    inputs: dict[int, str]
    outputs: dict[int, str]


@dataclass(frozen=True)
class SourceModel:
    """A whole file."""

    graphs: list[SourceGraph]
    signatures: list[Signature] = field(default_factory=list)
    description: str = ""

    @property
    def signature(self) -> Signature | None:
        """The signature that calls the first subgraph."""
        calls = [s for s in self.signatures if s.graph == 0]
        return next((s for s in calls if s.key == "serving_default"), calls[0] if calls else None)

    def input_names(self) -> list[str]:
        """Names of the inputs: those of the signature, or of the tensors where there is none."""
        return self._names(self.graphs[0].inputs, self.signature.inputs if self.signature else {})

    def output_names(self) -> list[str]:
        return self._names(self.graphs[0].outputs, self.signature.outputs if self.signature else {})

    def _names(self, indices: tuple[int, ...], known: dict[int, str]) -> list[str]:
        names: list[str] = []
        for place, index in enumerate(indices):
            name = known.get(index) or self.graphs[0].tensors[index].name or f"tensor_{index}"
            while name in names:
                name = f"{name}_{place}"
            names.append(name)
        return names


def load(path: Path) -> SourceModel:
    """Read a file. Raises `missing-file`, `unreadable-file`, `bad-tflite-file`, or `missing-extra`."""
    require_tflite()
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
    except FileNotFoundError as error:
        raise ConversionError.of("missing-file", f"'{path}' does not exist", file=path) from error
    except OSError as error:
        raise ConversionError.of("unreadable-file", f"cannot read '{path}': {error.strerror}", file=path) from error
    return parse(data, str(path))


def parse(data: Any, name: str = "the model") -> SourceModel:
    """The records of a file in memory (bytes or a mapped file)."""
    if len(data) < 8 or bytes(data[4:8]) != b"TFL3":
        raise ConversionError.of(
            BAD, f"'{name}' is not a TFLite model: it does not start with the mark TFL3", file=name
        )
    with reading(f"'{name}' is not a TFLite model, or damaged"):
        return _Reader(data).model()


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn what accessors raise on bytes that make no sense into `bad-tflite-file`."""
    try:
        yield
    except ConversionError:
        raise
    except MISTAKES as error:
        raise ConversionError.of(BAD, f"{what}: {error}") from error


def require_tflite() -> None:
    """Refuse with the extra to install where the schema of TFLite is not there."""
    if find_spec("tflite") is None:
        raise ConversionError.of(
            "missing-extra", "reading TFLite models needs the package tflite", hint="pip install 'mnnconvert[tflite]'"
        )


@cache
def enum_names(enum: str) -> dict[int, str]:
    """Number -> member name of an enum of the schema."""
    import tflite

    members = vars(getattr(tflite, enum))
    return {value: name for name, value in members.items() if isinstance(value, int) and not name.startswith("_")}


class _Reader:
    """Walks the tables of one file. A file has no more tables than bytes, whatever its lengths say."""

    def __init__(self, data: Any):
        import tflite

        self.data = data
        self.left = len(data)
        self.root = tflite.Model.GetRootAs(data, 0)
        self.tables: Any = tflite

    def model(self) -> SourceModel:
        root = self.root
        self.codes = [self._code(c) for c in self._all(root.OperatorCodesLength, root.OperatorCodes)]
        self.buffers = [self._buffer(b) for b in self._all(root.BuffersLength, root.Buffers)]
        graphs = [self._graph(g) for g in self._all(root.SubgraphsLength, root.Subgraphs)]
        if not graphs:
            raise ConversionError.of(BAD, "the model has no subgraph")
        signatures = [self._signature(s, graphs) for s in self._all(root.SignatureDefsLength, root.SignatureDefs)]
        return SourceModel(graphs, signatures, _text(root.Description()))

    def _all(self, length: Callable[[], int], item: Callable[[int], Any]) -> list[Any]:
        count = length()
        self.left -= 4 * count
        if self.left < 0:
            raise ValueError(f"a list of {count} entries")
        return [item(i) for i in range(count)]

    def _ints(self, table: Any, name: str) -> tuple[int, ...]:
        count = getattr(table, f"{name}Length")()
        if not count:
            return ()
        self.left -= count
        if self.left < 0:
            raise ValueError(f"a list of {count} numbers")
        return tuple(int(v) for v in getattr(table, f"{name}AsNumpy")())

    def _code(self, code: Any) -> tuple[str, bool, int]:
        number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
        known = enum_names("BuiltinOperator").get(number)
        custom = known == "CUSTOM"
        name = _text(code.CustomCode()) if custom else known or f"operator {number}"
        return name, custom, int(code.Version())

    def _buffer(self, buffer: Any) -> np.ndarray | None:
        offset = int(buffer.Offset())
        if offset > 1:
            size = int(buffer.Size())
            if offset + size > len(self.data):
                raise ValueError(f"a buffer of {size} bytes at {offset}")
            return np.frombuffer(self.data, np.uint8, size, offset)
        return buffer.DataAsNumpy() if buffer.DataLength() else None

    def _graph(self, graph: Any) -> SourceGraph:
        tensors = [self._tensor(t) for t in self._all(graph.TensorsLength, graph.Tensors)]
        inputs, outputs = (self._places(graph, name, len(tensors), False) for name in ("Inputs", "Outputs"))
        operators = [self._operator(o, len(tensors)) for o in self._all(graph.OperatorsLength, graph.Operators)]
        return SourceGraph(_text(graph.Name()), tensors, inputs, outputs, operators)

    def _places(self, table: Any, name: str, tensors: int, optional: bool) -> tuple[int, ...]:
        places = self._ints(table, name)
        for place in places:
            if not (0 <= place < tensors or (optional and place == ABSENT)):
                raise ConversionError.of(BAD, f"there is no tensor {place} among {tensors}")
        return places

    def _operator(self, operator: Any, tensors: int) -> SourceOperator:
        index = int(operator.OpcodeIndex())
        if not 0 <= index < len(self.codes):
            raise ConversionError.of(BAD, f"there is no operator code {index} among {len(self.codes)}")
        name, custom, version = self.codes[index]
        raw = operator.CustomOptionsAsNumpy() if operator.CustomOptionsLength() else b""
        return SourceOperator(
            name, custom, version,
            self._places(operator, "Inputs", tensors, True), self._places(operator, "Outputs", tensors, False),
            self._options(operator), bytes(raw), self._places(operator, "Intermediates", tensors, True),
        )  # fmt: skip

    def _options(self, operator: Any) -> Any:
        """The options table of an operator, whichever of the two unions holds it; None without one."""
        for union in ("BuiltinOptions", "BuiltinOptions2"):
            kind = enum_names(union).get(getattr(operator, f"{union}Type")(), "NONE")
            table = getattr(operator, union)()
            if kind != "NONE" and table is not None and hasattr(self.tables, kind):
                options = getattr(self.tables, kind)()
                options.Init(table.Bytes, table.Pos)
                return options
        return None

    def _tensor(self, tensor: Any) -> SourceTensor:
        index = int(tensor.Buffer())
        if not 0 <= index < max(1, len(self.buffers)):
            raise ConversionError.of(BAD, f"there is no buffer {index} among {len(self.buffers)}")
        shape = self._ints(tensor, "ShapeSignature") or self._ints(tensor, "Shape")
        if any(size < -1 for size in shape):
            raise ConversionError.of(BAD, f"a tensor has the sizes {list(shape)}")
        scale, zero, axis = self._quantization(tensor.Quantization())
        data = self.buffers[index] if self.buffers else None
        kind = enum_names("TensorType").get(tensor.Type(), f"type {tensor.Type()}").lower()
        if data is None and index and -1 not in shape and 0 in shape:  # a constant without elements
            data = np.empty(0, np.uint8)
        return SourceTensor(
            _text(tensor.Name()), kind, shape, scale, zero, axis, data, bool(tensor.IsVariable()),
            self._sparsity(tensor.Sparsity()),
        )  # fmt: skip

    def _quantization(self, table: Any) -> tuple[np.ndarray, np.ndarray, int]:
        none = np.empty(0, np.float32), np.empty(0, np.int64), 0
        if table is not None and table.DetailsType() > 1:  # 1 is of the model's owner
            raise ConversionError.of("unsupported-type", "the model holds tensors that are quantized in blocks")
        if table is None or not table.ScaleLength():
            return none
        self.left -= table.ScaleLength()
        scale = np.array(table.ScaleAsNumpy(), np.float32)
        zero = np.array(table.ZeroPointAsNumpy(), np.int64) if table.ZeroPointLength() else np.zeros(1, np.int64)
        if zero.size not in (1, scale.size) or not np.isfinite(scale).all():
            raise ConversionError.of(BAD, f"a tensor has {scale.size} scales and {zero.size} zero points")
        return scale, np.broadcast_to(zero, scale.shape), int(table.QuantizedDimension())

    def _sparsity(self, table: Any) -> Sparsity | None:
        if table is None or not table.DimMetadataLength():
            return None
        levels = []
        for level in self._all(table.DimMetadataLength, table.DimMetadata):
            compressed = level.Format() == 1
            parts = (
                [self._index(level, name) for name in ("ArraySegments", "ArrayIndices")] if compressed else [None] * 2
            )
            levels.append((int(level.DenseSize()), parts[0], parts[1]))
        return Sparsity(self._ints(table, "TraversalOrder"), self._ints(table, "BlockMap"), tuple(levels))

    def _index(self, level: Any, name: str) -> np.ndarray:
        kind = enum_names("SparseIndexVector").get(getattr(level, f"{name}Type")(), "NONE")
        union = getattr(level, name)()
        vector = getattr(self.tables, kind)()
        vector.Init(union.Bytes, union.Pos)
        return np.asarray(vector.ValuesAsNumpy()).astype(np.int64)

    def _signature(self, signature: Any, graphs: list[SourceGraph]) -> Signature:
        graph = int(signature.SubgraphIndex())
        if not 0 <= graph < len(graphs):
            raise ConversionError.of(BAD, f"a signature calls the subgraph {graph} of {len(graphs)}")
        maps = [
            {int(m.TensorIndex()): _text(m.Name()) for m in self._all(length, item)}
            for length, item in (
                (signature.InputsLength, signature.Inputs), (signature.OutputsLength, signature.Outputs),
            )
        ]  # fmt: skip
        return Signature(_text(signature.SignatureKey()), graph, maps[0], maps[1])


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode("utf-8", "replace")


def _unpacked(data: np.ndarray, shape: tuple[int, ...], name: str) -> np.ndarray:
    """Signed integers of 4 bits, the first of a byte in its low half."""
    count = int(np.prod(shape, dtype=object))
    if data.size != -(-count // 2):
        raise ConversionError.of(BAD, f"the tensor '{name}' of {list(shape)} int4 holds {data.size} bytes")
    halves = np.stack([data & 15, data >> 4], -1).reshape(-1)[:count].astype(np.int8)
    return np.where(halves > 7, halves - 16, halves).astype(np.int8).reshape(shape)


def _dense(values: np.ndarray, how: Sparsity, shape: tuple[int, ...], name: str) -> np.ndarray:
    """The dense form of a sparse tensor.

    The levels nest in traversal order: first the axes (those that `blocks` names in units of whole blocks), then one
    level inside the block for each of its axes. A dense level walks all its positions, a compressed one those that
    its indices list between two of its segments (F. Kjolstad et al., The Tensor Algebra Compiler, 2017).
    """
    rank = len(shape)
    positions = np.zeros((1, len(how.levels)), np.int64)
    places = np.zeros(1, np.int64)  # of a path through the levels so far, in the numbering of the next level
    for depth, (size, segments, indices) in enumerate(how.levels):
        if segments is None or indices is None:
            counts, coordinates = np.full(len(places), size), np.tile(np.arange(size), len(places))
            following = (places[:, None] * size + np.arange(size)).reshape(-1)
        else:
            starts, counts = segments[places], segments[places + 1] - segments[places]
            following = np.repeat(starts - np.cumsum(counts) + counts, counts) + np.arange(int(counts.sum()))
            coordinates = indices[following]
        positions = np.repeat(positions, counts, 0)
        positions[:, depth] = coordinates
        places = following
    inner = {axis: rank + i for i, axis in enumerate(how.blocks)}
    block = {axis: how.levels[how.order.index(level)][0] for axis, level in inner.items()}
    level_of = {axis: depth for depth, axis in enumerate(how.order)}
    index = []
    for axis in range(rank):
        at = positions[:, level_of[axis]]
        index.append(at * block[axis] + positions[:, level_of[inner[axis]]] if axis in inner else at)
    if len(values) < len(positions):
        raise ConversionError.of(BAD, f"the sparse tensor '{name}' holds {len(values)} values for {len(positions)}")
    result = np.zeros(shape, values.dtype)
    result[tuple(index)] = values[places]
    return result
