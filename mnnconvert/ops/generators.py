"""Values from nothing but sizes and bounds: ranges, fills, unit matrices, random numbers."""

from __future__ import annotations

import math

import numpy as np

from mnnconvert.ir.types import F32, I32, Dim, Spec, ceildiv, size_content
from mnnconvert.ops.base import Form, Op, register
from mnnconvert.ops.content import LARGEST
from mnnconvert.ops.samples import exactly, floats, grid, integers


def _shape_of(shape: Spec) -> tuple[Dim, ...] | None:
    """The shape that an operand of sizes describes, as far as it is known."""
    if shape.sizes is not None:
        return tuple(shape.sizes)
    count = shape.shape[0] if shape.rank == 1 and shape.shape else None
    return (None,) * count if isinstance(count, int) else None


@register()
class Range(Op):
    """start, start + delta, ... up to but without limit; three scalars of one type."""

    form = Form("Range")

    def infer(self, start: Spec, limit: Spec, delta: Spec) -> Spec:
        if not start.dtype == limit.dtype == delta.dtype:
            raise ValueError(f"the bounds are {start.dtype}, {limit.dtype} and {delta.dtype}")
        first, last, step = (s.sizes[0] if s.dtype == I32 and s.sizes else None for s in (start, limit, delta))
        if isinstance(first, int) and isinstance(last, int) and isinstance(step, int) and step:
            return Spec(start.dtype, (max(0, -((first - last) // step)),))
        bounds = [s.constant for s in (start, limit, delta)]
        known = [b.reshape(-1)[0] for b in bounds if b is not None]
        if len(known) == len(bounds) and known[2] != 0:
            return Spec(start.dtype, (_count(*known),))
        return Spec(start.dtype, (ceildiv(last, step) if first == 0 and isinstance(step, int) and step > 0 else None,))

    def ref(self, start: np.ndarray, limit: np.ndarray, delta: np.ndarray) -> np.ndarray:
        first, last, step = (v.reshape(-1)[0] for v in (start, limit, delta))
        if step == 0:
            raise ValueError("a range with steps of 0 has no end")
        return np.asarray(first + np.arange(_count(first, last, step)).astype(start.dtype) * step, start.dtype)

    samples = grid(start=[exactly(1), exactly(9)], limit=[exactly(6)], delta=[exactly(2), exactly(-1)]) + grid(
        start=[floats(low=0, high=1)], limit=[floats(low=3, high=9)], delta=[floats(low=0.3, high=1)]
    )


def _count(first: np.generic, last: np.generic, step: np.generic) -> int:
    """Numbers of a range; ValueError where they have no end."""
    steps = (float(last) - float(first)) / float(step)
    if not math.isfinite(steps):
        raise ValueError(f"a range from {first} to {last} in steps of {step} has no end")
    return max(0, math.ceil(steps))


@register()
class Fill(Op):
    """A tensor of the operand shape int32 that holds the scalar value everywhere."""

    form = Form("Fill")

    def infer(self, shape: Spec, value: Spec) -> Spec:
        made = Spec(value.dtype, _shape_of(shape))
        if value.dtype == I32 and value.sizes and made.shape is not None and len(made.shape) < 2:
            count = made.shape[0] if made.shape else 1
            if isinstance(count, int) and count <= LARGEST and value.sizes[0] is not None:
                made.content = size_content(value.sizes[:1] * count).reshape(made.shape)  # type: ignore[arg-type]
        return made

    def ref(self, shape: np.ndarray, value: np.ndarray) -> np.ndarray:
        return np.full(tuple(int(d) for d in shape), value.reshape(-1)[0], value.dtype)

    samples = grid(shape=[exactly([2, 3]), exactly([]), exactly([0, 4])], value=[floats(), exactly(7)]) + grid(
        shape=[exactly([3])], value=[exactly([2])]
    )


@register()
class LinSpace(Op):
    """`count` evenly spaced float32 from start to stop, both included. Operands: start, stop, count int32."""

    form = Form("LinSpace")

    def infer(self, start: Spec, stop: Spec, count: Spec) -> Spec:
        return Spec(F32, (count.sizes[0] if count.sizes else None,))

    def ref(self, start: np.ndarray, stop: np.ndarray, count: np.ndarray) -> np.ndarray:
        first, last = float(start.reshape(-1)[0]), float(stop.reshape(-1)[0])
        return np.linspace(first, last, int(count.reshape(-1)[0]), dtype=F32)

    samples = grid(start=[floats()], stop=[floats()], count=[exactly(1), exactly(5)])


@register()
class EyeLike(Op):
    """Ones on diagonal k (operand int32, 0 without it), zeros elsewhere, in the shape and type of the matrix x."""

    form = Form("EyeLike")

    def infer(self, x: Spec, k: Spec | None = None) -> Spec:
        if x.rank not in (None, 2):
            raise ValueError("a unit matrix has two axes")
        return Spec(x.dtype, x.shape or (None, None))

    def ref(self, x: np.ndarray, k: np.ndarray | None = None) -> np.ndarray:
        offset = 0 if k is None else int(k.reshape(-1)[0])
        return np.asarray(np.eye(x.shape[0], x.shape[1], k=offset), x.dtype)

    samples = grid(x=[(3, 4)]) + grid(x=[(3, 4), integers(4, 2)], k=[exactly(0), exactly(1), exactly(-2)])


@register()
class ZerosLike(Op):
    """Zeros in the shape and type of x."""

    form = Form("ZerosLike")

    def infer(self, x: Spec) -> Spec:
        return Spec(x.dtype, x.shape)

    def ref(self, x: np.ndarray) -> np.ndarray:
        return np.zeros_like(x)

    samples = grid(x=[(2, 3), integers(4), ()])


class _Random(Op):
    """Float32 of the operand shape int32; the same for the same non-zero seed, else different each time."""

    seed: int = 0
    pure = False

    def infer(self, shape: Spec) -> Spec:
        return Spec(F32, _shape_of(shape))

    def _generator(self) -> np.random.Generator:
        return np.random.default_rng(self.seed or None)


@register()
class RandomUniform(_Random):
    """Uniform in [low, high)."""

    low: float = 0.0
    high: float = 1.0
    seed: int = 0

    form = Form("RandomUniform", "RandomUniform", {"low": "low", "high": "high", "seed": "seed"})

    def ref(self, shape: np.ndarray) -> np.ndarray:
        return self._generator().uniform(self.low, self.high, tuple(shape.tolist())).astype(F32)

    samples = grid(low=[0.0, -2.0], high=[1.0], seed=[0, 3], shape=[exactly([2, 3])])


@register()
class RandomNormal(_Random):
    """Normal with `mean` and standard deviation `scale`."""

    mean: float = 0.0
    scale: float = 1.0
    seed: int = 0

    form = Form("RandomNormal", "RandomUniform", {"mean": "low", "scale": "high", "seed": "seed"})

    def ref(self, shape: np.ndarray) -> np.ndarray:
        return self._generator().normal(self.mean, self.scale, tuple(shape.tolist())).astype(F32)

    samples = grid(mean=[0.5], scale=[2.0], seed=[0, 3], shape=[exactly([2, 3])])
