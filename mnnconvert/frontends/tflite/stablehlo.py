"""Import rules of the StableHLO operators that TFLite files may hold, after the specification of StableHLO."""

from __future__ import annotations

import numpy as np

from mnnconvert.frontends.common.compose import apply, calc, cast, choose, narrowed, reshape, widened
from mnnconvert.frontends.common.moves import permuted, reshaped
from mnnconvert.frontends.common.nodes import FIX_SIZES, known_rank
from mnnconvert.frontends.tflite.control import subgraph
from mnnconvert.frontends.tflite.elementwise import convert
from mnnconvert.frontends.tflite.node import TfliteNode
from mnnconvert.frontends.tflite.registry import tflite_op
from mnnconvert.frontends.tflite.scatter import dynamic_update_slice
from mnnconvert.frontends.tflite.types import graph_type
from mnnconvert.ir import F32, Builder, Value
from mnnconvert.ops.arrange import BroadcastTo, Concat
from mnnconvert.ops.matmul import MatMul
from mnnconvert.ops.padding import Padding
from mnnconvert.ops.shape import ShapeOf
from mnnconvert.ops.slicing import SliceTf, StridedSlice

UNARY = {
    "ABS": "ABS", "COSINE": "COS", "EXPONENTIAL": "EXP", "FLOOR": "FLOOR", "LOG": "LOG", "LOGISTIC": "SIGMOID",
    "NEGATE": "NEG", "RSQRT": "RSQRT", "TANH": "TANH",
}  # fmt: skip
BINARY = {
    "ADD": "ADD", "SUBTRACT": "SUB", "MULTIPLY": "MUL", "DIVIDE": "REALDIV", "MAXIMUM": "MAXIMUM",
    "MINIMUM": "MINIMUM", "POWER": "POW",
}  # fmt: skip
COMPARISONS = {
    "STABLEHLO_COMPARISON_DIRECTION_EQ": "EQUAL", "STABLEHLO_COMPARISON_DIRECTION_NE": "NOTEQUAL",
    "STABLEHLO_COMPARISON_DIRECTION_GE": "GREATER_EQUAL", "STABLEHLO_COMPARISON_DIRECTION_GT": "GREATER",
    "STABLEHLO_COMPARISON_DIRECTION_LE": "LESS_EQUAL", "STABLEHLO_COMPARISON_DIRECTION_LT": "LESS",
}  # fmt: skip
LOGIC = {"AND": ("MUL", "BITWISE_AND"), "OR": ("LOGICALOR", "BITWISE_OR")}  # on truth, and on bits


def _names(table: dict[str, object]) -> list[str]:
    return [f"STABLEHLO_{name}" for name in table]


def _kind(n: TfliteNode) -> str:
    return n.op.removeprefix("STABLEHLO_")


@tflite_op(*_names(dict(UNARY)))
def unary(b: Builder, n: TfliteNode) -> Value:
    x = n.input(0)
    return narrowed(b, apply(b, UNARY[_kind(n)], widened(b, x)), x.dtype, n.source(0).type)


@tflite_op("STABLEHLO_CBRT")
def cubic_root(b: Builder, n: TfliteNode) -> Value:
    x = n.input(0)
    return calc(b, "MUL", apply(b, "SIGN", x), calc(b, "POW", apply(b, "ABS", x), 1 / 3))


@tflite_op(*_names(dict(BINARY)))
def binary(b: Builder, n: TfliteNode) -> Value:
    x, y = n.input(0), n.input(1)
    return narrowed(b, calc(b, BINARY[_kind(n)], widened(b, x), widened(b, y)), x.dtype, n.source(0).type)


@tflite_op("STABLEHLO_REMAINDER")
def remainder(b: Builder, n: TfliteNode) -> Value:
    """With the sign of the dividend. On integers MNN's two names are exchanged."""
    x, y = n.input(0), n.input(1)
    return cast(b, calc(b, "MOD" if x.dtype == F32 else "FLOORMOD", widened(b, x), widened(b, y)), x.dtype)


