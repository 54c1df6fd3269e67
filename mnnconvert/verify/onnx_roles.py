"""What the inputs of an ONNX model mean, as the operators that read them tell: sizes, scales, counts, indices.

Names are a guess; that a value is the `sizes` of a Resize is a fact. Made-up inputs follow it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mnnconvert.verify.onnx_repair import graphs_of

if TYPE_CHECKING:
    import onnx

ROLES = {
    ("Resize", 3): "sizes", ("Resize", 2): "scales", ("Upsample", 1): "scales", ("Reshape", 1): "shape",
    ("Expand", 1): "shape", ("Tile", 1): "count", ("TopK", 1): "count", ("OneHot", 1): "count", ("Loop", 0): "count",
    ("Gather", 1): "index", ("GatherElements", 1): "index", ("Embedding", 1): "index",
}  # fmt: skip
THROUGH = ("Cast", "Identity", "Squeeze", "Unsqueeze", "Flatten")  # which leave values as they are


@dataclass(frozen=True)
class Role:
    """What an input is for; indices lie below `limit` (0: unknown)."""

    name: str
    limit: int = 0


def roles_of(graph: onnx.GraphProto) -> dict[str, Role]:
    """The role of every input that has one, by its name."""
    sizes = _sizes(graph)
    same: dict[str, str] = {value.name: value.name for value in graph.input}
    found: dict[str, Role] = {}
    for each in graphs_of(graph):
        for node in each.node:
            for place, name in enumerate(node.input):
                role = ROLES.get((node.op_type, place))
                if role is not None and name in same:
                    found.setdefault(same[name], Role(role, _limit(node, sizes) if role == "index" else 0))
            if node.op_type in THROUGH and node.input[0] in same:
                same[node.output[0]] = same[node.input[0]]
    return found


def _sizes(graph: onnx.GraphProto) -> dict[str, list[int]]:
    """Sizes of inputs (0 for open ones) and initializers."""
    known = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in (*graph.input, *graph.value_info)}
    return known | {tensor.name: list(tensor.dims) for tensor in graph.initializer}


def _limit(node: onnx.NodeProto, sizes: dict[str, list[int]]) -> int:
    """How many entries there are to pick from; 0 where that is open."""
    axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
    table = sizes.get(node.input[0], [])
    return table[axis] if -len(table) <= axis < len(table) else 0
