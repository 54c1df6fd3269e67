"""State that a TFLite model keeps from call to call: explicit inputs and outputs of the graph, as MNN keeps none.

A resource variable NAME becomes the input NAME where it is read before it is assigned, and the output NAME/next where
it is assigned; so does a variable tensor of that name. The caller feeds back what came out. A variable starts with what
the initializing subgraph assigns, which `metadata["initial/NAME"]` tells; a variable tensor starts with zeros.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mnnconvert.errors import ConversionError
from mnnconvert.frontends.tflite.model import BAD, SourceGraph, SourceTensor
from mnnconvert.ir import Value

if TYPE_CHECKING:
    from mnnconvert.frontends.tflite.importer import Scope

SUFFIX = "/next"
VARIABLE_OPS = ("CALL_ONCE", "VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE")


def variable_names(graph: SourceGraph) -> dict[int, str]:
    """Tensor index of every handle of a graph -> name of its variable."""
    names = {}
    for operator in graph.operators:
        if operator.name == "VAR_HANDLE" and operator.outputs:
            shared = (operator.option("SharedName", b"") or b"").decode("utf-8", "replace")
            names[operator.outputs[0]] = shared or graph.tensors[operator.outputs[0]].name
    return names


def state_name(tensor: SourceTensor, index: int) -> str:
    """What a variable tensor is called as an input."""
    return tensor.name or f"state_{index}"


class States:
    """The states of the main graph, in the order in which they are first read."""

    def __init__(self, scope: Scope):
        self.scope = scope
        self.tensors: dict[int, str] = {}  # variable tensors that are inputs
        self.handles = variable_names(scope.source)
        self.held: dict[str, tuple[int, Value]] = {}  # variable -> tensor that describes it, and its present value
        self.fed: dict[str, Value] = {}

    def tensor(self, index: int) -> Value:
        """A variable tensor when it is first read: an input of the graph."""
        tensor = self.scope.tensor(index)
        self.tensors[index] = name = state_name(tensor, index)
        return self.scope.enter(name, index, tuple(tensor.shape or ()))

    def read(self, handle: int, result: int) -> Value:
        """The present value of a variable; an input of the graph before anything was assigned."""
        name = self._variable(handle)
        if name not in self.held:
            value = self.scope.enter(name, result, tuple(self.scope.tensor(result).shape or ()))
            del self.scope.values[result]
            self.held[name], self.fed[name] = (result, value), value
        return self.held[name][1]

    def assign(self, handle: int, source: int) -> None:
        self.held[self._variable(handle)] = source, self.scope.value(source)

    def _variable(self, handle: int) -> str:
        """The variable of a handle; `bad-tflite-file` where VAR_HANDLE did not make it."""
        if handle not in self.handles:
            raise ConversionError.of(BAD, f"the tensor {handle} is used as a variable, and is no handle of one")
        return self.handles[handle]

    def start(self, name: str, array: np.ndarray) -> None:
        """Note what a variable starts with."""
        same = array.size and (array == array.flat[0]).all()
        text = str(array.flat[0]) if same else ",".join(str(v) for v in array.reshape(-1))
        self.scope.builder.graph.metadata[f"initial/{name}"] = text

    def leave(self) -> None:
        """Give all states as outputs."""
        for index, name in self.tensors.items():
            self.scope.leave(name + SUFFIX, index)
        for name, (index, value) in self.held.items():
            if self.fed.get(name) is not value:
                self.scope.leave_value(name + SUFFIX, value, self.scope.tensor(index))
