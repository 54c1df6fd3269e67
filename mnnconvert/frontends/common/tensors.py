"""Tensors of a source model in the element types of the graph."""

from __future__ import annotations

from mnnconvert.errors import ConversionError
from mnnconvert.ir import F32, I8, I32, U8, ArrayTensor, CastTensor, Tensor

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1


def to_graph_type(tensor: Tensor, name: str) -> Tensor:
    """The tensor in an element type of the graph. Integers that do not fit into 32 bits are refused by name."""
    dtype = tensor.dtype
    if dtype in (F32, I32, I8, U8):
        return tensor
    if dtype.kind == "f" or dtype.name.startswith(("bfloat", "float")):
        return CastTensor(tensor, F32)
    array = tensor.numpy()
    if (
        array.size
        and dtype.kind in "iu"
        and dtype.itemsize >= 4
        and (array.max() > INT32_MAX or array.min() < INT32_MIN)
    ):
        raise ConversionError.of(
            "int64-range",
            f"'{name}' holds {array.max() if array.max() > INT32_MAX else array.min()}, MNN has 32-bit integers",
        )
    return ArrayTensor(array.astype(I32))
