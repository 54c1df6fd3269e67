"""The graph that everything works on: types, tensors, values, nodes, builder, verifier and text form."""

from mnnconvert.ir.builder import Builder
from mnnconvert.ir.coded import CodedForm, CodedWeights
from mnnconvert.ir.graph import CallGraph, Graph, Node, Operation, Value
from mnnconvert.ir.tensor import (
    ArrayTensor,
    CastTensor,
    CodedLater,
    CodedTensor,
    FileTensor,
    HalfTensor,
    LazyTensor,
    ReshapedTensor,
    Tensor,
    TransposedMatrix,
)
from mnnconvert.ir.text import to_text
from mnnconvert.ir.types import F16, F32, I8, I32, U8, Dim, Shape, Spec, Steps
from mnnconvert.ir.verifier import verify

__all__ = [
    "F16", "F32", "I8", "I32", "U8", "ArrayTensor", "Builder", "CallGraph", "CastTensor", "CodedForm", "CodedLater",
    "CodedTensor", "CodedWeights", "Dim", "FileTensor", "Graph", "HalfTensor", "LazyTensor", "Node", "Operation",
    "ReshapedTensor", "Shape", "Spec", "Steps", "Tensor", "TransposedMatrix", "Value", "to_text", "verify",
]  # fmt: skip
