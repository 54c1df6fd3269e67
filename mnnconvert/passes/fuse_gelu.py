"""Exported GELU comes as a handful of element-wise nodes in many spellings; MNN has one op for each of two forms."""

from __future__ import annotations

from dataclasses import dataclass
from math import pi, sqrt
from typing import Any

from mnnconvert.ir import Value
from mnnconvert.passes.pattern import Pattern, Tracer
from mnnconvert.passes.rewrite import Maker, RewritePass, Rule


def _halved(op: Tracer, x: Pattern, gate: Pattern) -> Pattern:
    """0.5 * x * (1 + gate) with the 0.5 anywhere, also as 0.5 + 0.5 * gate or a division by 2."""
    one_more = gate + 1
    return op.either(
        op.product(x, one_more, 0.5),
        op.either(x * one_more, one_more * x) / 2,
        (x / 2) * one_more,
        x * (one_more / 2),
        x * (gate * 0.5 + 0.5),
    )


class GeluErf(Rule):
    """0.5 * x * (1 + erf(x / sqrt 2)) -> gelu(x)."""

    def pattern(self, op: Tracer, x: Pattern) -> Pattern:
        return _halved(op, x, op.Erf(op.either(x / sqrt(2), x * sqrt(0.5))))

    def replace(self, op: Maker, x: Value) -> Any:
        return op.GeluStandard(x)


class GeluTanh(Rule):
    """0.5 * x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))) -> the approximate gelu(x)."""

    def pattern(self, op: Tracer, x: Pattern) -> Pattern:
        square = op.Square(x)
        cubic = op.either(
            op.Pow(x, 3) * 0.044715,
            op.product(x, square, 0.044715),
            ((x * 0.044715) * x) * x,
        )
        factored = op.product(x, op.either(square * 0.044715, (x * 0.044715) * x) + 1, sqrt(2 / pi))
        return _halved(op, x, op.Tanh(op.either((x + cubic) * sqrt(2 / pi), factored)))

    def replace(self, op: Maker, x: Value) -> Any:
        return op.Gelu(x)


class Approximate(Rule):
    """The exact gelu -> the approximate one, up to 5e-4 away."""

    def pattern(self, op: Tracer, x: Pattern) -> Pattern:
        return op.GeluStandard(x)

    def replace(self, op: Maker, x: Value) -> Any:
        return op.Gelu(x)


@dataclass(frozen=True)
class FuseGelu(RewritePass):
    """Both forms of GELU, as torch, keras and paddle export them."""

    name = "fuse-gelu"
    after = ("canonical-algebra", "share-expressions")
    rules = (GeluErf, GeluTanh)


@dataclass(frozen=True)
class ApproximateGelu(RewritePass):
    """Use the tanh form of GELU everywhere (on request: values change by up to 5e-4)."""

    name = "approximate-gelu"
    after = ("fuse-gelu",)
    rules = (Approximate,)
