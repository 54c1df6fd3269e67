"""Matrix products with constant weights: the bias goes in, and the product becomes a 1x1 convolution as MNN writes it.

As convolutions they can be quantized and run on the same kernels as every other convolution.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mnnconvert.ir import Node, Value
from mnnconvert.ir.tensor import reshaped, transposed
from mnnconvert.ops.arrange import Concat
from mnnconvert.ops.convolution import Convolution
from mnnconvert.ops.matmul import CONVERTED
from mnnconvert.ops.shape import Reshape, ShapeOf
from mnnconvert.passes.pattern import Constant, Pattern, Tracer
from mnnconvert.passes.reshapes import target_of
from mnnconvert.passes.rewrite import Maker, RewritePass, Rule


class SummandIntoMatMul(Rule):
    """a @ b + c with one number per column -> a @ b with a bias."""

    def pattern(self, op: Tracer, a: Pattern, b: Pattern, c: Constant) -> Pattern:
        return op.MatMul(a, b, bind="product") + c

    def check(self, root: Node, product: Node, c: Value) -> str | None:
        columns = product.output.shape[-1] if product.output.shape and (product.inputs[1].rank or 0) > 1 else None
        shape = c.shape or (None,)
        fits = isinstance(columns, int) and shape[-1] == columns and all(d == 1 for d in shape[:-1])
        return None if fits else f"'{c.name}' is not one number per column"

    def replace(self, op: Maker, product: Node, c: Value) -> Any:
        vector = c if c.rank == 1 else op.constant(np.asarray(c.constant).reshape(-1), c.name)
        return op.add(product.op, *product.inputs, vector)


@dataclass(frozen=True)
class FuseMatMulBias(RewritePass):
    """A constant that is added to the columns of a product becomes its bias."""

    name = "fuse-matmul-bias"
    after = ("fold-constants",)
    rules = (SummandIntoMatMul,)


class ConstantMatMul(Rule):
    """x[..., I] @ w[I, O] -> reshape to [-1, I, 1, 1], 1x1 convolution, reshape to [..., O]."""

    def pattern(self, op: Tracer, x: Pattern, w: Constant, bias: Constant) -> Pattern:
        return op.either(
            op.MatMul(x, w, bind="product", transpose_a=False), op.MatMul(x, w, bias, bind="product", transpose_a=False)
        )

    def check(self, x: Value, w: Value, bias: Value | None) -> str | None:
        if w.tensor is None or w.rank != 2 or 0 in (w.shape or ()):
            return f"'{w.name}' is not a constant matrix"
        if x.rank is None or x.rank < 2:
            return f"the rank of '{x.name}' is not known, or below 2"
        return None if bias is None or bias.rank == 1 else f"'{bias.name}' is not a vector"

    def replace(self, op: Maker, root: Node, x: Value, w: Value, bias: Value | None, product: Node) -> Any:
        assert w.tensor is not None
        tensor = w.tensor if product.op.transpose_b else transposed(w.tensor)  # type: ignore[attr-defined]
        outputs, inputs = tensor.shape
        weight = op.constant(reshaped(tensor, (outputs, inputs, 1, 1)), w.name)
        given = bias if bias is not None and bias.shape == (outputs,) else op.constant(_spread(bias, outputs))
        rows = op.add(Reshape((-1, inputs, 1, 1)), x)
        y = op.add(Convolution(), rows, weight, given, name=f"{root.name}{CONVERTED}")
        return _restored(op, x, y, outputs)


def _spread(bias: Value | None, outputs: int) -> np.ndarray:
    content = np.zeros(1, np.float32) if bias is None else np.asarray(bias.constant)
    return np.broadcast_to(content, (outputs,)).copy()


def _restored(op: Maker, x: Value, y: Value, outputs: int) -> Any:
    """y [rows, outputs, 1, 1] with the leading sizes of x: constant where one Reshape can say it, else computed."""
    leading = (x.shape or ())[:-1]
    dims = target_of(y.shape, (*leading, outputs))
    if dims is not None:
        return op.add(Reshape(dims), y)
    sizes = op.add(ShapeOf(end=-1), x)
    return op.add(Reshape(), y, op.add(Concat(0), sizes, op.constant(np.array([outputs], np.int32))))


@dataclass(frozen=True)
class ConvertMatMul(RewritePass):
    """Products with a constant matrix become 1x1 convolutions; the weight is neither copied nor loaded."""

    name = "convert-matmul"
    after = ("fuse-matmul-bias",)
    rules = (ConstantMatMul,)
