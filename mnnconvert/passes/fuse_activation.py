"""ReLU and ReLU6 become attributes of the convolution, or of the arithmetic, before them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from mnnconvert.ir import Node
from mnnconvert.ops.matmul import CONVERTED
from mnnconvert.passes.fuse_affine import convolved
from mnnconvert.passes.pattern import Pattern, Tracer
from mnnconvert.passes.rewrite import Maker, RewritePass, Rule

FOLLOWED = {  # activation of the convolution, activation after it -> activation of both
    ("", "relu"): "relu", ("", "relu6"): "relu6", ("relu", "relu"): "relu",
    ("relu", "relu6"): "relu6", ("relu6", "relu"): "relu6", ("relu6", "relu6"): "relu6",
}  # fmt: skip


def _activated(op: Tracer, y: Pattern) -> Pattern:
    return op.either(op.ReLU(y, slope=0), op.ReLU6(y, minimum=0, maximum=6))


def _fused(op: Maker, conv: Node, root: Node, name: str = "") -> Any:
    after = "relu" if root.op.kind == "ReLU" else "relu6"
    both = FOLLOWED[conv.op.activation, after]  # type: ignore[attr-defined]
    return op.add(replace(conv.op, activation=both), *conv.inputs, name=name)  # type: ignore[type-var]


class ActivationIntoConvolution(Rule):
    """relu(conv(x)), relu6(conv(x))."""

    def pattern(self, op: Tracer, x: Pattern, w: Pattern, b: Pattern, size: Pattern) -> Pattern:
        return _activated(op, convolved(op, x, w, b, size))

    def replace(self, op: Maker, root: Node, conv: Node) -> Any:
        return _fused(op, conv, root)


class ActivationThroughReshape(Rule):
    """relu(reshape(conv(x))), as a matrix product that became a convolution leaves it."""

    def pattern(self, op: Tracer, x: Pattern, w: Pattern, b: Pattern, size: Pattern, target: Pattern) -> Pattern:
        conv = convolved(op, x, w, b, size)
        return _activated(op, op.either(op.Reshape(conv, bind="reshape"), op.Reshape(conv, target, bind="reshape")))

    def replace(self, op: Maker, root: Node, conv: Node, reshape: Node) -> Any:
        name = f"{root.name}{CONVERTED}" if conv.name.endswith(CONVERTED) else ""
        return op.add(reshape.op, _fused(op, conv, root, name), *reshape.inputs[1:])


class ReluIntoArithmetic(Rule):
    """relu(a + b), and of a difference or product."""

    def pattern(self, op: Tracer, a: Pattern, b: Pattern) -> Pattern:
        drawn = (op.Add(a, b, bind="binary"), op.Sub(a, b, bind="binary"), op.Mul(a, b, bind="binary"))
        return op.ReLU(op.either(*drawn), slope=0)

    def replace(self, op: Maker, binary: Node) -> Any:
        return op.add(replace(binary.op, activation=1), *binary.inputs)  # type: ignore[type-var]


@dataclass(frozen=True)
class FuseActivation(RewritePass):
    """ReLU and ReLU6 go into the convolution or the arithmetic before them."""

    name = "fuse-activation"
    after = ("fuse-affine", "canonical-algebra")
    rules = (ActivationIntoConvolution, ActivationThroughReshape, ReluIntoArithmetic)
