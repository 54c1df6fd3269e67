"""Exporters that transpose three axes only flatten batches and heads around it; here the axes stay apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mnnconvert.ir import Node, Value
from mnnconvert.ops.shape import Permute, Reshape
from mnnconvert.passes.pattern import Pattern, Tracer
from mnnconvert.passes.reshapes import target_of
from mnnconvert.passes.rewrite import Maker, RewritePass, Rule


class SwappedWhileFlat(Rule):
    """reshape(permute(reshape(x, [n, r, c]), [0, 2, 1]), [..., c, r]) -> a permutation of x as [..., r, c]."""

    def pattern(self, op: Tracer, x: Pattern, sizes: Pattern, target: Pattern) -> Pattern:
        flat = op.either(op.Reshape(x), op.Reshape(x, sizes))
        turned = op.Permute(flat, dims=(0, 2, 1), bind="turned")
        return op.either(op.Reshape(turned), op.Reshape(turned, target))

    def check(self, root: Node, x: Value, turned: Node) -> str | None:
        flat, whole = turned.output.shape or (), root.output.shape or ()
        if len(whole) < 4 or None in whole or whole[-2:] != flat[-2:]:
            return f"'{root.name}' does not only split the first axis"
        return None if target_of(x.shape, _turned(whole)) is not None else f"the shape of '{x.name}' is not known"

    def replace(self, op: Maker, root: Node, x: Value) -> Any:
        whole = root.output.shape or ()
        apart = op.add(Reshape(target_of(x.shape, _turned(whole))), x)
        first = tuple(range(len(whole) - 2))
        return op.add(Permute((*first, len(whole) - 1, len(whole) - 2)), apart)


def _turned(shape: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*shape[:-2], shape[-1], shape[-2])


@dataclass(frozen=True)
class PermuteApart(RewritePass):
    """Matrices are transposed where their batch axes are apart, as products and attention have them."""

    name = "permute-apart"
    after = ("resolve-reshapes",)
    rules = (SwappedWhileFlat,)
