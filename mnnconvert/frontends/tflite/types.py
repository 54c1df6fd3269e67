"""Element types of TFLite and what stands for them in the graph."""

from __future__ import annotations

import numpy as np

from mnnconvert.errors import ConversionError
from mnnconvert.frontends.tflite.model import SourceTensor
from mnnconvert.ir import F32, I8, I32, U8, Graph

TYPES: dict[str, np.dtype] = {
    **dict.fromkeys(("float32", "float16", "float64", "bfloat16"), F32),
    **dict.fromkeys(("int32", "int64", "uint32", "uint64", "int16", "uint16", "bool", "int4"), I32),
    "int8": I8,
    "uint8": U8,
}


def graph_type(tensor: SourceTensor) -> np.dtype:
    """The element type that stands for the codes of a tensor; `unsupported-type` where there is none."""
    if tensor.type not in TYPES:
        raise ConversionError.of(
            "unsupported-type",
            f"'{tensor.name}' is a tensor of {tensor.type}, which MNN does not have",
            hint="compute it outside of the model",
        )
    return TYPES[tensor.type]


def port_type(tensor: SourceTensor) -> np.dtype:
    """The element type of a tensor as input or output: the released runtime gives int8 ones with 128 added."""
    dtype = graph_type(tensor)
    return I32 if dtype == I8 else dtype


def note_type(graph: Graph, name: str, tensor: SourceTensor, dtype: np.dtype) -> None:
    """Remember the source type of an input or output where the graph has none like it."""
    if tensor.type != str(dtype):
        graph.source_types[name] = tensor.type
