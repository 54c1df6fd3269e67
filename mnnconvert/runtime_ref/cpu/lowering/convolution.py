"""Convolution: of blocked maps; of plain images with few channels; of plain maps where groups do not fill blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mnnconvert.ir import Node, Value
from mnnconvert.ops.convolution import Convolution
from mnnconvert.runtime_ref.cpu.library import aligned
from mnnconvert.runtime_ref.cpu.lower import BLOCKED, PLAIN, Lowering, Sizes, Tensor, lowers


@dataclass(frozen=True)
class Window:
    """Sizes of a two-dimensional convolution, by the names that its kernels give them."""

    h: int
    width: int
    out_h: int
    out_w: int
    kernel_h: int
    kernel_w: int
    stride_h: int
    stride_w: int
    dilation_h: int
    dilation_w: int
    top: int
    left: int

    @property
    def params(self) -> dict[str, int]:
        return dict(self.__dict__)


@lowers(Convolution)
def convolution(ctx: Lowering, node: Node) -> bool:
    op = node.op
    assert isinstance(op, Convolution)
    x, w, *rest = node.inputs
    if 0 in ctx.shape(x) or 0 in ctx.shape(w):
        return False
    window = _window(op, ctx.shape(x), ctx.shape(w), ctx.shape(node.output))
    channels, outputs = ctx.shape(x)[1], ctx.shape(w)[0]
    depthwise = op.group == channels == outputs and op.group > 1
    from_layout, to_layout = (BLOCKED, BLOCKED) if depthwise else _layouts(ctx, x, op.group, channels, outputs)
    epilogue = ctx.epilogue(node, op.activation)
    source = _read(ctx, x, from_layout)
    residual = None if epilogue.residual is None else _read(ctx, epilogue.residual, to_layout)
    operands: dict[str, Any] = {
        "x": source,
        "w": _pack_depthwise(ctx, w) if depthwise else _pack(ctx, w, op.group, from_layout == PLAIN),
        "bias": ctx.read(rest[0]) if rest else None,
        "residual": residual,
    }
    if depthwise:
        operands["channels"] = channels
    else:
        operands |= {"inputs": channels, "outputs": outputs, "group": op.group, "plain_x": from_layout == PLAIN,
                     "plain_y": to_layout == PLAIN}  # fmt: skip
    ctx.fuse(node, epilogue)
    over = residual if residual is not None and residual.buffer is not source.buffer else None
    y = ctx.result(epilogue.value, to_layout, over)
    ctx.call("depthwise_f32" if depthwise else "conv_f32", **operands, **window.params, **epilogue.params, y=y,
             n=ctx.shape(x)[0])  # fmt: skip
    return True


def _layouts(ctx: Lowering, x: Value, group: int, channels: int, outputs: int) -> tuple[str, str]:
    """How x is read and y written. Groups that do not fill blocks are plain on both sides."""
    if group > 1 and (channels // group % ctx.lanes or outputs // group % ctx.lanes):
        return PLAIN, PLAIN
    few = group == 1 and channels < ctx.lanes and BLOCKED not in ctx.layouts(x)
    return PLAIN if few else BLOCKED, BLOCKED


def _read(ctx: Lowering, value: Value, layout: str) -> Tensor:
    return ctx.read(value) if layout == PLAIN else ctx.read_blocked(value)


def _window(op: Convolution, x: Sizes, w: Sizes, y: Sizes) -> Window:
    """The sizes; a map of one column without padding at its sides becomes one of one row, which kernels cut better."""
    sizes, out = ((*shape[2:], 1)[:2] for shape in (x, y))
    top, left, _, right = op._pads((sizes[0], sizes[1]), (w[2], w[3]))
    rows = (sizes[0], out[0], w[2], op.strides[0], op.dilations[0], top)
    columns = (sizes[1], out[1], w[3], op.strides[1], op.dilations[1], left)
    if sizes[1] == w[3] == out[1] == 1 and left == right == 0:
        rows, columns = (1, 1, 1, 1, 1, 0), rows
    return Window(*(number for pair in zip(rows, columns, strict=True) for number in pair))


def _pack(ctx: Lowering, w: Value, group: int, plain: bool) -> Tensor:
    outputs, per_group, kernel_h, kernel_w = ctx.shape(w)
    size = group * -(-(outputs // group) // ctx.lanes) * ctx.lanes * per_group * kernel_h * kernel_w
    return _packed(ctx, "conv_pack", w, (size,), outputs=outputs, inputs=per_group * group, group=group,
                   kernel_h=kernel_h, kernel_w=kernel_w, plain_x=plain)  # fmt: skip


def _pack_depthwise(ctx: Lowering, w: Value) -> Tensor:
    channels, _, kernel_h, kernel_w = ctx.shape(w)
    shape = (-(-channels // ctx.lanes), kernel_h, kernel_w, ctx.lanes)
    return _packed(ctx, "depthwise_pack", w, shape, channels=channels, kernel_h=kernel_h, kernel_w=kernel_w)


def _packed(ctx: Lowering, kernel: str, w: Value, shape: Sizes, **params: int) -> Tensor:
    """Weights packed by a kernel: now where they are constant, else in each run."""
    weight = ctx.constant(w)
    if w.tensor is None or weight is None:
        packed = ctx.tensor(shape)
        ctx.call(kernel, w=ctx.read(w), packed=packed, **params)
        return packed

    def make() -> np.ndarray:
        array = aligned(shape, "f4")
        ctx.once(kernel, w=weight, packed=array, **params)
        return array

    return ctx.packed(w, (kernel, *params.values()), make)
