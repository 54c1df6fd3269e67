"""Matrix products: MatMul with numpy's rules for batches and vectors, and the old inner product of Caffe files."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from mnnconvert.ir.types import F32, Shape, Spec, broadcast, normal_axis, product
from mnnconvert.ops.base import Emission, Fields, Form, Op, register
from mnnconvert.ops.samples import grid

CONVERTED = "__matmul_converted"
"""Ends the name of a convolution that was a product: MNN's own mark, so that its settings per layer find the layer."""


def _swap(shape: Shape, transposed: bool) -> Shape:
    return (*shape[:-2], shape[-1], shape[-2]) if transposed and len(shape) > 1 else shape


def product_shape(a: Shape, b: Shape) -> Shape:
    """The shape of numpy's matmul; ValueError where the operands do not fit."""
    if not a or not b:
        raise ValueError("a scalar has no matrix product")
    rows, columns = a[:-1][-1:], b[-1:] if len(b) > 1 else ()
    inner, other = a[-1], b[-2] if len(b) > 1 else b[0]
    if isinstance(inner, int) and isinstance(other, int) and inner != other:
        raise ValueError(f"the inner sizes {inner} and {other} differ")
    batch = broadcast(a[:-2], b[:-2]) or ()
    return (*batch, *rows, *columns)


@register("BatchMatMul")
class MatMul(Op):
    """y = a @ b (+ bias on the last axis), broadcasting leading axes and taking vectors as numpy does.

    `transpose_a` and `transpose_b` swap the last two axes of an operand first; a vector stays as it is.
    """

    transpose_a: bool = False
    transpose_b: bool = False

    form = Form("MatMul", "MatMul", {"transpose_a": "transposeA", "transpose_b": "transposeB"})

    def infer(self, a: Spec, b: Spec, bias: Spec | None = None) -> Spec:
        if a.dtype != F32 or b.dtype != F32:
            raise ValueError(f"a matrix product takes float32, not {a.dtype} and {b.dtype}")
        if a.shape is None or b.shape is None:
            return Spec(F32)
        return Spec(F32, product_shape(_swap(a.shape, self.transpose_a), _swap(b.shape, self.transpose_b)))

    def ref(self, a: np.ndarray, b: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
        with np.errstate(all="ignore"):
            y = np.asarray(np.matmul(_transposed(a, self.transpose_a), _transposed(b, self.transpose_b)))
            return y if bias is None else y + bias

    @classmethod
    def parse(cls, type: str, fields: Fields) -> MatMul:
        names = ("adjX", "adjY") if type == "BatchMatMul" else ("transposeA", "transposeB")
        return cls(*(bool(fields.get(name)) for name in names))

    samples = (
        grid(transpose_a=[False], transpose_b=[False], a=[(3, 4), (2, 3, 4), (5, 1, 3, 4)], b=[(4, 5), (4,), (2, 4, 1)])
        + grid(a=[(4,)], b=[(4,), (4, 5), (2, 4, 5)])
        + grid(transpose_a=[True], transpose_b=[True], a=[(4, 3), (2, 4, 3)], b=[(5, 4), (2, 5, 4)])
        + grid(transpose_a=[False], transpose_b=[True], a=[(2, 3, 4)], b=[(5, 4)], bias=[(5,)])
    )


def _transposed(x: np.ndarray, transpose: bool) -> np.ndarray:
    return np.swapaxes(x, -1, -2) if transpose and x.ndim > 1 else x


@register()
class InnerProduct(Op):
    """y[n, o] = sum over i of x[n, i] * weight[o, i] + bias[o]; x is flattened from `axis` on. For old files only."""

    axis: int = 1

    form = Form("InnerProduct", "InnerProduct", {"axis": "axis"})
    embedded = ("weight", "bias")

    def infer(self, x: Spec, w: Spec, b: Spec) -> Spec:
        outputs = w.shape[0] if w.shape else None
        if x.shape is None:
            return Spec(F32)
        return Spec(F32, (product(x.shape[: normal_axis(self.axis, len(x.shape))]), outputs))

    def ref(self, x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
        rows = math.prod(x.shape[: normal_axis(self.axis, x.ndim)])
        return x.reshape(rows, -1) @ w.T + b

    def emit(self, x: Spec, w: Spec, b: Spec) -> Emission:
        outputs = w.shape[0] if w.shape else 0
        size = product(w.shape or ())
        fields = {
            "axis": self.axis,
            "outputCount": outputs,
            "biasTerm": 1,
            "weightSize": size if isinstance(size, int) else 0,
        }
        return Emission("InnerProduct", "InnerProduct", fields)

    def embedded_shapes(self, fields: Fields, counts: Mapping[str, int]) -> tuple[Shape, ...]:
        outputs = fields["outputCount"]
        return (outputs, counts["weight"] // max(1, outputs)), (outputs,)

    samples = grid(x=[(3, 8), (2, 2, 2, 2)], w=[(4, 8)], b=[(4,)], axis=[1])
