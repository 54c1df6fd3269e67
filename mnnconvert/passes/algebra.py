"""Canonical spellings: the same arithmetic in the form that fusions look for and that is cheapest to run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mnnconvert.ir import Value
from mnnconvert.passes.pattern import Constant, Pattern, Tracer
from mnnconvert.passes.rewrite import Maker, RewritePass, Rule


class PowerOfTwo(Rule):
    """x ^ 2 or x * x -> square(x)."""

    def pattern(self, op: Tracer, x: Pattern) -> Pattern:
        return op.either(op.Pow(x, 2), op.Mul(x, x))

    def replace(self, op: Maker, x: Value) -> Any:
        return op.Square(x)


class SquareRoot(Rule):
    """x ^ 0.5 -> sqrt(x)."""

    def pattern(self, op: Tracer, x: Pattern) -> Pattern:
        return op.Pow(x, 0.5)

    def replace(self, op: Maker, x: Value) -> Any:
        return op.Sqrt(x)


class InverseRoot(Rule):
    """1 / sqrt(x), reciprocal of sqrt(x), x ^ -0.5 -> rsqrt(x)."""

    def pattern(self, op: Tracer, x: Pattern) -> Pattern:
        return op.either(op.Div(1, op.Sqrt(x)), op.Reciprocal(op.Sqrt(x)), op.Pow(x, -0.5))

    def replace(self, op: Maker, x: Value) -> Any:
        return op.Rsqrt(x)


class NegatedTwice(Rule):
    """-(-x) -> x."""

    def pattern(self, op: Tracer, x: Pattern) -> Pattern:
        return op.Neg(op.Neg(x))

    def replace(self, op: Maker, x: Value) -> Any:
        return x


class MaximumIsRelu(Rule):
    """max(x, 0) -> relu(x)."""

    def pattern(self, op: Tracer, x: Pattern) -> Pattern:
        return op.Maximum(x, 0)

    def check(self, x: Value) -> str | None:
        return None if x.dtype.kind == "f" else "relu is for floats"

    def replace(self, op: Maker, x: Value) -> Any:
        return op.ReLU(x)


class Clip(Rule):
    """min(max(x, a), b), max first -> clamp to [a, b]; with a <= b the other order is the same."""

    def pattern(self, op: Tracer, x: Pattern, low: Constant, high: Constant) -> Pattern:
        return op.either(op.Minimum(op.Maximum(x, low), high), op.Maximum(op.Minimum(x, high), low))

    def check(self, x: Value, low: Value, high: Value) -> str | None:
        a, b = single(low), single(high)
        if x.dtype.kind != "f" or a is None or b is None:
            return "the bounds are not single floats"
        return None if a <= b else f"the bounds {a:g} and {b:g} are not in order"

    def replace(self, op: Maker, x: Value, low: Value, high: Value) -> Any:
        return op.ReLU6(x, minimum=single(low), maximum=single(high))


class ConditionTimesOnes(Rule):
    """A choice by a condition times a tensor of ones, which keras makes masks of -> by the condition."""

    def pattern(self, op: Tracer, condition: Pattern, shape: Pattern, yes: Pattern, no: Pattern) -> Pattern:
        return op.Select(op.Mul(op.Fill(shape, 1), condition), yes, no)

    def replace(self, op: Maker, condition: Value, yes: Value, no: Value) -> Any:
        return op.Select(condition, yes, no)


def single(value: Value) -> float | None:
    """The number that a constant of one element holds."""
    if value.shape is None or any(d != 1 for d in value.shape) or value.constant is None:
        return None
    return float(np.asarray(value.constant).reshape(-1)[0])


@dataclass(frozen=True)
class CanonicalAlgebra(RewritePass):
    """Squares, roots, relu, clip and conditions in one spelling."""

    name = "canonical-algebra"
    after = ("fold-constants",)
    rules = (PowerOfTwo, SquareRoot, InverseRoot, NegatedTwice, Clip, MaximumIsRelu, ConditionTimesOnes)