@tflite_op(*_names(dict(LOGIC)))
def logic(b: Builder, n: TfliteNode) -> Value:
    x, y = n.input(0), n.input(1)
    function = LOGIC[_kind(n)][n.source(0).type != "bool"]
    return cast(b, calc(b, function, widened(b, x), widened(b, y)), x.dtype)


@tflite_op("STABLEHLO_SHIFT_LEFT")
def shift_left(b: Builder, n: TfliteNode) -> Value:
    x = n.input(0)
    y = calc(b, "LEFTSHIFT", widened(b, x), widened(b, n.input(1)))
    return narrowed(b, y, x.dtype, n.source(0).type)


@tflite_op("STABLEHLO_COMPARE")
def compare(b: Builder, n: TfliteNode) -> Value:
    direction = n.choice("ComparisonDirection", "StablehloComparisonDirection", "STABLEHLO_COMPARISON_DIRECTION_EQ")
    return calc(b, COMPARISONS[direction], widened(b, n.input(0)), widened(b, n.input(1)))


@tflite_op("STABLEHLO_SELECT")
def select(b: Builder, n: TfliteNode) -> Value:
    return choose(b, n.input(0), n.input(1), n.input(2), n.input(1))


@tflite_op("STABLEHLO_CLAMP")
def clamp(b: Builder, n: TfliteNode) -> Value:
    low, x, high = (widened(b, n.input(i)) for i in range(3))
    return cast(b, calc(b, "MINIMUM", calc(b, "MAXIMUM", x, low), high), n.input(1).dtype)


tflite_op("STABLEHLO_CONVERT", limits="not to and from complex numbers and strings")(convert)
tflite_op("STABLEHLO_DYNAMIC_UPDATE_SLICE", moves=True, limits="scalar starts as one vector only")(dynamic_update_slice)


def _result_shape(n: TfliteNode) -> tuple[int, ...]:
    shape = n.result().shape
    if shape is None or min(shape, default=0) < 0:
        raise n.refuse(f"{n.op} needs the sizes of its result", hint=FIX_SIZES)
    return shape


@tflite_op("STABLEHLO_RESHAPE", moves=True, limits="known sizes of the result")
def reshape_to_result(b: Builder, n: TfliteNode) -> Value:
    return reshaped(b, n.input(0), _result_shape(n))


@tflite_op("STABLEHLO_BROADCAST_IN_DIM", moves=True, limits="known sizes of the result")
def broadcast_in_dim(b: Builder, n: TfliteNode) -> Value:
    """Axis i of the operand is axis `dims[i]` of the result."""
    x, dims, shape = n.input(0), n.option_ints("BroadcastDimensions"), _result_shape(n)
    sizes = [d for d in x.shape or () if isinstance(d, int)]
    if len(dims) != known_rank(n, x) or len(sizes) != len(dims):
        raise n.refuse(f"{n.op} of {len(sizes)} known sizes along the axes {list(dims)}")
    order = sorted(range(len(dims)), key=lambda i: dims[i])
    spread = [1] * len(shape)
    for size, axis in zip(sizes, dims, strict=True):
        spread[axis] = size
    return b.add(BroadcastTo(), reshape(b, permuted(b, x, order), spread), b.ints(shape))


@tflite_op("STABLEHLO_TRANSPOSE", moves=True)
def transpose(b: Builder, n: TfliteNode) -> Value:
    return permuted(b, n.input(0), n.option_ints("Permutation"))


@tflite_op("STABLEHLO_SLICE", moves=True)
def slice_(b: Builder, n: TfliteNode) -> Value:
    start, limit, step = (n.option_ints(name) for name in ("StartIndices", "LimitIndices", "Strides"))
    return b.add(StridedSlice(), n.input(0), *(b.ints(v) for v in (start, limit, range(len(start)), step)))


