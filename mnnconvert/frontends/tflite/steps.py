"""Quantized tensors: the graph computes on the numbers that their codes stand for, and rounds where TFLite does.

real = (code - zero) * scale. A result is rounded to its steps by FloatToInt8 and Int8ToFloat, and both what is rounded
and what comes out carry these steps (`Value.steps`), so that an integer engine may keep the codes instead. Unsigned
codes are signed ones moved by 128. What has no 8-bit form is rounded by ordinary arithmetic.
"""

from __future__ import annotations

import numpy as np

from mnnconvert.errors import ConversionError
from mnnconvert.frontends.common.coded_weights import weight as coded_weight
from mnnconvert.frontends.common.compose import apply, calc, cast, single
from mnnconvert.frontends.common.tensors import to_graph_type
from mnnconvert.frontends.tflite.model import BAD, SourceTensor
from mnnconvert.frontends.tflite.types import port_type
from mnnconvert.ir import F32, ArrayTensor, Builder, HalfTensor, LazyTensor, Steps, Tensor, Value
from mnnconvert.ops.activation import ReLU6
from mnnconvert.ops.quantization import FloatToInt8, Int8ToFloat
from mnnconvert.ops.shape import Permute, Reshape, Squeeze, Unsqueeze

RANGES = {"int4": (-8, 7), "int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767)}
LARGEST = float(np.finfo(np.float32).max)
MOVED = (Permute, Reshape, Squeeze, Unsqueeze)
WORTH_CODES = 1024  # elements from which a constant that is no weight keeps its codes


def steps_of(tensor: SourceTensor) -> Steps | None:
    """The 8-bit steps of a tensor with one scale; None for any other."""
    if not tensor.quantized or tensor.scale.size != 1 or tensor.type not in ("int8", "uint8"):
        return None
    moved = 128 if tensor.type == "uint8" else 0
    return Steps(float(tensor.scale[0]), float(tensor.zero[0]) - moved)


def alike(a: SourceTensor, b: SourceTensor) -> bool:
    """Whether two tensors have the same codes for the same numbers."""
    return a.type == b.type and np.array_equal(a.scale, b.scale) and np.array_equal(a.zero, b.zero)


def rounded(b: Builder, y: Value, tensor: SourceTensor) -> Value:
    """A float result on the steps of the quantized tensor that it is stored in."""
    if tensor.scale.size != 1 or tensor.type not in RANGES:
        return y
    steps = steps_of(tensor)
    if steps is None:
        return _by_arithmetic(b, y, tensor)
    _note(y, steps)
    codes = b.add(FloatToInt8((_reciprocal(tensor),), (steps.zero,), steps.low, steps.high), y)
    result = b.add(Int8ToFloat((steps.scale,), (steps.zero,)), codes)
    result.steps = steps
    return result


def _reciprocal(tensor: SourceTensor) -> float:
    """1 / scale in float32; `bad-tflite-file` where a scale is none to divide by."""
    scale = float(tensor.scale[0])
    if not scale > 1 / LARGEST:
        raise ConversionError.of(BAD, f"the tensor '{tensor.name}' is stored in steps of {scale:g}")
    return single(1 / scale)


def _note(value: Value, steps: Steps) -> None:
    """Say of a result, and of what it is only moved from, in which steps it is stored; others have theirs already.

    The runtime lends the results of pooling the steps of its operand where they have none, and would round twice.
    """
    while value.producer is not None and value.steps is None:
        value.steps = steps
        if not isinstance(value.producer.op, MOVED) or len(value.producer.inputs[0].users) > 1:
            break
        value = value.producer.inputs[0]


def _by_arithmetic(b: Builder, y: Value, tensor: SourceTensor) -> Value:
    scale, zero = float(tensor.scale[0]), int(tensor.zero[0])
    low, high = RANGES[tensor.type]
    whole = apply(b, "ROUND", calc(b, "MUL", y, _reciprocal(tensor)))
    return calc(b, "MUL", b.add(ReLU6(float(low - zero), float(high - zero)), whole), scale)


def entering(b: Builder, codes: Value, tensor: SourceTensor) -> Value:
    """The numbers that fed codes stand for."""
    scale, zero = float(tensor.scale[0]), float(tensor.zero[0])
    x = cast(b, codes, F32)
    result = calc(b, "MUL", calc(b, "SUB", x, zero) if zero else x, scale)
    result.steps = steps_of(tensor)
    return result


def leaving(b: Builder, x: Value, tensor: SourceTensor) -> Value:
    """The codes of a number on the steps of a tensor, in the type that the source gives them."""
    zero = float(tensor.zero[0])
    whole = apply(b, "ROUND", calc(b, "MUL", x, _reciprocal(tensor)))
    whole = calc(b, "ADD", whole, zero) if zero else whole
    return cast(b, whole, port_type(tensor))


def decoded(tensor: SourceTensor) -> np.ndarray:
    """(code - zero) * scale of a constant in float32; per-axis scales lie along `axis`."""
    codes = tensor.array()
    scale, zero = tensor.scale.astype(np.float64), tensor.zero
    if scale.size > 1:
        shape = [-1 if i == tensor.axis else 1 for i in range(codes.ndim)]
        scale, zero = scale.reshape(shape), zero.reshape(shape)
    else:
        scale, zero = scale.reshape(()), zero.reshape(())
    with np.errstate(over="ignore"):
        return np.asarray((codes.astype(np.int64) - zero) * scale, np.float32)


def constant_of(tensor: SourceTensor) -> Tensor:
    """A stored tensor in an element type of the graph; its bytes stay in the file."""
    if tensor.quantized:
        kept = None
        if tensor.type in ("int8", "uint8", "int4") and tensor.shape is not None and len(tensor.shape) == 2:
            codes = tensor.array()
            if codes.size >= WORTH_CODES:
                kept = coded_weight(codes, tensor.type, tensor.scale, tensor.zero.astype(F32), tensor.axis, False)
        return ArrayTensor(decoded(tensor)) if kept is None else kept
    if tensor.type == "float16":
        return HalfTensor(ArrayTensor(tensor.array()))
    return to_graph_type(ArrayTensor(tensor.array()), tensor.name)


def weight_of(tensor: SourceTensor, order: tuple[int, ...], rows: int) -> Tensor:
    """A stored tensor with its axes in `order`. Codes stay codes where their scales follow the first axis then.

    `rows` is the source axis of the output channels.
    """
    if tensor.quantized and tensor.type in ("int4", "int8", "uint8") and order[0] == rows:
        codes = _ordered(tensor.array(), order)
        if tensor.scale.size == 1 or tensor.axis == rows:
            made = coded_weight(codes, tensor.type, tensor.scale, tensor.zero.astype(F32), 0, False)
            if made is not None:
                return made
    if tensor.quantized:
        return ArrayTensor(_ordered(decoded(tensor), order))
    whole = constant_of(tensor)
    if isinstance(whole, HalfTensor):
        return HalfTensor(ArrayTensor(_ordered(whole.stored.numpy(), order)))
    if order == tuple(range(len(order))):
        return whole
    shape = tuple(whole.shape[i] for i in order)
    return LazyTensor(whole, lambda array: _ordered(array, order), whole.dtype, shape)


def _ordered(array: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
    return np.ascontiguousarray(np.transpose(array, order))
