"""Padding of the plane with zeros goes into the pads of the convolution or pooling behind it, where that is exact."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mnnconvert.ir import Node, Value
from mnnconvert.ops.convolution import Pads
from mnnconvert.passes.pattern import Constant, Pattern, Tracer
from mnnconvert.passes.rewrite import Maker, RewritePass, Rule

NOT_NEGATIVE = {"SIGMOID", "EXP", "ABS", "SQUARE", "SQRT", "RSQRT", "BNLL"}


def _padded(op: Tracer, x: Pattern, amounts: Pattern, fill: Pattern) -> Pattern:
    return op.either(
        op.Padding(x, amounts, bind="padding", mode="CONSTANT"),
        op.Padding(x, amounts, fill, bind="padding", mode="CONSTANT"),
    )


def _plane(amounts: Value, rank: int | None) -> Pads | None:
    """[top, left, bottom, right] of paddings [rank, 2] when nothing else is padded and none is negative."""
    given = np.asarray(amounts.constant).reshape(-1, 2)
    if rank != 4 or len(given) != 4 or given[:2].any() or (given < 0).any():
        return None
    return (int(given[2, 0]), int(given[3, 0]), int(given[2, 1]), int(given[3, 1]))


def _filled_with(fill: Value | None) -> float | None:
    if fill is None:
        return 0.0
    content = np.asarray(fill.constant)
    return float(content.reshape(-1)[0]) if content.size == 1 else None


def _sum(op: Any, pads: Pads) -> Pads:
    top, left, bottom, right = (a + b for a, b in zip(op.pads, pads, strict=True))
    return (top, left, bottom, right)


class IntoConvolution(Rule):
    """conv(pad(x, 0)) -> conv(x) with larger pads."""

    def pattern(self, op: Tracer, x: Pattern, amounts: Constant, fill: Constant, w: Pattern, b: Pattern) -> Pattern:
        y = _padded(op, x, amounts, fill)
        return op.either(op.Convolution(y, w, b, pad_mode="CAFFE"), op.Convolution(y, w, pad_mode="CAFFE"))

    def check(self, x: Value, amounts: Value, fill: Value | None) -> str | None:
        if _filled_with(fill) != 0:
            return "the padding is not 0"
        return None if _plane(amounts, x.rank) else "more than the plane is padded, or less than nothing"

    def replace(self, op: Maker, root: Node, x: Value, amounts: Value) -> Any:
        pads = _sum(root.op, _plane(amounts, x.rank) or (0, 0, 0, 0))
        return op.add(replace(root.op, pads=pads), x, *root.inputs[1:])  # type: ignore[type-var]


class IntoMaxPooling(Rule):
    """maxpool(pad(x)) -> maxpool(x) with pads, when the padding never wins: it is -inf, or 0 where x is not negative.

    A window that lies in the padding alone would have nothing to choose from, so pads stay below the kernel.
    """

    def pattern(self, op: Tracer, x: Pattern, amounts: Constant, fill: Constant) -> Pattern:
        return op.Pooling(
            _padded(op, x, amounts, fill), function="MAXPOOL", pad_mode="CAFFE", ceil=False, whole=False, indices=False
        )

    def check(self, root: Node, x: Value, amounts: Value, fill: Value | None) -> str | None:
        pads, value = _plane(amounts, x.rank), _filled_with(fill)
        if pads is None:
            return "more than the plane is padded, or less than nothing"
        if not (value == -np.inf or (value == 0 and not_negative(x))):
            return f"the padding of {value} may be a maximum"
        inside = all(p < k for p, k in zip(_sum(root.op, pads), root.op.kernel * 2, strict=True))  # type: ignore[attr-defined]
        return None if inside else "a window may lie in the padding alone"

    def replace(self, op: Maker, root: Node, x: Value, amounts: Value) -> Any:
        return op.add(replace(root.op, pads=_sum(root.op, _plane(amounts, x.rank) or (0, 0, 0, 0))), x)  # type: ignore[type-var]


class IntoAveragePooling(Rule):
    """avgpool(pad(x, 0)) without pads -> avgpool(x) that counts its pads, which must be the same on both sides."""

    def pattern(self, op: Tracer, x: Pattern, amounts: Constant, fill: Constant) -> Pattern:
        y = _padded(op, x, amounts, fill)
        return op.Pooling(y, function="AVEPOOL", pad_mode="CAFFE", ceil=False, whole=False, pads=(0, 0, 0, 0))

    def check(self, root: Node, x: Value, amounts: Value, fill: Value | None) -> str | None:
        pads = _plane(amounts, x.rank)
        if _filled_with(fill) != 0 or pads is None or pads[:2] != pads[2:]:
            return "the padding is not 0, or not the same on both sides of the plane"
        inside = all(p < k for p, k in zip(pads, root.op.kernel * 2, strict=True))  # type: ignore[attr-defined]
        return None if inside else "a window may lie in the padding alone"

    def replace(self, op: Maker, root: Node, x: Value, amounts: Value) -> Any:
        return op.add(replace(root.op, pads=_plane(amounts, x.rank), count="INCLUDE_PADDING"), x)  # type: ignore[type-var]


def not_negative(value: Value) -> bool:
    """Whether the op that makes a value never gives a negative number."""
    op: Any = value.producer.op if value.producer is not None else None
    kind = getattr(op, "kind", "")
    if kind in ("Convolution", "Deconvolution", "Binary"):
        return bool(op.activation)
    if kind == "ReLU6":
        return bool(op.minimum >= 0)
    return kind == "Softmax" or (kind == "ReLU" and op.slope == 0) or (kind == "Unary" and op.function in NOT_NEGATIVE)


@dataclass(frozen=True)
class FusePadding(RewritePass):
    """Zeros around the plane are the business of the convolution or pooling that reads it."""

    name = "fuse-padding"
    after = ("fold-constants",)
    rules = (IntoConvolution, IntoMaxPooling, IntoAveragePooling)
