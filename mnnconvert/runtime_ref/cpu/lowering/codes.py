"""Ops on 8-bit codes: convolution, pooling, arithmetic, and the ways from floats and back. Maps have channels last."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mnnconvert.ir import Node, Value
from mnnconvert.ops.arrange import Concat
from mnnconvert.ops.elementwise import Binary
from mnnconvert.ops.integer import ConvInt8
from mnnconvert.ops.layout import ConvertTensor
from mnnconvert.ops.pooling import Pooling
from mnnconvert.ops.quantization import FloatToInt8, Int8ToFloat
from mnnconvert.ops.shape import VIEWS, Permute, Transpose
from mnnconvert.runtime_ref.cpu.lower import Lowering, lowers
from mnnconvert.runtime_ref.lower import BLOCKED, LAST, PLAIN, Tensor
from mnnconvert.runtime_ref.memory import aligned
from mnnconvert.runtime_ref.windows import window_of

MAP_RANK = 4
LONGEST_SUM = 1 << 15  # products of which a sum, and what it starts from, fit into 32 bits
LARGEST_START = 1 << 30
LARGEST_WINDOW, LARGEST_OFFSET = 1 << 8, 1 << 23  # of depthwise convolutions, whose sums are exact in floats
LARGEST_WEIGHT = 1 << 26  # elements of a weight of groups that is filled up with zeros
FUNCTIONS = ("ADD", "SUB", "MUL")  # of the kernel binary_codes
SAME, FROM = 0, {PLAIN: 1, BLOCKED: 2}  # the parameter `layout` of the ways between floats and codes


@lowers(ConvInt8)
def convolution(ctx: Lowering, node: Node) -> bool:
    op, (x, w, *numbers) = node.op, node.inputs
    assert isinstance(op, ConvInt8)
    if 0 in ctx.shape(x) or any(v.tensor is None for v in (w, *numbers)):
        return False
    channels, outputs, taps = ctx.shape(x)[1], ctx.shape(w)[0], math.prod(ctx.shape(w)[2:])
    start = ctx.constant(numbers[0])
    assert start is not None
    largest = int(np.abs(start.astype(np.int64)).max())
    alone = op.group == channels == outputs and op.group > 1
    depthwise = alone and taps <= LARGEST_WINDOW and largest <= LARGEST_OFFSET
    inputs = 1 if depthwise else channels
    if inputs * taps > LONGEST_SUM or largest > LARGEST_START:
        return False
    if op.group > 1 and outputs * inputs * taps > LARGEST_WEIGHT:
        return False
    sizes = {"channels": channels} if depthwise else {"inputs": channels, "outputs": outputs}
    sizes |= {} if depthwise else {"positive": lowest_code(x) >= 0 and op.zero >= 0}
    kernel_name = "depthwise_codes" if depthwise else "conv_codes"
    unit = 4 if depthwise else 2 * -(-inputs // 4) * 4  # bytes of the weights of an output, for each tap
    weights = _packed(ctx, node, f"{kernel_name}_pack", unit * taps, sizes)
    window = window_of(op.window, ctx.shape(x), ctx.shape(w), ctx.shape(node.output))
    ctx.call(kernel_name, x=ctx.read_last(x), **weights, y=ctx.result(node.output, LAST), n=ctx.shape(x)[0], **sizes,
             **window.params, zero=op.zero, lowest=op.low, highest=op.high)  # fmt: skip
    return True


def _packed(ctx: Lowering, node: Node, kernel: str, nbytes: int, sizes: dict[str, int]) -> dict[str, Tensor]:
    """The weights of a convolution, and its numbers per channel, in one array."""
    w, *numbers = node.inputs[1:]
    outputs, _, kernel_h, kernel_w = ctx.shape(w)
    padded = -(-outputs // ctx.lanes) * ctx.lanes
    behind = 3 * padded * 4
    room = behind + padded * nbytes

    def make() -> np.ndarray:
        array = aligned((room,), np.uint8)
        arrays = [ctx.constant(v) for v in numbers]
        named = dict(zip(("start", "scale", "shift"), [*arrays, None][:3], strict=False))
        ctx.once(kernel, w=_dense(node, sizes), **named, packed=array[behind:], numbers=array[:behind],
                 kernel_h=kernel_h, kernel_w=kernel_w, **sizes)  # fmt: skip
        return array

    both = ctx.packed(w, (kernel, sizes.get("positive"), *(id(v.tensor) for v in numbers)), make)
    return {"numbers": both, "w": ctx.view(both, (room - behind,), behind)}


def lowest_code(value: Value) -> int:
    """A bound for codes, from the ops that make them."""
    op, inputs = (None, []) if value.producer is None else (value.producer.op, value.producer.inputs)
    if isinstance(op, ConvInt8 | FloatToInt8):
        return op.low
    in_image = isinstance(op, Pooling) and op.function == "MAXPOOL" and not op.ceil and max(op.pads) < min(op.kernel)
    if isinstance(op, ConvertTensor | Concat) or in_image:  # a window beside the image has the lowest code of all
        return min(lowest_code(v) for v in inputs)
    return -128


def _dense(node: Node, sizes: dict[str, int]) -> np.ndarray:
    """The weight; that of groups filled up with zeros to one of all channels."""
    tensor, group = node.inputs[1].tensor, node.op.group  # type: ignore[attr-defined]
    assert tensor is not None
    w = np.ascontiguousarray(tensor.numpy())
    if group == 1 or "channels" in sizes:
        return w
    outputs, per_group = w.shape[:2]
    dense = np.zeros((outputs, sizes["inputs"], *w.shape[2:]), np.int8)
    for g in range(group):
        rows = slice(g * outputs // group, (g + 1) * outputs // group)
        dense[rows, g * per_group : (g + 1) * per_group] = w[rows]
    return dense


def pool_codes(ctx: Lowering, node: Node) -> bool:
    """Pooling of int8, called by the rule of Pooling."""
    op, x = node.op, node.inputs[0]
    assert isinstance(op, Pooling)
    if op.indices or 0 in ctx.shape(x):
        return False
    n, channels, height, width = ctx.shape(x)
    (kernel_h, stride_h, top, out_h), (kernel_w, stride_w, left, out_w) = op.window(0, height), op.window(1, width)
    ctx.call("pool_codes", x=ctx.read_last(x), y=ctx.result(node.output, LAST), n=n, channels=channels, h=height,
             width=width, out_h=out_h, out_w=out_w, kernel_h=kernel_h, kernel_w=kernel_w, stride_h=stride_h,
             stride_w=stride_w, top=top, left=left, mean=op.function == "AVEPOOL")  # fmt: skip
    return True


@lowers(FloatToInt8)
def code(ctx: Lowering, node: Node) -> bool:
    op, x = node.op, node.inputs[0]
    numbers = _single(op)
    if numbers is None or 0 in ctx.shape(x):
        return False
    layout = BLOCKED if set(ctx.layouts(x)) == {BLOCKED} else PLAIN
    as_map = layout == BLOCKED or _read_as_map(ctx, node.output)
    source = ctx.read_blocked(x) if layout == BLOCKED else ctx.read(x)
    ctx.call("floats_to_codes", x=source, y=ctx.result(node.output, LAST if as_map else PLAIN),
             **_sizes(ctx, x), layout=FROM[layout] if as_map else SAME, lowest=op.low, highest=op.high,  # type: ignore[attr-defined]
             factor=numbers[0], offset=numbers[1])  # fmt: skip
    return True


@lowers(Int8ToFloat)
def decode(ctx: Lowering, node: Node) -> bool:
    op, x = node.op, node.inputs[0]
    numbers = _single(op)
    if numbers is None or 0 in ctx.shape(x):
        return False
    if _arithmetic(ctx, node):
        return True
    as_map = LAST in ctx.layouts(x)
    layout = PLAIN if not as_map or node.output in ctx.wanted else BLOCKED
    ctx.call("codes_to_floats", x=ctx.read_last(x) if as_map else ctx.read(x), y=ctx.result(node.output, layout),
             **_sizes(ctx, x), layout=FROM[layout] if as_map else SAME, factor=numbers[0], zero=numbers[1])  # fmt: skip
    return True


def _arithmetic(ctx: Lowering, node: Node) -> bool:
    """A sum, difference or product of decoded codes that is coded again, as one call."""
    binary = ctx.only_user(node.output)
    result = None if binary is None else ctx.only_user(binary.output)
    if binary is None or result is None or not isinstance(binary.op, Binary) or not isinstance(result.op, FloatToInt8):
        return False
    sources = [v.producer for v in binary.inputs]
    numbers = [None if s is None else _single(s.op) for s in (*sources, result)]
    if binary.op.function not in FUNCTIONS or any(n is None for n in numbers):
        return False
    operands = [s.inputs[0] for s in sources if s is not None and isinstance(s.op, Int8ToFloat)]
    alone = all(ctx.only_user(v) is binary and not ctx.is_ready(v) for v in binary.inputs)
    shapes = {ctx.shape(v) for v in (*operands, result.output)}
    if len(operands) < 2 or not alone or len(shapes) > 1 or not all(ctx.is_ready(v) for v in operands):
        return False
    as_map = any(LAST in ctx.layouts(v) for v in operands)
    layout = LAST if as_map else PLAIN
    (scale0, zero0), (scale1, zero1), (factor, offset) = (n for n in numbers if n is not None)
    x0, x1 = (ctx.read_last(v) if as_map else ctx.read(v) for v in operands)
    ctx.call("binary_codes", x0=x0, x1=x1, y=ctx.result(result.output, layout),
             count=math.prod(ctx.stored(x0.shape, layout)), function=FUNCTIONS.index(binary.op.function),
             lowest=result.op.low, highest=result.op.high, scale0=scale0, zero0=zero0, scale1=scale1, zero1=zero1,
             low=0.0 if binary.op.activation else -math.inf, factor=factor, offset=offset)  # fmt: skip
    ctx.skip(*(s for s in sources if s is not None and s is not node), binary, result)
    return True


def _single(op: Any) -> tuple[float, float] | None:
    """Scale and zero point of an op between floats and codes that has one of each."""
    if not isinstance(op, FloatToInt8 | Int8ToFloat) or len(op.scale) != 1 or len(op.zero) != 1:
        return None
    return op.scale[0], op.zero[0]


def _read_as_map(ctx: Lowering, value: Value) -> bool:
    """Whether codes of a plain map are to have their channels last: not if they are read as they lie."""
    plain = (*VIEWS, Permute, Transpose)
    return len(ctx.shape(value)) == MAP_RANK and not all(isinstance(n.op, plain) for n in value.users)


def _sizes(ctx: Lowering, value: Value) -> dict[str, int]:
    """The sizes of a map; anything else is one row of pixels."""
    shape = ctx.shape(value)
    if len(shape) < 2:
        return {"batch": 1, "channels": 1, "pixels": math.prod(shape)}
    return {"batch": shape[0], "channels": shape[1], "pixels": math.prod(shape[2:])}
