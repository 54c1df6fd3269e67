"""ONNX tensors (initializers and attributes) as tensors of the graph; data in external files stay there."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from mnnconvert.errors import ConversionError
from mnnconvert.frontends.common.tensors import INT32_MAX
from mnnconvert.ir import F32, I8, I32, U8, ArrayTensor, FileTensor, Tensor

# TensorProto.DataType -> element type of the data as stored, where whole bytes hold one element.
STORED: dict[int, np.dtype] = {
    1: F32, 2: U8, 3: I8, 4: np.dtype("uint16"), 5: np.dtype("int16"), 6: I32, 7: np.dtype("int64"),
    9: np.dtype("bool"), 10: np.dtype("float16"), 11: np.dtype("float64"), 12: np.dtype("uint32"),
    13: np.dtype("uint64"), 16: np.dtype(ml_dtypes.bfloat16), 17: np.dtype(ml_dtypes.float8_e4m3fn),
    18: np.dtype(ml_dtypes.float8_e4m3fnuz), 19: np.dtype(ml_dtypes.float8_e5m2),
    20: np.dtype(ml_dtypes.float8_e5m2fnuz), 24: np.dtype(ml_dtypes.float8_e8m0fnu),
}  # fmt: skip
FLOAT4 = np.dtype(ml_dtypes.float4_e2m1fn)
PACKED: dict[int, tuple[np.dtype, int]] = {21: (U8, 4), 22: (I8, 4), 23: (FLOAT4, 4), 25: (U8, 2), 26: (I8, 2)}
NAMES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: "string", 9: "bool",
    10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128", 16: "bfloat16",
    17: "float8e4m3fn", 18: "float8e4m3fnuz", 19: "float8e5m2", 20: "float8e5m2fnuz", 21: "uint4", 22: "int4",
    23: "float4e2m1", 24: "float8e8m0", 25: "uint2", 26: "int2",
}  # fmt: skip


def graph_type(elem_type: int, name: str) -> np.dtype:
    """The element type that stands for an ONNX type; `unsupported-type` for strings and complex numbers."""
    if elem_type in (1, 10, 11, 16, 17, 18, 19, 20, 23, 24):
        return F32
    if elem_type in (2, 21, 25):
        return U8
    if elem_type in (3, 22, 26):
        return I8
    if elem_type in STORED:
        return I32
    kind = NAMES.get(elem_type, f"type {elem_type}")
    raise ConversionError.of(
        "unsupported-type",
        f"'{name}' is a tensor of {kind}, which MNN does not have",
        hint="compute it outside of the model",
    )


def tensor_of(proto: Any, folder: Path) -> Tensor:
    """A tensor in its source element type (packed integers unpacked to int8 / uint8)."""
    shape = tuple(proto.dims)
    if any(d < 0 or d > INT32_MAX for d in shape):
        raise ConversionError.of("bad-onnx-file", f"the tensor '{proto.name}' has the sizes {list(shape)}")
    if proto.data_location == 1:
        return _external(proto, shape, folder)
    graph_type(proto.data_type, proto.name)
    dtype = STORED.get(proto.data_type)
    if dtype is not None and proto.HasField("raw_data"):
        return ArrayTensor(_from_bytes(proto.raw_data, dtype, shape, proto.name))
    if proto.data_type in PACKED and proto.HasField("raw_data"):
        return ArrayTensor(_unpack(np.frombuffer(proto.raw_data, U8), proto.data_type, shape, proto.name))
    return ArrayTensor(_typed(proto, shape))


def _from_bytes(raw: bytes, dtype: np.dtype, shape: tuple[int, ...], name: str) -> np.ndarray:
    wanted = math.prod(shape) * dtype.itemsize
    if len(raw) != wanted:
        raise ConversionError.of(
            "bad-onnx-file", f"the tensor '{name}' of {list(shape)} holds {len(raw)} bytes instead of {wanted}"
        )
    return np.frombuffer(raw, dtype).reshape(shape)


def _unpack(packed: np.ndarray, elem_type: int, shape: tuple[int, ...], name: str) -> np.ndarray:
    """Elements of less than a byte, the first in the lowest bits."""
    dtype, bits = PACKED[elem_type]
    count, per_byte = math.prod(shape), 8 // bits
    if packed.size != -(-count // per_byte):
        raise ConversionError.of("bad-onnx-file", f"the tensor '{name}' of {list(shape)} holds {packed.size} bytes")
    shifts = np.arange(per_byte, dtype=U8) * bits
    codes = ((packed[:, None] >> shifts) & ((1 << bits) - 1)).reshape(-1)[:count]
    codes = codes.view(dtype) if dtype == FLOAT4 else codes.astype(dtype)
    if dtype == I8:
        codes = np.where(codes >= 1 << (bits - 1), codes - (1 << bits), codes).astype(I8)
    return codes.reshape(shape)


def _typed(proto: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Data in the typed fields of a TensorProto."""
    from onnx import numpy_helper

    try:
        array = np.asarray(numpy_helper.to_array(proto))
    except (ValueError, TypeError) as error:
        raise ConversionError.of(
            "bad-onnx-file", f"the tensor '{proto.name}' does not hold {list(shape)}: {error}"
        ) from error
    if proto.data_type in PACKED:
        return array.astype(PACKED[proto.data_type][0])
    return array


def _data_file(location: str, name: str, folder: Path) -> Path:
    """The file that a tensor names. It may not lie outside of the model's folder."""
    try:
        path = (folder / location).resolve()
        found = path.is_file()
    except (OSError, ValueError):  # too long, or a zero character
        path, found = folder, False
    if not location or Path(location).is_absolute() or not path.is_relative_to(folder.resolve()):
        raise ConversionError.of(
            "unsafe-path", f"the tensor '{name}' refers to '{location}', outside of the model's folder"
        )
    if not found:
        raise ConversionError.of(
            "missing-external-data", f"'{location}', which holds the tensor '{name}', does not exist",
            hint=f"put it beside the model, in {folder}",
        )  # fmt: skip
    return path


def _external(proto: Any, shape: tuple[int, ...], folder: Path) -> Tensor:
    """A tensor in a file beside the model."""
    entries = {e.key: e.value for e in proto.external_data}
    location = entries.get("location", "")
    path = _data_file(location, proto.name, folder)
    graph_type(proto.data_type, proto.name)
    try:
        offset = int(entries.get("offset", "0"))
        length = int(entries["length"]) if "length" in entries else None
    except ValueError as error:
        raise ConversionError.of(
            "bad-onnx-file", f"the tensor '{proto.name}' has an external offset or length that is no number"
        ) from error
    packed = PACKED.get(proto.data_type)
    dtype = U8 if packed else STORED[proto.data_type]
    count = -(-math.prod(shape) * packed[1] // 8) if packed else math.prod(shape)
    nbytes = count * dtype.itemsize
    if offset < 0 or (length is not None and length != nbytes) or offset + nbytes > path.stat().st_size:
        raise ConversionError.of(
            "truncated-file", f"'{location}' does not hold the {nbytes} bytes of the tensor '{proto.name}' at {offset}"
        )
    file = FileTensor(path, offset, dtype, (count,) if packed else shape)
    return ArrayTensor(_unpack(file.numpy(), proto.data_type, shape, proto.name)) if packed else file
