"""Layer normalisation and RMS normalisation, in the spellings of the exporters of torch, keras and paddle.

The core becomes a LayerNorm with gamma 1 and beta 0 where the normalised sizes are known; factors and summands of the
right shape that follow go into gamma and beta.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mnnconvert.ir import Node, Value
from mnnconvert.ir.types import normal_axis
from mnnconvert.ops.normalization import LayerNorm
from mnnconvert.passes.algebra import single
from mnnconvert.passes.pattern import Constant, Pattern, Tracer
from mnnconvert.passes.rewrite import Maker, RewritePass, Rule


def _mean(op: Tracer, x: Pattern, bind: str) -> Pattern:
    return op.Reduction(x, bind=bind, operation="MEAN", keep_dims=True, dims=lambda dims: dims is not None)


def _axes(node: Node) -> tuple[int, ...] | None:
    """The axes of a mean counted from the start, when rank is known."""
    rank = node.inputs[0].rank
    return None if rank is None else tuple(sorted(normal_axis(a, rank) for a in node.op.dims))  # type: ignore[attr-defined]


def _sizes(x: Value, axes: tuple[int, ...]) -> list[int] | None:
    """The sizes along `axes` when they are all known."""
    sizes = [x.shape[a] for a in axes] if x.shape is not None else [None]
    known = [s for s in sizes if isinstance(s, int)]
    return known if len(known) == len(sizes) else None


def _normalized(op: Maker, x: Value, variance: Node, epsilon: Value, rms: bool) -> Any:
    axes = _axes(variance) or ()
    made = LayerNorm(axes=tuple(a - (x.rank or 0) for a in axes), epsilon=single(epsilon) or 0.0, rms=rms)
    sizes = _sizes(x, axes)
    if sizes is None:
        return op.add(made, x)
    count = int(np.prod(sizes))
    return op.add(made, x, op.constant(np.ones(count, np.float32)), op.constant(np.zeros(count, np.float32)))


def _unfit(variance: Node, epsilon: Value, mean: Node | None = None) -> str | None:
    axes = _axes(variance)
    if not axes or single(epsilon) is None:
        return "the rank is not known, or epsilon is not a single number"
    if mean is not None and _axes(mean) != axes:
        return "mean and variance are over different axes"
    return None


class CentredAndScaled(Rule):
    """d = x - mean(x); d / sqrt(mean(d^2) + eps) -> layer norm."""

    def pattern(self, op: Tracer, x: Pattern, epsilon: Constant) -> Pattern:
        mean = _mean(op, x, "mean")
        d = x - mean
        variance = _mean(op, op.either(op.Square(d), op.SquaredDifference(x, mean)), "variance") + epsilon
        return op.either(d / op.Sqrt(variance), d * op.Rsqrt(variance))

    def check(self, variance: Node, epsilon: Value, mean: Node) -> str | None:
        return _unfit(variance, epsilon, mean)

    def replace(self, op: Maker, x: Value, variance: Node, epsilon: Value) -> Any:
        return _normalized(op, x, variance, epsilon, rms=False)


class ScaledThenCentred(Rule):
    """s = gamma / sqrt(var + eps); x * s + (beta - mean * s), the batch-norm spelling of keras -> layer norm."""

    def pattern(self, op: Tracer, x: Pattern, epsilon: Constant, gamma: Constant, beta: Constant) -> Pattern:
        mean = _mean(op, x, "mean")
        square = op.either(op.SquaredDifference(x, mean), op.Square(x - mean))
        factor = op.Rsqrt(_mean(op, square, "variance") + epsilon) * gamma
        return x * factor + (beta - mean * factor)

    def check(self, x: Value, variance: Node, epsilon: Value, mean: Node, gamma: Value, beta: Value) -> str | None:
        reason = _unfit(variance, epsilon, mean)
        if reason:
            return reason
        fits = all(_parameter(c, x, _axes(variance) or ()) is not None for c in (gamma, beta))
        return None if fits else "gamma or beta is not one number per normalised element"

    def replace(self, op: Maker, x: Value, variance: Node, epsilon: Value, gamma: Value, beta: Value) -> Any:
        return op.Add(op.Mul(_normalized(op, x, variance, epsilon, rms=False), gamma), beta)


class RootMeanSquare(Rule):
    """x / sqrt(mean(x^2) + eps) -> RMS norm."""

    def pattern(self, op: Tracer, x: Pattern, epsilon: Constant) -> Pattern:
        power = _mean(op, op.Square(x), "variance") + epsilon
        return op.either(x / op.Sqrt(power), x * op.Rsqrt(power))

    def check(self, variance: Node, epsilon: Value) -> str | None:
        return _unfit(variance, epsilon)

    def replace(self, op: Maker, x: Value, variance: Node, epsilon: Value) -> Any:
        return _normalized(op, x, variance, epsilon, rms=True)


def _parameter(value: Value, x: Value, axes: tuple[int, ...]) -> np.ndarray | None:
    """A constant that broadcasts along `axes` of x only, as a vector of one number per normalised element."""
    sizes, given = _sizes(x, axes), value.constant
    if sizes is None or given is None or x.rank is None or given.ndim > x.rank:
        return None
    full = [1] * x.rank
    for axis, size in zip(axes, sizes, strict=True):
        full[axis] = size
    shape = (1,) * (x.rank - given.ndim) + given.shape
    if any(a not in (1, b) for a, b in zip(shape, full, strict=True)):
        return None
    return np.broadcast_to(given.reshape(shape), full).reshape(-1).astype(np.float32)


class _Affine(Rule):
    """What is common to a factor and a summand behind a LayerNorm."""

    def check(self, norm: Node, c: Value) -> str | None:
        fits = norm.op.group == 1 and self._vector(norm, c) is not None  # type: ignore[attr-defined]
        return None if fits else f"'{c.name}' is not one number per normalised element"

    def _vector(self, norm: Node, c: Value) -> np.ndarray | None:
        x = norm.inputs[0]
        if x.rank is None:
            return None
        return _parameter(c, x, tuple(sorted(normal_axis(a, x.rank) for a in norm.op.axes)))  # type: ignore[attr-defined]

    def _with(self, op: Maker, norm: Node, gamma: np.ndarray, beta: np.ndarray) -> Any:
        return op.add(replace(norm.op), norm.inputs[0], op.constant(gamma), op.constant(beta))  # type: ignore[type-var]


class IntoGamma(_Affine):
    """layer_norm(x; gamma, beta) * c -> layer_norm(x; gamma c, beta c)."""

    def pattern(self, op: Tracer, x: Pattern, gamma: Constant, beta: Constant, c: Constant) -> Pattern:
        return op.LayerNorm(x, gamma, beta, bind="norm") * c

    def replace(self, op: Maker, norm: Node, gamma: Value, beta: Value, c: Value) -> Any:
        factor = self._vector(norm, c)
        return self._with(op, norm, gamma.constant * factor, beta.constant * factor)  # type: ignore[operator]


class IntoBeta(_Affine):
    """layer_norm(x; gamma, beta) + c -> layer_norm(x; gamma, beta + c)."""

    def pattern(self, op: Tracer, x: Pattern, gamma: Constant, beta: Constant, c: Constant) -> Pattern:
        return op.LayerNorm(x, gamma, beta, bind="norm") + c

    def replace(self, op: Maker, norm: Node, gamma: Value, beta: Value, c: Value) -> Any:
        return self._with(op, norm, gamma.constant, beta.constant + self._vector(norm, c))  # type: ignore[arg-type, operator]


@dataclass(frozen=True)
class FuseNorm(RewritePass):
    """Layer normalisation and RMS normalisation with their gamma and beta."""

    name = "fuse-norm"
    after = ("canonical-algebra", "share-expressions")
    rules = (CentredAndScaled, ScaledThenCentred, RootMeanSquare, IntoGamma, IntoBeta)
