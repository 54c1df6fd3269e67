"""The one graph: values, nodes and the graph that holds them in topological order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from mnnconvert.ir.tensor import Tensor
from mnnconvert.ir.types import Dim, Shape, Spec, Steps


class Operation(Protocol):
    """What the graph asks of an op; `mnnconvert.ops.base.Op` is the implementation."""

    @property
    def kind(self) -> str: ...
    @property
    def pure(self) -> bool: ...
    def infer(self, *inputs: Any, **named: Any) -> Any: ...
    def ref(self, *arrays: Any, **named: Any) -> Any: ...
    def view(self, tensor: Tensor, shape: Any) -> Tensor | None: ...
    def subgraphs(self) -> tuple[str, ...]: ...


class Value:
    """A named tensor of a graph: produced by a node, fed as an input, or constant.

    `steps` says in which steps an integer engine holds it; float engines do not look at it.
    """

    __slots__ = ("name", "producer", "spec", "steps", "tensor", "users")

    def __init__(self, name: str, spec: Spec, tensor: Tensor | None = None):
        self.name = name
        self.spec = spec
        self.tensor = tensor
        self.steps: Steps | None = None
        self.producer: Node | None = None
        self.users: list[Node] = []

    @property
    def dtype(self) -> np.dtype:
        return self.spec.dtype

    @property
    def shape(self) -> Shape | None:
        return self.spec.shape

    @property
    def rank(self) -> int | None:
        return self.spec.rank

    @property
    def is_constant(self) -> bool:
        return self.tensor is not None

    @property
    def sizes(self) -> list[Dim] | None:
        return self.spec.sizes

    @property
    def constant(self) -> np.ndarray | None:
        """The whole content as an array, when it is known; loads the data of a constant."""
        return self.tensor.numpy() if self.tensor is not None else self.spec.constant

    def __repr__(self) -> str:
        return f"Value({self.name!r}, {self.dtype}, {self.shape})"


class Node:
    """An op applied to values."""

    __slots__ = ("inputs", "name", "op", "origin", "outputs")

    def __init__(self, op: Operation, inputs: list[Value], outputs: list[Value], name: str, origin: tuple[str, ...]):
        self.op = op
        self.inputs = inputs
        self.outputs = outputs
        self.name = name
        self.origin = origin
        for value in inputs:
            value.users.append(self)
        for value in outputs:
            value.producer = self

    @property
    def output(self) -> Value:
        return self.outputs[0]

    def replace_input(self, index: int, value: Value) -> None:
        """Read `value` at input `index` from now on."""
        self.inputs[index].users.remove(self)
        self.inputs[index] = value
        value.users.append(self)

    def set_inputs(self, values: Iterable[Value]) -> None:
        """Read exactly these values from now on."""
        for value in self.inputs:
            value.users.remove(self)
        self.inputs = list(values)
        for value in self.inputs:
            value.users.append(self)

    def __repr__(self) -> str:
        return f"Node({self.op.kind}, {self.name!r})"


@dataclass(eq=False)
class Graph:
    """Nodes in topological order between inputs and outputs.

    `outputs` pairs each value with the name under which it leaves the graph, so that one value may leave under two
    names and an input or a constant may be an output. `source_types` holds, by input or output name, the element type
    that the source framework declares where it is not a type of this graph (bool, int64, float16, float64).
    """

    name: str = ""
    inputs: list[Value] = field(default_factory=list)
    outputs: list[tuple[str, Value]] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    subgraphs: dict[str, Graph] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    source: str = "ONNX"
    source_types: dict[str, str] = field(default_factory=dict)

    @property
    def output_values(self) -> set[Value]:
        return {value for _, value in self.outputs}

    def values(self) -> Iterator[Value]:
        """Every value once: inputs, constants in order of first use, then results."""
        seen: set[int] = set()
        candidates = [*self.inputs, *(v for n in self.nodes for v in (*n.inputs, *n.outputs))]
        for value in [*candidates, *(v for _, v in self.outputs)]:
            if id(value) not in seen:
                seen.add(id(value))
                yield value

    def constants(self) -> list[Value]:
        """The constants that are used, in order of first use."""
        return [v for v in self.values() if v.is_constant]

    def graphs(self) -> Iterator[Graph]:
        """This graph and every graph inside it."""
        yield self
        for inner in self.subgraphs.values():
            yield from inner.graphs()

    def replace_value(self, old: Value, new: Value) -> None:
        """Make every reader of `old`, and every output that it is, use `new`."""
        for node in list(old.users):
            for i, value in enumerate(node.inputs):
                if value is old:
                    node.replace_input(i, new)
        self.outputs = [(name, new if value is old else value) for name, value in self.outputs]

    def remove(self, nodes: Iterable[Node]) -> None:
        """Take nodes out; their results must have no readers left."""
        gone = set(nodes)
        for node in gone:
            for value in node.inputs:
                value.users.remove(node)
        self.nodes = [n for n in self.nodes if n not in gone]

    def prune(self) -> int:
        """Remove nodes whose results nobody reads; returns how many."""
        needed, kept = self.output_values, []
        for node in reversed(self.nodes):
            if any(v in needed or v.users for v in node.outputs):
                kept.append(node)
                continue
            for value in node.inputs:
                value.users.remove(node)
        removed = len(self.nodes) - len(kept)
        self.nodes = kept[::-1]
        return removed

    def sort(self) -> None:
        """Put the nodes into topological order, as close to the present order as possible."""
        done: set[Node] = set()
        order: list[Node] = []
        for root in self.nodes:
            stack = [root]
            while stack:
                node = stack[-1]
                waiting = [v.producer for v in node.inputs if v.producer is not None and v.producer not in done]
                if node in done:
                    stack.pop()
                elif waiting:
                    stack.extend(waiting)
                else:
                    done.add(node)
                    order.append(stack.pop())
        self.nodes = order


CallGraph = Callable[[str, list[np.ndarray]], list[np.ndarray]]
