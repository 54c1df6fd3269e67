"""Import rules of Resize and Upsample.

MNN's Interp resizes the last two axes of planes. It is used where it computes what ONNX defines; everything else is a
choice of rows, or a matrix product with constant weights, along each axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mnnconvert.frontends.common.compose import cast
from mnnconvert.frontends.onnx.node import OnnxNode
from mnnconvert.frontends.onnx.registry import onnx_op
from mnnconvert.frontends.onnx.resize_run_time import Sampling, axes_of, resized
from mnnconvert.frontends.onnx.resize_weights import BY_SCALE, ROUNDING, Axis, inside, matrix, nearest_rows
from mnnconvert.frontends.onnx.spatial import FIX_SIZES
from mnnconvert.ir import F32, I32, Builder, Dim, Value
from mnnconvert.ops.arrange import Concat
from mnnconvert.ops.elementwise import Binary
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.matmul import MatMul
from mnnconvert.ops.resample import CUBIC, LINEAR, NEAREST, NEAREST_ROUND, Interp, positions
from mnnconvert.ops.shape import Permute, Squeeze, Unsqueeze
from mnnconvert.ops.slicing import StridedSlice

RULES = {
    "half_pixel": "HalfPixels", "align_corners": "AlignCorners", "asymmetric": "Asymmetric",
    "pytorch_half_pixel": "PytorchHalfPixels", "tf_half_pixel_for_nn": "TensorflowHalfPixels",
}  # fmt: skip
PROBES = (1, 2, 3, 5, 8, 13, 64)  # sizes on which a choice of rows is tried when the sizes are not known


@dataclass
class Resizing:
    """One Resize: how it samples, and for every axis what is known of its sizes and its scale (None: out / in)."""

    mode: str
    rule: str
    rounding: str = "round_prefer_floor"
    cubic_a: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    extrapolation: float = 0.0
    sizes: list[Dim] = field(default_factory=list)
    outs: list[Dim] = field(default_factory=list)
    scales: list[float | None] = field(default_factory=list)
    roi: list[tuple[float, float]] = field(default_factory=list)

    def moves(self, i: int) -> bool:
        """Whether axis `i` is resampled at all."""
        if self.rule == "tf_crop_and_resize" and self.roi[i] != (0.0, 1.0):
            return True
        scale = self.scales[i]
        return scale != 1 if scale is not None else self.outs[i] is None or self.outs[i] != self.sizes[i]

    def axis(self, i: int) -> Axis | None:
        """Axis `i` with all numbers known, or None."""
        size, out = self.sizes[i], self.outs[i]
        if not isinstance(size, int) or not isinstance(out, int):
            return None
        scale = self.scales[i]
        return Axis(size, out, out / size if scale is None else scale, self.roi[i])


@onnx_op("Upsample", since=1)
def upsample_1(b: Builder, n: OnnxNode) -> Value:
    x = n.input(0)
    scales = [1.0, 1.0, n.attr("height_scale", 1.0), n.attr("width_scale", 1.0)]
    return _by_scales(b, n, x, scales, {"bilinear": "linear"}.get(n.attr("mode", "nearest"), n.attr("mode", "nearest")))


@onnx_op("Upsample", since=7)
def upsample_7(b: Builder, n: OnnxNode) -> Value:
    return _by_scales(b, n, n.input(0), n.attr("scales", ()), n.attr("mode", "nearest"))


@onnx_op("Upsample", since=9)
@onnx_op("Resize", since=10)
def upsample_9(b: Builder, n: OnnxNode) -> Value:
    """Scales as an operand."""
    if n.constant(1) is None:
        x, r = n.input(0), _asymmetric(n, n.attr("mode", "nearest"))
        _fill(n, r, x, range(x.rank or 0), sizes=[None] * (x.rank or 0))
        return _resize(b, n, x, r, n.input(1))
    return _by_scales(b, n, n.input(0), _scales(n, 1), n.attr("mode", "nearest"))


def _scales(n: OnnxNode, index: int) -> list[float]:
    return [float(s) for s in n.required_constant(index, "the scales").reshape(-1)]


def _by_scales(b: Builder, n: OnnxNode, x: Value, scales: Sequence[float], mode: str) -> Value:
    r = _asymmetric(n, mode)
    _fill(n, r, x, range(len(scales)), scales=scales)
    return _resize(b, n, x, r, None)


def _asymmetric(n: OnnxNode, mode: str) -> Resizing:
    """The only sampling before opset 11. Upsample has no smaller results, Resize 10 rounds up for them."""
    return Resizing(mode, "asymmetric", "floor" if n.op_type == "Upsample" else BY_SCALE)


@onnx_op("Resize", since=11, limits="the rank must be known")
def resize(b: Builder, n: OnnxNode) -> Value:
    x = n.input(0)
    r = Resizing(
        n.attr("mode", "nearest"), n.attr("coordinate_transformation_mode", "half_pixel"),
        n.attr("nearest_mode", "round_prefer_floor"), n.attr("cubic_coeff_a", -0.75),
        bool(n.attr("exclude_outside", 0)),
        bool(n.attr("antialias", 0)), n.attr("extrapolation_value", 0.0),
    )  # fmt: skip
    if r.rounding not in ROUNDING:
        raise n.refuse(f"nearest_mode is {r.rounding!r}, which ONNX does not have")
    if _is_open(n, x, r):
        sized = n.has(3)
        return _at_run_time(b, n, x, r, None if sized else n.input(2), n.input(3) if sized else None)
    if n.has(3):
        sizes = n.input(3)
        given = sizes.sizes or [None] * len(n.attr("axes") or x.shape or ())
        _fill(
            n,
            r,
            x,
            n.attr("axes") or range(len(given)),
            sizes=given,
            policy=n.attr("keep_aspect_ratio_policy", "stretch"),
        )
        return _resize(b, n, x, r, None if n.attr("axes") else sizes)
    if n.constant(2) is None:  # per run; Interp reads them, batch and channels stay
        count = len(x.shape or ())
        _fill(n, r, x, range(count), sizes=[None] * count)
        return _resize(b, n, x, r, None if n.attr("axes") else n.input(2))
    scales = _scales(n, 2)
    _fill(n, r, x, n.attr("axes") or range(len(scales)), scales=scales)
    return _resize(b, n, x, r, None)


def _is_open(n: OnnxNode, x: Value, r: Resizing) -> bool:
    """Whether something is computed that even Interp has to know beforehand."""
    if r.rule == "tf_crop_and_resize" and n.constant(1) is None:
        return True
    if not n.has(3):
        return n.constant(2) is None and (r.rule == "half_pixel_symmetric" or n.has_attr("axes"))
    needed = [*(n.input(3).sizes or [None])] if n.has_attr("axes") else []
    if n.attr("keep_aspect_ratio_policy", "stretch") != "stretch":
        needed += [*(n.input(3).sizes or [None]), *(x.shape or (None,))]
    return not all(isinstance(s, int) for s in needed)


def _at_run_time(b: Builder, n: OnnxNode, x: Value, r: Resizing, scales: Value | None, sizes: Value | None) -> Value:
    """All arithmetic of coordinates and weights in the graph."""
    if x.rank is None:
        raise n.refuse(f"{n.op_type} by computed numbers needs an operand of known rank", hint=FIX_SIZES)
    if r.mode not in ("nearest", "linear", "cubic") or (r.mode != "nearest" and x.dtype != F32):
        raise n.refuse(f"a {r.mode} resize of {x.dtype} is not supported")
    axes = [axis % x.rank for axis in n.attr("axes") or range(x.rank)]
    policy = n.attr("keep_aspect_ratio_policy", "stretch")
    how = Sampling(r.mode, r.rule, r.rounding, r.cubic_a, r.exclude_outside, r.antialias, r.extrapolation, policy)
    roi = cast(b, n.input(1), F32) if r.rule == "tf_crop_and_resize" else None
    return cast(b, resized(b, cast(b, x, F32), how, axes_of(b, x, axes, how, scales, sizes, roi)), x.dtype)


def _fill(n: OnnxNode, r: Resizing, x: Value, axes: Sequence[int], scales: Sequence[float] = (),
          sizes: Sequence[Dim] = (), policy: str = "stretch") -> None:  # fmt: skip
    """Write sizes, scales and regions of every axis into `r`."""
    rank = x.rank if x.rank is not None else len(scales or sizes)
    axes = [a % rank if rank else 0 for a in axes]
    if not rank or len(axes) != len(scales or sizes):
        raise n.refuse(f"{n.op_type} has {len(scales or sizes)} scales or sizes for {rank} axes")
    r.sizes = list(x.shape) if x.shape is not None else [None] * rank
    r.outs, r.scales, r.roi = list(r.sizes), [1.0] * rank, [(0.0, 1.0)] * rank
    if policy != "stretch" and sizes:
        scales = [_common_scale(n, r, axes, sizes, policy)] * len(axes)
    for i, axis in enumerate(axes):
        size = r.sizes[axis]
        if not scales and sizes[i] is None and axis < 2 < rank:
            continue  # batch and channels stay: Interp could not resize them
        if not scales:
            r.outs[axis], r.scales[axis] = sizes[i], None
        elif isinstance(size, int):
            scaled = np.float32(size) * np.float32(scales[i])
            r.outs[axis], r.scales[axis] = int(scaled + 0.5 if sizes else scaled), scales[i]
        else:
            r.outs[axis], r.scales[axis] = (size if scales[i] == 1 else None), scales[i]
    if r.rule == "tf_crop_and_resize":
        roi = n.required_constant(1, "the region").reshape(2, -1)
        for axis, start, end in zip(axes, *roi.tolist(), strict=True):
            r.roi[axis] = (start, end)


def _common_scale(n: OnnxNode, r: Resizing, axes: Sequence[int], sizes: Sequence[Dim], policy: str) -> float:
    """The one scale of `keep_aspect_ratio_policy` not_larger or not_smaller."""
    pairs = [(s, r.sizes[a]) for s, a in zip(sizes, axes, strict=True)]
    if not all(isinstance(s, int) and isinstance(d, int) for s, d in pairs):
        raise n.refuse("keep_aspect_ratio_policy needs the sizes of the operand", hint=FIX_SIZES)
    ratios = [float(np.float32(s) / np.float32(d)) for s, d in pairs]
    return min(ratios) if policy == "not_larger" else max(ratios)


def _resize(b: Builder, n: OnnxNode, x: Value, r: Resizing, sizes: Value | None) -> Value:
    if r.mode not in ("nearest", "linear", "cubic"):
        raise n.refuse(f"the mode of {n.op_type} is {r.mode!r}")
    if r.mode != "nearest" and x.dtype != F32:
        raise n.refuse(f"a {r.mode} resize of integers is not supported")
    if not any(r.moves(i) for i in range(len(r.sizes))):
        return x
    dtype, x = x.dtype, cast(b, x, F32)
    form = _interp(r)
    if form is not None:
        return cast(b, _interpolated(b, n, x, r, Interp(form[0], form[1], cubic_a=r.cubic_a), sizes), dtype)
    if any(r.axis(i) is None for i in range(len(r.sizes)) if r.moves(i)):
        return _open(b, n, x, r, sizes, dtype)
    for axis in (r.axis(i) for i in range(len(r.sizes)) if r.moves(i)):
        if axis is not None:
            n.limited(axis.out, 1 if r.mode == "nearest" else axis.size)
    return cast(b, _composed(b, x, r), dtype)


def _open(b: Builder, n: OnnxNode, x: Value, r: Resizing, sizes: Value | None, dtype: np.dtype) -> Value:
    """What no Interp does and no constant weights can do: by the operand, or by the known scales on open sizes."""
    if sizes is None and n.op_type == "Resize" and n.has(3):
        sizes = n.input(3)
    if sizes is not None:
        scales, sizes = (sizes, None) if sizes.dtype == F32 else (None, sizes)
        return cast(b, _at_run_time(b, n, x, r, scales, sizes), dtype)
    known = [r.scales[axis] for axis in n.attr("axes") or range(len(r.scales))]
    return cast(b, _at_run_time(b, n, x, r, b.floats(known), None), dtype)


def _interp(r: Resizing) -> tuple[int, str] | None:
    """`resize_type` and rule with which Interp does exactly this, or None."""
    rank = len(r.sizes)
    moved = [i for i in range(rank) if r.moves(i)]
    if rank not in (3, 4) or min(moved) < 2 or r.antialias or any(s == 0 for s in r.sizes):
        return None
    if any(_rounded(r, i) for i in moved):
        return None
    rule = r.rule
    if rule == "half_pixel_symmetric" and all(_whole(r, i) for i in moved):
        rule = "half_pixel"
    if rule not in RULES:
        return None
    if r.mode == "nearest":
        return _nearest_interp(r, moved, rule)
    if r.mode == "linear":
        return None if rule == "tf_half_pixel_for_nn" else (LINEAR, RULES[rule])
    # Where the sizes are known a product with weights is exact; MNN is off in front of the first row.
    open_sizes = any(r.axis(i) is None for i in moved) and not r.exclude_outside
    return (CUBIC, RULES[rule]) if open_sizes and rule in ("align_corners", "asymmetric") else None


def _whole(r: Resizing, i: int) -> bool:
    """Whether out is exactly in * scale."""
    scale, size = r.scales[i], r.sizes[i]
    return scale is None or float(scale).is_integer() or (isinstance(size, int) and float(size * scale).is_integer())


def _rounded(r: Resizing, i: int) -> bool:
    """Whether out is not what Interp makes of the scale: the size was rounded to the nearest."""
    a = r.axis(i)
    return a is not None and r.scales[i] is not None and a.out != int(np.float32(a.size) * np.float32(a.scale))


def _nearest_interp(r: Resizing, moved: Sequence[int], rule: str) -> tuple[int, str] | None:
    """A form of Interp that picks the same rows, on the known sizes or, for known scales, on several."""
    own = {"floor": [(NEAREST, RULES[rule])], "round_prefer_floor": [(NEAREST_ROUND, RULES[rule])]}.get(r.rounding, [])
    if any(r.scales[i] is None and r.axis(i) is None for i in moved):
        return own[0] if own else None
    for kind, name in [(NEAREST, "Asymmetric"), (NEAREST_ROUND, "HalfPixels"), *own]:
        if all(_same_rows(a, r, rule, kind, name) for i in moved for a in _probes(r, i)):
            return kind, name
    return None


def _probes(r: Resizing, i: int) -> list[Axis]:
    known, scale = r.axis(i), r.scales[i]
    if known is not None or scale is None:
        return [known] if known is not None else []
    return [Axis(s, out, scale) for s in PROBES if (out := int(np.float32(s) * np.float32(scale)))]


def _same_rows(axis: Axis, r: Resizing, rule: str, kind: int, name: str) -> bool:
    """Whether Interp picks these rows, even if its coordinates are off by a few units of the last place."""
    at = positions(axis.size, axis.out, axis.scale, name)
    exact = (np.float32(1 / axis.scale) == 1 / axis.scale) and name == "Asymmetric"
    slack = 0 if exact else 1e-6 * np.maximum(1, np.abs(at))
    rounded = [np.floor(a) if kind == NEAREST else np.ceil(a - 0.5) for a in (at - slack, at + slack)]
    low, high = (np.clip(a, 0, axis.size - 1) for a in rounded)
    return np.array_equal(low, high) and np.array_equal(low, nearest_rows(axis, rule, r.rounding))


def _interpolated(b: Builder, n: OnnxNode, x: Value, r: Resizing, op: Interp, sizes: Value | None) -> Value:
    """Interp on planes; a line is a plane of one row."""
    rank, moved = len(r.sizes), [i for i in range(len(r.sizes)) if r.moves(i)]
    outs = [r.outs[i] for i in range(2, rank)]
    if all(r.scales[i] is None or _whole(r, i) for i in moved) and all(isinstance(o, int) for o in outs):
        size = b.ints([1] * (4 - rank) + outs)
    elif all(r.scales[i] is not None for i in range(rank)):
        size = b.floats([1.0, 1.0, *[1.0] * (4 - rank), *(r.scales[i] for i in range(2, rank))])
    elif sizes is not None:
        size = sizes if rank == 4 else b.add(StridedSlice(), sizes, b.ints([2]), b.ints([3]))
        if rank == 3:
            front = b.ints([1]) if size.dtype == I32 else b.floats([1.0] * 3)  # scales are those of all four axes
            size = b.add(Concat(0), front, size)
    else:
        raise n.refuse(f"{n.op_type} needs the sizes of the operand here", hint=FIX_SIZES)
    if rank == 4:
        return b.add(op, x, size)
    return b.add(Squeeze((2,)), b.add(op, b.add(Unsqueeze((2,)), x), size))


def _composed(b: Builder, x: Value, r: Resizing) -> Value:
    """Rows picked by index, or a product with a weight matrix, along each axis."""
    mask = np.ones((), bool)
    for i in range(len(r.sizes)):
        axis = r.axis(i)
        shown = np.ones(1, bool)
        if axis is not None and r.moves(i):
            x = _along(b, x, i, axis, r)
            shown = inside(axis, r.rule) if r.rule == "tf_crop_and_resize" else shown
        mask = np.logical_and.outer(mask, shown)
    if mask.all():
        return x
    x = b.add(Binary("MUL"), x, b.floats(mask))
    return b.add(Binary("ADD"), x, b.floats(np.where(mask, 0, r.extrapolation)))


def _along(b: Builder, x: Value, i: int, axis: Axis, r: Resizing) -> Value:
    if r.mode == "nearest":
        rows = nearest_rows(axis, r.rule, r.rounding)
        return x if np.array_equal(rows, np.arange(axis.size)) else b.add(GatherV2(), x, b.ints(rows), b.ints(i))
    weights = matrix(axis, r.rule, r.mode, r.cubic_a, r.exclude_outside, r.antialias)
    rank = len(r.sizes)
    if i == rank - 2:
        return b.add(MatMul(), b.floats(weights), x)
    if rank == 1:
        return b.add(Squeeze((0,)), b.add(MatMul(), b.add(Unsqueeze((0,)), x), b.floats(weights.T)))
    order = [*(j for j in range(rank) if j != i), i]
    moved = x if i == rank - 1 else b.add(Permute(tuple(order)), x)
    y = b.add(MatMul(), moved, b.floats(np.ascontiguousarray(weights.T)))
    return y if i == rank - 1 else b.add(Permute(tuple(int(k) for k in np.argsort(order))), y)