@tflite_op("STABLEHLO_DYNAMIC_SLICE", moves=True)
def dynamic_slice(b: Builder, n: TfliteNode) -> Value:
    """From a start of one scalar for each axis, moved so that all of the slice lies inside."""
    x, sizes = n.input(0), n.option_ints("SliceSizes")
    starts = [reshape(b, n.input(i), (1,)) for i in range(1, n.input_count)]
    start = b.add(Concat(0), *starts) if len(starts) > 1 else starts[0]
    most = calc(b, "SUB", b.add(ShapeOf(), x), b.ints(sizes))
    return b.add(SliceTf(), x, calc(b, "MAXIMUM", calc(b, "MINIMUM", start, most), 0), b.ints(sizes))


@tflite_op("STABLEHLO_CONCATENATE", moves=True)
def concatenate(b: Builder, n: TfliteNode) -> Value:
    parts = n.inputs
    return b.add(Concat(int(n.option("Dimension", 0))), *parts) if len(parts) > 1 else parts[0]


@tflite_op("STABLEHLO_IOTA", limits="known sizes of the result")
def iota(b: Builder, n: TfliteNode) -> Value:
    """0, 1, 2, ... along an axis."""
    shape, axis = _result_shape(n), int(n.option("IotaDimension", 0))
    line = np.arange(shape[axis]).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return b.add(BroadcastTo(), b.constant(line.astype(graph_type(n.result()))), b.ints(shape))


@tflite_op("STABLEHLO_PAD", moves=True, limits="no padding between elements")
def pad(b: Builder, n: TfliteNode) -> Value:
    """Negative amounts cut."""
    low, high = n.option_ints("EdgePaddingLow"), n.option_ints("EdgePaddingHigh")
    if any(n.option_ints("InteriorPadding")):
        raise n.refuse(f"{n.op} with padding between elements is not supported")
    amounts = [amount for pair in zip(low, high, strict=True) for amount in pair]
    return b.add(Padding(), n.input(0), b.ints(amounts), n.input(1))


@tflite_op("STABLEHLO_DOT_GENERAL")
def dot_general(b: Builder, n: TfliteNode) -> Value:
    """Both operands as [batches, rows, summed], and the sizes that the standard gives the result."""
    x, y = n.input(0), n.input(1)
    sides = [
        _factored(b, n, v, n.option_ints(f"{side}BatchingDimensions"), n.option_ints(f"{side}ContractingDimensions"))
        for v, side in ((x, "Lhs"), (y, "Rhs"))
    ]
    (left, batch, rows), (right, _, columns) = sides
    return reshape(b, b.add(MatMul(False, True), left, right), (*batch, *rows, *columns))


def _factored(
    b: Builder, n: TfliteNode, x: Value, batch: tuple[int, ...], summed: tuple[int, ...]
) -> tuple[Value, list[int], list[int]]:
    """An operand as [batches, rows, summed], with the sizes that make up the batches and the rows."""
    sizes = [d for d in x.shape or () if isinstance(d, int)]
    if len(sizes) != known_rank(n, x):
        raise n.refuse(f"{n.op} needs the sizes of its operands", hint=FIX_SIZES)
    rows = [i for i in range(len(sizes)) if i not in (*batch, *summed)]
    groups = [[sizes[i] for i in group] for group in (batch, rows, summed)]
    made = permuted(b, x, [*batch, *rows, *summed])
    return reshape(b, made, [int(np.prod(g, dtype=np.int64)) for g in groups]), groups[0], groups[1]


@tflite_op("STABLEHLO_COMPOSITE")
def composite(b: Builder, n: TfliteNode) -> tuple[Value, ...]:
    """A composite is what its decomposition computes."""
    return tuple(n.scope.inner(b, subgraph(n, "DecompositionSubgraphIndex")).run_graph(n.inputs))
