"""Gated activations: SiLU, hard sigmoid's swish, and their spellings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mnnconvert.ir import Value
from mnnconvert.passes.pattern import Pattern, Tracer
from mnnconvert.passes.rewrite import Maker, RewritePass, Rule


class Silu(Rule):
    """x * sigmoid(x) -> silu(x)."""

    def pattern(self, op: Tracer, x: Pattern) -> Pattern:
        return op.either(x * op.Sigmoid(x), x / (op.Exp(op.Neg(x)) + 1))

    def replace(self, op: Maker, x: Value) -> Any:
        return op.Silu(x)


class HardSwish(Rule):
    """x * relu6(x + 3) / 6, or x times the hard sigmoid clip(x / 6 + 0.5, 0, 1) -> hardswish(x)."""

    def pattern(self, op: Tracer, x: Pattern) -> Pattern:
        gate = op.ReLU6(x + 3, minimum=0, maximum=6)
        sixth = op.either(x * (1 / 6), x / 6)
        return op.either(
            op.product(x, gate, 1 / 6),
            (x * gate) / 6,
            (x / 6) * gate,
            x * (gate / 6),
            x * op.ReLU6(sixth + 0.5, minimum=0, maximum=1),
        )

    def replace(self, op: Maker, x: Value) -> Any:
        return op.Hardswish(x)


@dataclass(frozen=True)
class FuseSwish(RewritePass):
    """x times a gate of x -> one op."""

    name = "fuse-swish"
    after = ("canonical-algebra", "share-expressions")
    rules = (Silu, HardSwish)
