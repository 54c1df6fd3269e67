"""Resize whose scales, sizes or region only a run knows: rows and weights are computed by the model, axis by axis.

The arithmetic is that of `resize_weights`, on values of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mnnconvert.frontends.common.compose import apply, calc, cast, chain, choose
from mnnconvert.frontends.common.moves import clip, permuted, reduced, squeezed, unsqueezed
from mnnconvert.frontends.common.run_time import count_up, element, scalar_size, spread
from mnnconvert.frontends.onnx.resize_weights import BY_SCALE
from mnnconvert.ir import F32, I32, Builder, Value
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.generators import Range
from mnnconvert.ops.matmul import MatMul
from mnnconvert.ops.reduction import Reduction


@dataclass(frozen=True)
class Sampling:
    """How a Resize samples: the attributes of the node."""

    mode: str
    rule: str
    rounding: str
    cubic_a: float
    exclude_outside: bool
    antialias: bool
    extrapolation: float
    policy: str = "stretch"


@dataclass(frozen=True)
class RunTimeAxis:
    """One axis to resize: int32 sizes before and after, and float32 scale and ends of the region, all scalars."""

    axis: int
    size: Value
    out: Value
    scale: Value
    roi: tuple[Value, Value] | None


def axes_of(
    b: Builder, x: Value, axes: Sequence[int], s: Sampling, scales: Value | None, sizes: Value | None, roi: Value | None
) -> list[RunTimeAxis]:
    """The named axes of x, resized by `scales` (float32) or to `sizes` (int32), one of which is given."""
    before = [scalar_size(b, x, axis) for axis in axes]
    if scales is not None:
        factors = [element(b, scales, i) for i in range(len(axes))]
        after = [_whole(b, calc(b, "MUL", cast(b, size, F32), f)) for size, f in zip(before, factors, strict=True)]
    elif sizes is not None:
        after = [element(b, sizes, i) for i in range(len(axes))]
        factors = [calc(b, "REALDIV", cast(b, o, F32), cast(b, i, F32)) for o, i in zip(after, before, strict=True)]
        if s.policy != "stretch":
            common = chain(b, "MINIMUM" if s.policy == "not_larger" else "MAXIMUM", factors)
            factors = [common] * len(axes)
            exact = [calc(b, "MUL", cast(b, size, F32), common) for size in before]
            after = [_whole(b, calc(b, "ADD", e, 0.5)) for e in exact]
    count, rows = len(axes), zip(axes, before, after, factors, strict=True)
    regions = [(element(b, roi, i), element(b, roi, i + count)) if roi is not None else None for i in range(count)]
    return [RunTimeAxis(*row, region) for row, region in zip(rows, regions, strict=True)]


def _whole(b: Builder, x: Value) -> Value:
    return cast(b, apply(b, "FLOOR", x), I32)


def resized(b: Builder, x: Value, s: Sampling, axes: Sequence[RunTimeAxis]) -> Value:
    """x, float32 of known rank, resampled along the axes one after the other."""
    rank, shown = x.rank or 0, []
    for a in axes:
        at = _coordinates(b, a, s.rule)
        if s.mode == "nearest":
            rows = clip(b, cast(b, _rounded(b, at, a, s.rounding), I32), 0, calc(b, "SUB", a.size, 1))
            x = b.add(GatherV2(), x, rows, b.ints(a.axis))
        else:
            x = _product(b, x, a.axis, rank, _weights(b, a, at, s))
        if s.rule == "tf_crop_and_resize":
            last = cast(b, calc(b, "SUB", a.size, 1), F32)
            inside = calc(b, "MUL", calc(b, "GREATER_EQUAL", at, 0.0), calc(b, "GREATER_EQUAL", last, at))
            shown.append(spread(b, inside, a.axis, rank))
    return choose(b, calc(b, "ADD", chain(b, "MUL", shown), 0), x, s.extrapolation, x) if shown else x


def _coordinates(b: Builder, a: RunTimeAxis, rule: str) -> Value:
    """Where the samples lie in the source, as `resize_weights.Axis.coordinates` has it."""
    x, size, out = count_up(b, a.out, F32), cast(b, a.size, F32), cast(b, a.out, F32)
    last, steps = calc(b, "SUB", size, 1.0), calc(b, "MAXIMUM", calc(b, "SUB", out, 1.0), 1.0)
    if rule == "align_corners":
        return calc(b, "REALDIV", calc(b, "MUL", x, last), steps)
    if rule == "asymmetric":
        return calc(b, "REALDIV", x, a.scale)
    if rule == "tf_crop_and_resize" and a.roi is not None:
        start, end = a.roi
        extent = calc(b, "MUL", calc(b, "SUB", end, start), last)
        along = calc(b, "ADD", calc(b, "REALDIV", calc(b, "MUL", x, extent), steps), calc(b, "MUL", start, last))
        middle = calc(b, "MUL", calc(b, "MUL", calc(b, "ADD", start, end), 0.5), last)
        return _where(b, calc(b, "EQUAL", a.out, 1), middle, along)
    centre = calc(b, "REALDIV", calc(b, "ADD", x, 0.5), a.scale)
    if rule == "tf_half_pixel_for_nn":  # an axis that keeps its size is left as it is
        return _where(b, calc(b, "EQUAL", a.scale, 1.0), x, centre)
    if rule == "half_pixel_symmetric":
        share = calc(b, "REALDIV", out, calc(b, "MUL", a.scale, size))
        offset = calc(b, "MUL", calc(b, "MUL", size, 0.5), calc(b, "SUB", b.floats(1.0), share))
        centre = calc(b, "ADD", centre, offset)
    at = calc(b, "SUB", centre, 0.5)
    if rule == "pytorch_half_pixel":
        return calc(b, "MUL", at, cast(b, calc(b, "NOTEQUAL", a.out, 1), F32))
    return at


def _where(b: Builder, condition: Value, yes: Value, no: Value) -> Value:
    """One of two finite values, by a scalar that is 0 or 1."""
    share = cast(b, condition, F32)
    return calc(b, "ADD", calc(b, "MUL", no, calc(b, "SUB", b.floats(1.0), share)), calc(b, "MUL", yes, share))


def _rounded(b: Builder, at: Value, a: RunTimeAxis, rounding: str) -> Value:
    if rounding == BY_SCALE:
        smaller = calc(b, "GREATER", b.floats(1.0), a.scale)
        return _where(b, smaller, apply(b, "CEIL", at), apply(b, "FLOOR", at))
    return _ROUNDING[rounding](b, at)


_ROUNDING: dict[str, Callable[[Builder, Value], Value]] = {
    "floor": lambda b, x: apply(b, "FLOOR", x),
    "ceil": lambda b, x: apply(b, "CEIL", x),
    "round_prefer_floor": lambda b, x: apply(b, "CEIL", calc(b, "SUB", x, 0.5)),
    "round_prefer_ceil": lambda b, x: apply(b, "FLOOR", calc(b, "ADD", x, 0.5)),
}


def _weights(b: Builder, a: RunTimeAxis, at: Value, s: Sampling) -> Value:
    """[out, size]. Neighbours outside repeat the border, or are left out; antialias widens the filter to shrink."""
    last = calc(b, "SUB", a.size, 1)
    if s.mode == "linear" and not s.antialias:
        at = clip(b, at, 0.0, cast(b, last, F32))
    low = apply(b, "FLOOR", at)
    scale = calc(b, "MINIMUM", a.scale, 1.0) if s.antialias else b.floats(1.0)
    reach = calc(b, "REALDIV", b.floats(-1.0 if s.mode == "linear" else -2.0), scale)
    first = calc(b, "ADD", _whole(b, reach), 1)
    taps = b.add(Range(), first, calc(b, "SUB", b.ints(2), first), b.ints(1))
    column = spread(b, taps, 1, 2)
    distance = calc(b, "SUB", cast(b, column, F32), spread(b, calc(b, "SUB", at, low), 0, 2))
    weights = _KERNELS[s.mode](b, calc(b, "MUL", apply(b, "ABS", distance), scale), s.cubic_a)
    rows = calc(b, "ADD", spread(b, cast(b, low, I32), 0, 2), column)
    if s.exclude_outside:
        inside = calc(b, "MUL", calc(b, "GREATER_EQUAL", rows, 0), calc(b, "LESS_EQUAL", rows, last))
        weights = calc(b, "MUL", weights, cast(b, inside, F32))
    if s.exclude_outside or s.antialias:
        weights = calc(b, "REALDIV", weights, reduced(b, "SUM", weights, 1))
    rows = unsqueezed(b, clip(b, rows, 0, last), 2)
    hits = calc(b, "EQUAL", rows, spread(b, count_up(b, a.size), 2, 3))
    return b.add(Reduction("SUM", (1,), False), calc(b, "MUL", cast(b, hits, F32), unsqueezed(b, weights, 2)))


def _linear(b: Builder, distance: Value, a: float) -> Value:
    return calc(b, "MAXIMUM", calc(b, "SUB", b.floats(1.0), distance), 0.0)


def _cubic(b: Builder, d: Value, a: float) -> Value:
    """Keys' kernel: one cubic up to a distance of 1, another up to 2, nothing beyond."""

    def polynomial(*coefficients: float) -> Value:
        y = calc(b, "ADD", calc(b, "MUL", d, coefficients[0]), coefficients[1])
        for c in coefficients[2:]:
            y = calc(b, "ADD", calc(b, "MUL", y, d), c)
        return y

    far = calc(b, "MUL", polynomial(a, -5 * a, 8 * a, -4 * a), cast(b, calc(b, "LESS", d, 2.0), F32))
    return choose(b, calc(b, "LESS_EQUAL", d, 1.0), polynomial(a + 2, -(a + 3), 0.0, 1.0), far, d)


_KERNELS: dict[str, Callable[[Builder, Value, float], Value]] = {"linear": _linear, "cubic": _cubic}


def _product(b: Builder, x: Value, axis: int, rank: int, weights: Value) -> Value:
    """The weights [out, size] applied along one axis."""
    if axis == rank - 2:
        return b.add(MatMul(), weights, x)
    if rank == 1:
        return squeezed(b, b.add(MatMul(transpose_b=True), unsqueezed(b, x, 0), weights), 0)
    order = [*(j for j in range(rank) if j != axis), axis]
    moved = x if axis == rank - 1 else permuted(b, x, order)
    y = b.add(MatMul(transpose_b=True), moved, weights)
    return y if axis == rank - 1 else permuted(b, y, [order.index(j) for j in range(rank)])
