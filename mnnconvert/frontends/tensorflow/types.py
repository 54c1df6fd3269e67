"""Element types of TensorFlow and what stands for them in the graph."""

from __future__ import annotations

import numpy as np

from mnnconvert.errors import ConversionError
from mnnconvert.ir import F32, I8, I32, U8, Graph

TYPES: dict[str, np.dtype] = {
    **dict.fromkeys(("float32", "float16", "float64", "bfloat16"), F32),
    **dict.fromkeys(("int32", "int64", "uint32", "uint64", "int16", "uint16", "bool"), I32),
    **dict.fromkeys(("qint32", "qint16", "quint16"), I32),
    **dict.fromkeys(("int8", "qint8"), I8),
    **dict.fromkeys(("uint8", "quint8"), U8),
}  # fmt: skip


def graph_type(kind: str, name: str) -> np.dtype:
    """The element type that stands for a source type; `unsupported-type` where there is none."""
    if kind not in TYPES:
        raise ConversionError.of(
            "unsupported-type", f"'{name}' is a tensor of {kind}, which MNN does not have",
            hint="compute it outside of the model",
        )  # fmt: skip
    return TYPES[kind]


def port_type(kind: str, name: str) -> np.dtype:
    """The element type of an input or output: the released runtime gives int8 ones with 128 added."""
    dtype = graph_type(kind, name)
    return I32 if dtype == I8 else dtype


def note_type(graph: Graph, name: str, kind: str, dtype: np.dtype) -> None:
    """Remember the source type of an input or output where the graph has none like it."""
    if kind != str(dtype):
        graph.source_types[name] = kind
