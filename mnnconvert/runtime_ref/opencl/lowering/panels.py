"""What convolutions and their transposes share: panels of weights, tiles of pixels, and how tensors lie."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mnnconvert.ir import Value
from mnnconvert.runtime_ref.lower import LAST, PLAIN, Epilogue, Sizes, Tensor
from mnnconvert.runtime_ref.opencl.lower import MOST_ELEMENTS, Lowering
from mnnconvert.runtime_ref.opencl.tiles import best_rows, vectors_of

START = 2
"""What a tile costs besides its pixels, in pixels."""
ITEM = 1 << 15
"""Multiply-adds of an item, at least."""
ITEMS = 8
"""Items of a launch for each core, at least, before they become larger than a tile."""
SPAN = 64
"""Channels that an item of a processor computes together."""


@dataclass(frozen=True)
class Panels:
    """How weights lie: panels of `unit` outputs of a group, and which steps lead from panel to panel and on."""

    groups: int
    inputs: int  # of a group, as outputs
    outputs: int
    taps: int
    unit: int
    innermost: bool  # panels, rather than outermost

    @property
    def panels(self) -> int:
        return -(-self.outputs // self.unit)

    @property
    def step(self) -> int:
        """Elements from one input channel to the next."""
        return self.unit * (self.groups * self.panels if self.innermost else 1)

    @property
    def stride(self) -> int:
        """Elements from one panel to the next."""
        return self.unit * (1 if self.innermost else self.taps * self.inputs)

    @property
    def size(self) -> int:
        return self.groups * self.panels * self.unit * self.taps * self.inputs

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of a kernel that multiplies with them."""
        return {"groups": self.groups, "panels": self.panels, "inputs": self.inputs, "outputs": self.outputs,
                "w_panel": self.stride, "w_step": self.step}  # fmt: skip

    def pack(self, w: np.ndarray) -> np.ndarray:
        """w [groups, outputs, inputs, taps] in this form, float32 [size]."""
        whole = np.zeros((self.groups, self.panels * self.unit, self.inputs, self.taps), np.float32)
        whole[:, : self.outputs] = w
        panels = whole.reshape(self.groups * self.panels, self.unit, self.inputs, self.taps)
        return np.ascontiguousarray(panels.transpose((3, 2, 0, 1) if self.innermost else (0, 3, 2, 1))).reshape(-1)


def panels_of(ctx: Lowering, groups: int, inputs: int, outputs: int, taps: int) -> Panels:
    """The form of weights, with these numbers of channels of a group, that suits the device."""
    unit = vectors_of(ctx.lanes, outputs) * ctx.lanes
    return Panels(groups, inputs, outputs, taps, unit, not ctx.device.is_cpu)


def pack(ctx: Lowering, w: Value, panels: Panels, key: str, strides: tuple[int, int, int]) -> Callable[[], Tensor]:
    """Weights in panels: made when first asked for where they are constant, else by a kernel in each run.

    `strides` of w lead from group to group, from output to output and from input to input.
    """
    tensor = w.tensor
    if tensor is not None:
        shape = (panels.groups, panels.outputs, panels.inputs, panels.taps)

        def make() -> np.ndarray:
            flat = np.ascontiguousarray(tensor.numpy(), np.float32).reshape(-1)
            steps = [4 * s for s in (*strides, 1)]
            return panels.pack(np.lib.stride_tricks.as_strided(flat, shape, steps))

        return lambda: ctx.packed(w, (key, panels), make)
    made = ctx.tensor((panels.size,))
    ctx.call(
        "conv_pack", (panels.unit, panels.taps * panels.inputs, panels.groups * panels.panels), w=ctx.read(w), y=made,
        groups=panels.groups, panels=panels.panels, inputs=panels.inputs, outputs=panels.outputs, taps=panels.taps,
        w_group=strides[0], w_output=strides[1], w_input=strides[2], y_panel=panels.stride, y_step=panels.step,
        defines=defines(ctx, panels, 1),
    )  # fmt: skip
    return lambda: made


def defines(ctx: Lowering, panels: Panels, pixels: int, **more: int) -> dict[str, int | str]:
    """The structure of an item, for conv.cl."""
    ragged = panels.groups > 1 and panels.outputs % ctx.lanes > 0
    return {"P": pixels, "B": panels.unit // ctx.lanes, "PANEL": 2 if ctx.device.is_cpu else 0, "RAGGED": int(ragged),
            **more}  # fmt: skip


def tiles_by_cost(ctx: Lowering, panels: Panels, width: int) -> list[int]:
    """How many pixels of rows of this width an item may compute, first those with which a row costs least."""
    return best_rows(ctx.lanes, panels.unit // ctx.lanes, width, START)


def tile_of(ctx: Lowering, panels: Panels, width: int) -> int:
    """The best of these."""
    return tiles_by_cost(ctx, panels, width)[0]


def tiles_of(ctx: Lowering, tiles: int, rows: int, work: int) -> int:
    """How many of the tiles of a row an item computes, where a tile is `work` multiply-adds and `rows` is how many rows
    there are: on processors enough that beginning an item is worth it, but such that all cores have some.
    """
    if not ctx.device.is_cpu:
        return 1
    least = ITEMS * ctx.device.cl.max_compute_units
    most = max(min(-(-ITEM // max(work, 1)), tiles * rows // least, tiles), 1)
    return -(-tiles // -(-tiles // most))


def items(ctx: Lowering, tiles: int, rows: int, panels: int) -> tuple[int, int, int]:
    """The work-items in the order of the device."""
    return (tiles, rows, panels) if ctx.device.is_cpu else (panels, rows, tiles)


def group(ctx: Lowering, on_cpu: Sizes, on_gpu: Sizes) -> Sizes:
    """The items of a group: always the same ones, since drivers for processors compile a kernel for each choice."""
    return on_cpu if ctx.device.is_cpu else on_gpu


def heavy(ctx: Lowering) -> list[Sizes]:
    """Groups of items in the order of `items`, each of which does much: neighbours share pixels, or weights."""
    return [(1, 1, 1)] if ctx.device.is_cpu else [(8, 1, 8), (16, 1, 4), (2, 1, 32)]


def light(ctx: Lowering) -> Sizes:
    """A group of items that do little each; the first dimension is that of channels, `span_of` them per item."""
    return group(ctx, (1, 8, 1), (8, 8, 1))


def span_of(ctx: Lowering, pitch: int) -> int:
    """Neighbouring channels that an item computes one after the other."""
    return min(pitch, SPAN) if ctx.device.is_cpu else ctx.lanes


def zeros(ctx: Lowering, count: int) -> Tensor:
    """What lies in the padding."""
    return ctx.static(("zeros", count), lambda: np.zeros(count, np.float32))


def indexable(ctx: Lowering, *values: Value) -> bool:
    """Whether kernels can count the elements of maps, as they lie."""
    return all(math.prod(ctx.stored(ctx.shape(v), LAST)) < MOST_ELEMENTS for v in values)


def finish(ctx: Lowering, epilogue: Epilogue, bias: Value | None, layout: str = LAST) -> dict[str, Any]:
    """The arguments of an epilogue: bias, residual and the result in a layout, low and high."""
    read = ctx.read if layout == PLAIN else ctx.read_map
    made: dict[str, Any] = {
        "bias": None if bias is None else ctx.read(bias),
        "residual": None if epilogue.residual is None else read(epilogue.residual),
    }
    made |= {f"{name}_at": 0 for name, tensor in made.items() if tensor is None}
    return {**made, "y": ctx.result(epilogue.value, layout), "low": epilogue.low, "high": epilogue.high}
