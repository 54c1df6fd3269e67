"""Import rules of ops that change the shape, or that ask for it; constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mnnconvert.frontends.common.tensors import INT32_MAX, INT32_MIN, to_graph_type
from mnnconvert.frontends.onnx.node import OnnxNode
from mnnconvert.frontends.onnx.registry import onnx_op
from mnnconvert.frontends.onnx.tensors import tensor_of
from mnnconvert.ir import I32, ArrayTensor, Builder, Dim, LazyTensor, Shape, Tensor, Value
from mnnconvert.ir.types import normal_axis
from mnnconvert.ops.generators import Fill
from mnnconvert.ops.shape import Flatten, Permute, Reshape, ShapeOf, Size, Squeeze, Unsqueeze, reshaped


def static_target(shape: Shape | None, target: Sequence[Dim]) -> tuple[int, ...] | None:
    """`target` as numbers: 0 copies a size, -1 stands for the one that is left; None where more than one is left."""
    if all(isinstance(d, int) for d in target):
        return tuple(int(d) for d in target)  # type: ignore[arg-type]
    result: list[int] = []
    for i, (wanted, size) in enumerate(zip(target, reshaped(shape, target), strict=True)):
        if wanted == 0 or (isinstance(size, str) and shape is not None and i < len(shape) and shape[i] == size):
            result.append(0)
        else:
            result.append(size if isinstance(size, int) and size > 0 else -1)
    return tuple(result) if result.count(-1) < 2 else None


@onnx_op(
    "Reshape", since=5, limits="a 0 in a target that is only known when the model runs copies a size, allowzero or not"
)
def reshape(b: Builder, n: OnnxNode) -> Value:
    """A target that is known up to sizes copied from x needs no shape arithmetic when the model runs."""
    x, shape = n.input(0), n.input(1)
    target = shape.sizes
    if target is None:
        return b.add(Reshape(), x, shape)
    if n.attr("allowzero", 0) and 0 in target:
        return b.add(Fill(), shape, b.constant(np.zeros((), x.dtype)))  # no elements: there is nothing to move
    dims = static_target(x.shape, target)
    return b.add(Reshape(), x, shape) if dims is None else b.add(Reshape(dims), x)


@onnx_op("Reshape")
def reshape_to_attribute(b: Builder, n: OnnxNode) -> Value:
    return b.add(Reshape(n.attr("shape", ())), n.input(0))


@onnx_op("Flatten")
def flatten(b: Builder, n: OnnxNode) -> Value:
    x, axis = n.input(0), n.attr("axis", 1)
    if axis < 0 and x.rank is None:
        raise n.refuse(f"Flatten counts axis {axis} from the end of a tensor of unknown rank")
    return b.add(Flatten(axis + (x.rank or 0) if axis < 0 else axis), x)


def _axes(n: OnnxNode, rank: int | None) -> tuple[int, ...] | None:
    """The axes from the attribute or the operand, non-negative where the rank is known; None if given but not known."""
    axes = n.attr("axes")
    if axes is None and n.has(1):
        known = n.constant(1)
        if known is None:
            return None
        axes = tuple(int(a) for a in known.reshape(-1))
    axes = axes or ()
    return tuple(normal_axis(a, rank + len(axes) * (n.op_type == "Unsqueeze")) if rank is not None else a for a in axes)


@onnx_op("Squeeze")
def squeeze(b: Builder, n: OnnxNode) -> Value:
    x = n.input(0)
    axes = _axes(n, x.rank)
    if axes is None:
        return b.add(Squeeze(), x, n.input(1))
    if not axes and x.shape is not None and all(isinstance(d, int) and d != 1 for d in x.shape):
        return x
    return b.add(Squeeze(axes), x)


@onnx_op("Unsqueeze")
def unsqueeze(b: Builder, n: OnnxNode) -> Value:
    x = n.input(0)
    axes = _axes(n, x.rank)
    if axes == ():
        return x
    return b.add(Unsqueeze(), x, n.input(1)) if axes is None else b.add(Unsqueeze(axes), x)


@onnx_op("Transpose")
def transpose(b: Builder, n: OnnxNode) -> Value:
    x, perm = n.input(0), n.attr("perm", ())
    if x.rank is None and not perm:
        raise n.refuse("Transpose reverses the axes of a tensor of unknown rank")
    perm = perm or tuple(range(x.rank or 0))[::-1]
    return x if len(perm) < 2 else b.add(Permute(tuple(perm)), x)


@onnx_op("Shape")
def shape(b: Builder, n: OnnxNode) -> Value:
    """No sizes at all are a constant: the runtime has no op that yields an empty shape."""
    start, end = n.attr("start") or None, n.attr("end")
    x = n.input(0)
    if x.shape is not None and not x.shape[start:end]:
        return b.ints(np.zeros(0, np.int32))
    return b.add(ShapeOf(start, end), x)


@onnx_op("Size")
def size(b: Builder, n: OnnxNode) -> Value:
    return b.add(Size(), n.input(0))


@onnx_op("Identity")
def identity(b: Builder, n: OnnxNode) -> Value:
    return n.input(0)


@onnx_op("Constant", limits="no strings and no sparse tensors")
def constant(b: Builder, n: OnnxNode) -> Value:
    """A constant is treated like an initializer, so that rules find it in its source element type."""
    from onnx import numpy_helper

    if n.has_attr("value"):
        attribute = next(a for a in n.proto.attribute if a.name == "value")
        if attribute.ref_attr_name:
            return b.constant(_lenient(ArrayTensor(n.attr("value")), n.name))
        return _stored(b, n, attribute.t)
    for name, dtype in (
        ("value_float", np.float32),
        ("value_int", np.int64),
        ("value_floats", np.float32),
        ("value_ints", np.int64),
    ):
        if n.has_attr(name):
            return _stored(b, n, numpy_helper.from_array(np.asarray(n.attr(name), dtype)))
    raise n.refuse("a Constant holds strings or a sparse tensor, which MNN does not have", reference="unsupported-type")


def _stored(b: Builder, n: OnnxNode, tensor: Any) -> Value:
    output = n.proto.output[0]
    n.scope.initializers[output] = tensor
    return b.constant(_lenient(tensor_of(tensor, n.scope.importer.folder), output))


def _lenient(tensor: Tensor, name: str) -> Tensor:
    """As `to_graph_type`, but integers beyond 32 bits are refused only where they are used.

    Exporters write 2**63-1 for "to the end", which the rule of Slice understands in its source type.
    """
    if tensor.dtype.kind in "iu" and tensor.dtype.itemsize > 4:
        array = tensor.numpy()
        if array.size and (array.max() > INT32_MAX or array.min() < INT32_MIN):
            return LazyTensor(tensor, lambda a: to_graph_type(ArrayTensor(a), name).numpy(), I32, tuple(tensor.shape))
    return to_graph_type(tensor, name)
