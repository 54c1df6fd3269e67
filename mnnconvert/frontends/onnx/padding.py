"""Import rules of Pad and CenterCropPad."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mnnconvert.frontends.common.compose import calc, cast
from mnnconvert.frontends.common.run_time import element, scalar_size, vector_of
from mnnconvert.frontends.onnx.node import OnnxNode
from mnnconvert.frontends.onnx.registry import onnx_op
from mnnconvert.frontends.onnx.run_time import on_every_axis, pairs_of
from mnnconvert.frontends.onnx.spatial import FIX_SIZES
from mnnconvert.ir import F32, I32, Builder, Dim, Value
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.generators import Range
from mnnconvert.ops.padding import Padding
from mnnconvert.ops.shape import Reshape
from mnnconvert.ops.slicing import StridedSlice

MODES = {"constant": "CONSTANT", "reflect": "REFLECT", "edge": "EDGE", "wrap": "WRAP"}
Pairs = list[tuple[int, int]]


@onnx_op("Pad", since=1)
def pad_1(b: Builder, n: OnnxNode) -> Value:
    return _from_attributes(b, n, n.attr("paddings", ()))


@onnx_op("Pad", since=2)
def pad_2(b: Builder, n: OnnxNode) -> Value:
    return _from_attributes(b, n, n.attr("pads", ()))


def _from_attributes(b: Builder, n: OnnxNode, pads: Sequence[int]) -> Value:
    x = n.input(0)
    return _pad(b, n, x, _pairs(n, pads, range(len(pads) // 2), x), n.attr("value", 0.0))


@onnx_op("Pad", since=11, limits="reflect no further than there are elements")
def pad_11(b: Builder, n: OnnxNode) -> Value:
    x, pads, axes = n.input(0), n.vector(1), n.constant(3)
    value = n.optional(2)
    if pads is None or (n.has(3) and axes is None):
        return _computed(b, n, x, value)
    names = range(len(pads) // 2) if axes is None else axes.reshape(-1).tolist()
    known = n.constant(2)
    if value is not None and known is None:
        return _padding(b, n, x, _pairs(n, pads.tolist(), names, x), value)
    return _pad(
        b, n, x, _pairs(n, pads.tolist(), names, x), 0 if known is None or not known.size else known.reshape(-1)[0]
    )


def _pairs(n: OnnxNode, pads: Sequence[int], axes: Sequence[int], x: Value) -> Pairs:
    """(before, after) for every axis."""
    count = len(axes)
    rank = x.rank if x.rank is not None else count
    if len(pads) != 2 * count or any(not -rank <= a < rank for a in axes) or (x.rank is None and n.has(3)):
        raise n.refuse(f"Pad has {len(pads)} amounts for {count} axes of an operand of rank {x.rank}")
    pairs = [(0, 0)] * rank
    for i, axis in enumerate(axes):
        pairs[axis] = (int(pads[i]), int(pads[i + count]))
    return pairs


def _pad(b: Builder, n: OnnxNode, x: Value, pairs: Pairs, value: Any) -> Value:
    if not any(map(any, pairs)):
        return x
    wide = F32 if x.dtype == F32 else I32
    return _padding(b, n, x, pairs, b.constant(np.asarray(value).astype(wide)))


def _padding(b: Builder, n: OnnxNode, x: Value, pairs: Pairs, value: Value) -> Value:
    """Crop first, then add: that is the same for every mode."""
    mode = n.attr("mode", "constant")
    if mode not in MODES:
        raise n.refuse(f"the mode of Pad is {mode!r}")
    dtype = x.dtype
    x = x if dtype == F32 else cast(b, x, I32)
    if mode == "constant":
        fill = value if value.dtype == x.dtype else cast(b, value, x.dtype)
        return cast(b, b.add(Padding(), x, b.ints(_flat(pairs)), fill), dtype)
    if any(p < 0 for pair in pairs for p in pair):
        x = b.add(Padding(), x, b.ints(_flat([(min(0, p), min(0, q)) for p, q in pairs])))
        pairs = [(max(0, p), max(0, q)) for p, q in pairs]
    _check_source(n, x, pairs, mode)
    if mode == "wrap":
        return cast(b, _wrapped(b, n, x, pairs), dtype)
    return cast(b, b.add(Padding(MODES[mode]), x, b.ints(_flat(pairs))) if any(map(any, pairs)) else x, dtype)


def _flat(pairs: Pairs) -> list[int]:
    return [amount for pair in pairs for amount in pair]


def _check_source(n: OnnxNode, x: Value, pairs: Pairs, mode: str) -> None:
    """Refuse what there is no source element for."""
    for axis, (pair, size) in enumerate(zip(pairs, x.shape or (), strict=False)):
        most = _most(size, mode)
        if most is not None and max(pair) > most:
            what = f"{max(pair)} elements to axis {axis} of size {size}"
            raise n.refuse(f"Pad in mode {mode} adds {what}; the largest amount is {most}")


def _most(size: Dim, mode: str) -> int | None:
    """The largest amount that a mode can add to an axis; None when there is no bound, or it is not known."""
    if not isinstance(size, int):
        return None
    if mode == "reflect":
        return max(0, size - 1)
    return 0 if size == 0 else None


def _wrapped(b: Builder, n: OnnxNode, x: Value, pairs: Pairs) -> Value:
    """The elements in a circle: rows picked by index."""
    for axis, (before, after) in enumerate(pairs):
        size = x.shape[axis] if x.shape else None
        if not before and not after:
            continue
        if not isinstance(size, int):
            raise n.refuse("Pad in mode wrap needs the sizes of the operand", hint=FIX_SIZES)
        n.limited(before + size + after)
        x = b.add(GatherV2(), x, b.ints(np.arange(-before, size + after) % size), b.ints(axis))
    return x


def _computed(b: Builder, n: OnnxNode, x: Value, value: Value | None) -> Value:
    """Amounts, or axes, that are known at run time only: [begins, ends] becomes one pair per axis."""
    mode = n.attr("mode", "constant")
    if mode not in MODES:
        raise n.refuse(f"the mode of Pad is {mode!r}")
    dtype = x.dtype
    x = x if dtype == F32 else cast(b, x, I32)
    amounts = b.add(Reshape((2, -1)), n.input(1))
    if n.has(3):
        if x.rank is None:
            raise n.refuse("Pad of computed axes needs an operand of known rank", hint=FIX_SIZES)
        amounts = on_every_axis(b, amounts, n.input(3), x.rank)
    if mode == "wrap":
        return cast(b, _wrapped_by(b, n, x, amounts), dtype)
    pairs = pairs_of(b, amounts)
    if mode == "constant":
        fill = b.constant(np.zeros((), x.dtype)) if value is None else cast(b, value, x.dtype)
        return cast(b, b.add(Padding(), x, pairs, fill), dtype)
    return cast(b, b.add(Padding(MODES[mode]), x, pairs), dtype)


def _parted(b: Builder, amount: Value) -> tuple[Value, Value]:
    """How much an amount adds, and how much it crops."""
    return calc(b, "MAXIMUM", amount, 0), calc(b, "MAXIMUM", calc(b, "SUB", b.ints(0), amount), 0)


def _wrapped_by(b: Builder, n: OnnxNode, x: Value, amounts: Value) -> Value:
    """As `_wrapped`, by computed amounts [2, rank]."""
    if x.rank is None:
        raise n.refuse("Pad in mode wrap needs an operand of known rank", hint=FIX_SIZES)
    before, after = (element(b, amounts, i) for i in range(2))
    for axis in range(x.rank):
        (front, cut), (back, cut_back) = (_parted(b, element(b, v, axis)) for v in (before, after))
        size = calc(b, "SUB", scalar_size(b, x, axis), calc(b, "ADD", cut, cut_back))
        first = calc(b, "SUB", b.ints(0), front)
        places = b.add(Range(), first, calc(b, "ADD", size, back), b.ints(1))
        x = b.add(GatherV2(), x, calc(b, "ADD", calc(b, "MOD", places, size), cut), b.ints(axis))
    return x


@onnx_op("CenterCropPad", since=18, limits="the rank must be known")
def center_crop_pad(b: Builder, n: OnnxNode) -> Value:
    """Crop or pad each axis around its centre; the smaller part comes first."""
    x, target = n.input(0), n.vector(1)
    axes = n.attr("axes") or range(x.rank or 0)
    if x.rank is None:
        raise n.refuse("CenterCropPad needs an operand of known rank", hint=FIX_SIZES)
    sizes = [x.shape[axis] if x.shape else None for axis in axes]
    if target is None or not all(isinstance(s, int) for s in sizes):
        return _centered(b, n, x, [axis % x.rank for axis in axes])
    pairs = [(0, 0)] * x.rank
    for axis, wanted, size in zip(axes, target.tolist(), sizes, strict=True):
        before = int((wanted - size) / 2)  # towards zero
        pairs[axis] = (before, wanted - size - before)
    return _pad(b, n, x, pairs, 0)


def _centered(b: Builder, n: OnnxNode, x: Value, axes: Sequence[int]) -> Value:
    """To sizes that are computed: cut, then pad."""
    dtype, x = x.dtype, x if x.dtype == F32 else cast(b, x, I32)
    zero = b.ints(0)
    starts, ends, before, after = [], [], {}, {}
    for i, axis in enumerate(axes):
        size = scalar_size(b, x, axis)
        more = calc(b, "SUB", element(b, n.input(1), i), size)
        first = calc(b, "FLOORDIV", calc(b, "ADD", more, calc(b, "LESS", more, 0)), 2)  # towards zero
        last = calc(b, "SUB", more, first)
        starts.append(calc(b, "SUB", zero, calc(b, "MINIMUM", first, 0)))
        ends.append(calc(b, "ADD", size, calc(b, "MINIMUM", last, 0)))
        before[axis], after[axis] = (calc(b, "MAXIMUM", v, 0) for v in (first, last))
    x = b.add(StridedSlice(), x, vector_of(b, starts), vector_of(b, ends), b.ints(axes))
    amounts = [side.get(axis, zero) for axis in range(x.rank or 0) for side in (before, after)]
    return cast(b, b.add(Padding(), x, vector_of(b, amounts), b.constant(np.zeros((), x.dtype))), dtype)
