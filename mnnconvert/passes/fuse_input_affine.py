"""A single factor and summand in front of a convolution go into its weight and bias."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mnnconvert.ir import ArrayTensor, Node, Value
from mnnconvert.passes.pattern import Constant, Pattern, Tracer
from mnnconvert.passes.rewrite import Maker, RewritePass, Rule
from mnnconvert.passes.weights import scaled


def _one_number(value: Value | None) -> bool:
    return value is None or (
        value.shape is not None and all(d == 1 for d in value.shape) and value.constant is not None
    )


def _number(value: Value | None, default: float) -> np.float32:
    known = None if value is None else value.constant
    return np.float32(default) if known is None else np.float32(known.reshape(-1)[0])


class _BeforeConvolution(Rule):
    """conv(x * a + c) -> conv'(x): weight' = a * weight, bias' = bias + c * (sum of the weight of each output)."""

    def check(self, conv: Node, w: Value, scale: Value | None, shift: Value | None) -> str | None:
        if not _one_number(scale) or not _one_number(shift):
            return "the factor or summand is not a single number"
        if shift is not None and (any(conv.op.pads) or conv.op.pad_mode != "CAFFE"):  # type: ignore[attr-defined]
            return f"'{conv.name}' pads with zeros after the addition"
        return None if len(w.users) == 1 else f"'{w.name}' belongs to other layers too"

    def replace(
        self, op: Maker, conv: Node, x: Value, w: Value, b: Value, scale: Value | None, shift: Value | None
    ) -> Any:
        tensor = w.tensor if w.tensor is not None else ArrayTensor(np.asarray(w.constant))
        if shift is not None:
            sums = tensor.numpy().reshape(tensor.shape[0], -1).sum(axis=1, dtype=np.float64)
            b = op.constant((np.asarray(b.constant) + sums * _number(shift, 0)).astype(np.float32), b.name)
        if scale is not None:
            w = op.constant(scaled(tensor, _number(scale, 1).reshape(1, 1, 1, 1)), w.name)
        return op.add(replace(conv.op), x, w, b)  # type: ignore[type-var]


class AffineBeforeConvolution(_BeforeConvolution):
    """conv(x * a + c)."""

    def pattern(self, op: Tracer, x: Pattern, w: Constant, b: Constant, scale: Constant, shift: Constant) -> Pattern:
        return op.Convolution(x * scale + shift, w, b, bind="conv")


class SummandBeforeConvolution(_BeforeConvolution):
    """conv(x + c)."""

    def pattern(self, op: Tracer, x: Pattern, w: Constant, b: Constant, shift: Constant) -> Pattern:
        return op.Convolution(x + shift, w, b, bind="conv")


class FactorBeforeConvolution(_BeforeConvolution):
    """conv(x * a)."""

    def pattern(self, op: Tracer, x: Pattern, w: Constant, b: Constant, scale: Constant) -> Pattern:
        return op.Convolution(x * scale, w, b, bind="conv")


@dataclass(frozen=True)
class FuseInputAffine(RewritePass):
    """One factor and one summand before a convolution go into it; a summand only where nothing is padded."""

    name = "fuse-input-affine"
    after = ("fuse-affine",)
    rules = (AffineBeforeConvolution, SummandBeforeConvolution, FactorBeforeConvolution)
