"""Import rules of quantisation: constants keep their integers, activations are rounded by ordinary arithmetic.

A quantised activation is a float32 value that holds whole numbers; it becomes an 8-bit integer where it leaves the
graph. So everything between a QuantizeLinear and its DequantizeLinear runs on types that the runtime computes with.
"""

from __future__ import annotations

import numpy as np

from mnnconvert.frontends.common.coded_weights import weight
from mnnconvert.frontends.common.compose import apply, calc, cast, choose
from mnnconvert.frontends.common.moves import clip, reshaped
from mnnconvert.frontends.common.narrow import FLOATS, rounded, to_narrow_float
from mnnconvert.frontends.onnx.node import OnnxNode
from mnnconvert.frontends.onnx.registry import onnx_op
from mnnconvert.frontends.onnx.tensors import NAMES
from mnnconvert.ir import F32, I8, I32, U8, ArrayTensor, Builder, Dim, Value
from mnnconvert.ir.types import normal_axis
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.reduction import Reduction

RANGES = {
    "uint8": (0, 255), "int8": (-128, 127), "uint16": (0, 65535), "int16": (-32768, 32767), "uint4": (0, 15),
    "int4": (-8, 7), "uint2": (0, 3), "int2": (-2, 1),
}  # fmt: skip


def saturated(b: Builder, x: Value, zero: Value | None, kind: str) -> Value:
    """Rounded, moved by the zero point and limited to the range of an integer or narrow float type; still float32."""
    if kind in FLOATS:
        return to_narrow_float(b, x if zero is None else calc(b, "ADD", x, zero), kind, True)
    whole = rounded(b, x)
    low, high = RANGES[kind]
    return clip(b, whole if zero is None else calc(b, "ADD", whole, zero), low, high)


def leaving(b: Builder, n: OnnxNode, x: Value, kind: str, index: int = 0) -> Value:
    """Whole numbers in the integer type of the source where they leave the graph, else as they are."""
    name = n.proto.output[index]
    inner = n.scope.parent is not None
    if not inner and all(o.name != name for o in n.scope.importer.model.graph.output):
        return x
    if kind in FLOATS:
        return x
    return cast(b, x, {"uint8": U8, "uint4": U8, "uint2": U8, "int8": I8, "int4": I8, "int2": I8}.get(kind, I32))


