"""Places values in the layout that MNN's kernels want: NC4HW4 around convolution-like ops, NCHW elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

from mnnconvert.ir import Builder, Graph, Node, Value
from mnnconvert.ir.types import known
from mnnconvert.ops.elementwise import Binary
from mnnconvert.ops.layout import CHANNEL_FIRST, ConvertTensor
from mnnconvert.ops.padding import Padding
from mnnconvert.passes.base import GraphPass, Notes

C4, NCHW = "NC4HW4", "NCHW"
SUFFIX = {C4: "c4", NCHW: "nchw"}  # of the names of converted values
IMAGE_RANKS = (4, 5)


@dataclass(frozen=True)
class PlaceLayout(GraphPass):
    """Insert ConvertTensor where producer and consumer disagree.

    Ops of layout "c4" read their first operand, and give their first result, in NC4HW4; ops of layout "any" stay in it
    when all their operands are; everything else, and graph outputs, is NCHW. The blocks of NC4HW4 are a matter of
    storage: shapes and values stay those of NCHW.
    """

    name = "layout"
    after = ("legalize",)

    def change(self, graph: Graph, notes: Notes) -> int:
        return _Placement(graph).run()


class _Placement:
    """One walk over a graph; `packed` are the values that are in NC4HW4."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.builder = Builder(graph)
        self.packed: set[Value] = set()
        self.converted: dict[tuple[Value, str], Value] = {}

    def run(self) -> int:
        nodes, self.graph.nodes = self.graph.nodes, []
        for node in nodes:
            self._place(node)
        for i, (name, value) in enumerate(self.graph.outputs):
            if value in self.packed:
                self.graph.outputs[i] = (name, self._output(name, value))
        return len(self.graph.nodes) - len(nodes)

    def _place(self, node: Node) -> None:
        op = node.op
        if isinstance(op, ConvertTensor) and op.source in CHANNEL_FIRST and op.dest in CHANNEL_FIRST:
            self._drop(node)
            return
        layout = getattr(node.op, "layout", "nchw")
        if layout == "c4" and (node.inputs[0].rank in IMAGE_RANKS or node.inputs[0].rank is None):
            self._read(node, 0, C4)
            for i in range(1, len(node.inputs)):
                self._read(node, i, NCHW)
            self.packed.update(node.outputs)
        elif layout == "any" and self._stays_packed(node):
            for i, value in enumerate(node.inputs):
                self._read(node, i, C4 if self._is_at_hand(value) else NCHW)
            self.packed.update(node.outputs)
        else:
            for i in range(len(node.inputs)):
                self._read(node, i, NCHW)
        self.graph.nodes.append(node)

    def _drop(self, node: Node) -> None:
        """A conversion that stands in the graph already; those that are needed are found anew."""
        self.graph.replace_value(node.output, node.inputs[0])
        node.inputs[0].users.remove(node)

    def _stays_packed(self, node: Node) -> bool:
        """Whether an op that takes either layout gets everything it computes with in blocks, or could at no cost."""
        moving = node.inputs[:1] if isinstance(node.op, Padding) else [v for v in node.inputs if not v.is_constant]
        if not any(v in self.packed for v in moving) or not all(self._is_at_hand(v) for v in moving):
            return False
        if isinstance(node.op, Binary):
            return all(v in moving or _fits_image(v, node.output) for v in node.inputs)
        return isinstance(node.op, Padding) or len(moving) == len(node.inputs)

    def _is_at_hand(self, value: Value) -> bool:
        return value in self.packed or (value, C4) in self.converted

    def _read(self, node: Node, index: int, layout: str) -> None:
        value = node.inputs[index]
        if value.is_constant or (value in self.packed) == (layout == C4):
            return
        node.replace_input(index, self._convert(value, layout))

    def _convert(self, value: Value, layout: str) -> Value:
        key = (value, layout)
        if key not in self.converted:
            other = C4 if layout == NCHW else NCHW
            with self.builder.at(value.name, *(value.producer.origin if value.producer else (value.name,))):
                made = self.builder.add(ConvertTensor(other, layout), value, name=f"{value.name}/{SUFFIX[layout]}")
            made.steps = value.steps
            self.converted[key] = made
            self.converted[made, other] = value
            if layout == C4:
                self.packed.add(made)
        return self.converted[key]

    def _output(self, name: str, value: Value) -> Value:
        """The NCHW form of an output takes the name; the packed value steps aside."""
        made = self._convert(value, NCHW)
        if value.name == name:
            self.builder.names.discard(made.name)
            value.name, made.name = self.builder.unique(f"{name}/packed"), name
            for each in (value, made):
                if each.producer is not None and each.producer.output is each:
                    each.producer.name = each.name
        return made


def _fits_image(value: Value, image: Value) -> bool:
    """A constant that broadcasts against an image as if both were NCHW."""
    return value.is_constant and known(value.shape) and (value.rank or 0) <= (image.rank or 0)