class Scheme:
    """Scale and zero point of a node's operand: one number, one per slice along an axis, or one per block."""

    def __init__(self, n: OnnxNode, rank: int | None, scale: int = 1, zero: int = 2):
        self.n, self.rank, self.indices = n, rank, (scale, zero)
        self.axis, self.block = int(n.attr("axis", 1)), int(n.attr("block_size", 0))

    def operands(self, b: Builder, x: Value) -> tuple[Value, Value | None]:
        """Both as float32 values that broadcast against `x`."""
        scale, zero = self.indices
        return self._spread(b, x, scale), self._spread(b, x, zero) if self.n.has(zero) else None

    def _spread(self, b: Builder, x: Value, index: int) -> Value:
        value = cast(b, self.n.input(index), F32)
        if value.rank == 0:
            return value
        if value.shape == (1,) and not self.block:
            return reshaped(b, value, [])
        if self.rank is None:
            raise self.n.refuse(f"{self.n.op_type} along an axis needs an operand of known rank")
        axis = normal_axis(self.axis, self.rank)
        if value.rank == 1 and not self.block:
            return reshaped(b, value, [-1 if i == axis else 1 for i in range(self.rank)])
        return self._blocks(b, x, index, axis)

    def _blocks(self, b: Builder, x: Value, index: int, axis: int) -> Value:
        values, size = self.n.constant(index), x.shape[axis] if x.shape else None
        if values is None:
            return self._run_time_blocks(b, size, index, axis)
        if not isinstance(size, int):
            raise self.n.refuse(f"blocks of {self.n.op_type} need a known size of axis {axis}")
        block = self.block or -(-size // values.shape[axis])
        self.n.limited(*values.shape, block)
        spread = np.repeat(np.asarray(values).astype(F32), block, axis)
        return b.floats(spread.take(np.arange(size), axis))

    def _run_time_blocks(self, b: Builder, size: Dim, index: int, axis: int) -> Value:
        """Every element picks the value of its block."""
        value = cast(b, self.n.input(index), F32)
        count = value.shape[axis] if value.shape else None
        if not isinstance(size, int) or not isinstance(count, int):
            raise self.n.refuse(f"blocks of {self.n.op_type} need a known size of axis {axis}")
        block = self.block or -(-size // count)
        return b.add(GatherV2(), value, b.ints(np.arange(size) // block), b.ints(axis))


def integer_kind(n: OnnxNode, zero: int, default: str = "uint8") -> str:
    """The type of few bits that a quantising node writes: that of the zero point, or of `output_dtype`."""
    kind = n.source_type(zero) if n.has(zero) else NAMES.get(int(n.attr("output_dtype", 0)), default)
    kind = default if kind == "float32" else kind
    if kind not in RANGES and kind not in FLOATS:
        raise n.refuse(f"{n.op_type} to {kind} is not supported", reference="unsupported-type")
    return kind


@onnx_op("QuantizeLinear", limits="blocks need a known size")
@onnx_op("QuantizeLinear", domain="com.microsoft")
def quantize_linear(b: Builder, n: OnnxNode) -> Value:
    """clip(round(x / scale) + zero), halves to even."""
    x = cast(b, n.input(0), F32)
    kind = integer_kind(n, 2)
    scale, zero = Scheme(n, x.rank).operands(b, x)
    if kind in FLOATS and not n.attr("saturate", 1):
        moved = calc(b, "REALDIV", x, scale)
        return to_narrow_float(b, moved if zero is None else calc(b, "ADD", moved, zero), kind, False)
    return leaving(b, n, saturated(b, calc(b, "REALDIV", x, scale), zero, kind), kind)


@onnx_op("DequantizeLinear")
@onnx_op("DequantizeLinear", domain="com.microsoft")
def dequantize_linear(b: Builder, n: OnnxNode) -> Value:
    """(x - zero) * scale; a constant x becomes a weight that keeps its integers."""
    codes, scale = n.constant(0), n.constant(1)
    zero = n.constant(2) if n.has(2) else np.zeros((), F32)
    if codes is not None and scale is not None and zero is not None:
        return _constant(b, n, codes, scale, zero)
    x = cast(b, n.input(0), F32)
    s, z = Scheme(n, x.rank).operands(b, x)
    return calc(b, "MUL", x if z is None else calc(b, "SUB", x, z), s)


def _outputs_are_columns(n: OnnxNode) -> bool:
    """Whether the matrix that this node makes is read as [inputs, outputs]: by MatMul, or by Gemm without transB."""
    name = n.proto.output[0]
    for node in n.scope.importer.model.graph.node:
        if name in node.input:
            flags = {a.name: a.i for a in node.attribute}
            return bool(node.op_type == "MatMul" or (node.op_type == "Gemm" and not flags.get("transB")))
    return False


def _constant(b: Builder, n: OnnxNode, codes: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> Value:
    scale, zero = (np.asarray(v).astype(F32) for v in (scale, zero))
    zero = np.broadcast_to(zero.reshape(()), scale.shape) if zero.size == 1 else zero
    axis = int(n.attr("axis", 1))
    axis += codes.ndim if axis < 0 else 0
    kind = n.source_type(0)
    if kind == "float32" and n.has(2):  # codes that were computed when the model was read
        kind = n.source_type(2)
    tensor = weight(codes, kind, scale, zero, axis, _outputs_are_columns(n))
    if tensor is None:
        spread = _spread(codes.shape, scale, axis), _spread(codes.shape, zero, axis)
        tensor = ArrayTensor(((codes.astype(F32) - spread[1]) * spread[0]).astype(F32))
    return b.constant(tensor)


def _spread(shape: tuple[int, ...], values: np.ndarray, axis: int) -> np.ndarray:
    """Scales or zero points so that they broadcast against codes of this shape."""
    if values.size == 1:
        return values.reshape(())
    if values.ndim == 1 and (len(shape) != 1 or values.shape == shape):
        return values.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    repeated = np.repeat(values, -(-shape[axis] // values.shape[axis]), axis)
    return repeated.take(np.arange(shape[axis]), axis)


def dynamic_scheme(b: Builder, x: Value) -> tuple[Value, Value]:
    """Scale and zero point (float32 scalars) for uint8 codes that reach from min(x, 0) to max(x, 0)."""
    high = calc(b, "MAXIMUM", b.add(Reduction("MAXIMUM"), x), 0.0)
    low = calc(b, "MINIMUM", b.add(Reduction("MINIMUM"), x), 0.0)
    span = calc(b, "SUB", high, low)
    scale = choose(b, calc(b, "EQUAL", span, 0.0), 1.0, calc(b, "REALDIV", span, 255.0), span)
    return scale, saturated(b, calc(b, "REALDIV", apply(b, "NEG", low), scale), None, "uint8")


@onnx_op("DynamicQuantizeLinear")
def dynamic_quantize_linear(b: Builder, n: OnnxNode) -> tuple[Value, Value, Value]:
    """uint8 codes over the range of the data, which is made to contain 0, with their scale and zero point."""
    x = n.input(0)
    scale, zero = dynamic_scheme(b, x)
    codes = saturated(b, calc(b, "REALDIV", x, scale), zero, "uint8")
    return leaving(b, n, codes, "uint8"), scale, leaving(b, n, zero, "uint8", 2)


def dequantized(b: Builder, x: Value, scale: Value, zero: Value | None) -> Value:
    """(x - zero) * scale in float32."""
    whole = cast(b, x, F32)
    return calc(b, "MUL", whole if zero is None else calc(b, "SUB", whole, cast(b, zero, F32)), scale)


def quantized(b: Builder, n: OnnxNode, y: Value, scale: int, zero: int) -> Value:
    """A float result as codes with the scale and zero point of the operands `scale` and `zero`."""
    kind = integer_kind(n, zero)
    z = reshaped(b, cast(b, n.input(zero), F32), []) if n.has(zero) else None
    return leaving(b, n, saturated(b, calc(b, "REALDIV", y, reshaped(b, n.input(scale), [])), z, kind), kind)
