"""Reshapes and permutations in a row become one, and reshapes whose target is computed get a constant one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mnnconvert.ir import Graph, Node, Shape, Value
from mnnconvert.ops.shape import Permute, Reshape
from mnnconvert.passes.base import GraphPass, Notes, forward
from mnnconvert.passes.no_ops import same_shape

VIEWS = ("Reshape", "Squeeze", "Unsqueeze", "ExpandDims", "Flatten")  # the same elements in the same order


def target_of(source: Shape | None, result: Shape | None) -> tuple[int, ...] | None:
    """`dims` of a Reshape from `source` to `result`: numbers, 0 for a size that stays in its place, and at most one -1.

    None where that does not say it all.
    """
    if result is None:
        return None
    dims = tuple(_target_size(source, i, d) for i, d in enumerate(result))
    return dims if dims.count(-1) <= 1 else None


def _target_size(source: Shape | None, place: int, size: int | str | None) -> int:
    if isinstance(size, int) and size != 0:
        return size
    stays = size is not None and source is not None and place < len(source) and source[place] == size
    return 0 if stays else -1


@dataclass(frozen=True)
class ResolveReshapes(GraphPass):
    """Give a Reshape whose target is computed from sizes the constant target that says the same.

    Sizes that stay in place are copied and one may be inferred; where more are unknown the computation stays.
    """

    name = "resolve-reshapes"

    def change(self, graph: Graph, notes: Notes) -> int:
        changed = 0
        for node in graph.nodes:
            computed = node.op.kind == "Reshape" and len(node.inputs) == 2 and not node.inputs[1].is_constant
            dims = target_of(node.inputs[0].shape, node.output.shape) if computed else None
            if dims is not None:
                node.op = Reshape(dims)
                node.set_inputs(node.inputs[:1])
                changed += 1
        return changed + (graph.prune() if changed else 0)


@dataclass(frozen=True)
class MergeReshapes(GraphPass):
    """Reshape after reshape (or squeeze, unsqueeze, flatten) reads the first operand; so does permute after permute."""

    name = "merge-reshapes"
    after = ("resolve-reshapes",)

    def change(self, graph: Graph, notes: Notes) -> int:
        replaced: dict[Value, Value] = {}
        changed = 0
        for node in graph.nodes:
            if node.op.kind in VIEWS:
                changed += _merge_view(node, replaced)
            elif isinstance(node.op, Permute):
                changed += _merge_permute(node, node.op)
        forward(graph, replaced)
        return changed + (graph.prune() if changed else 0)


def _sources(value: Value) -> Iterator[Value]:
    """The operands of the views that a value was made by, the nearest first."""
    while value.producer is not None and value.producer.op.kind in VIEWS:
        value = value.producer.inputs[0]
        yield value


def _merge_view(node: Node, replaced: dict[Value, Value]) -> bool:
    sources = list(_sources(node.output))[::-1]
    same = next((s for s in sources if same_shape(s.spec, node.output.spec)), None)
    if same is not None:
        replaced[node.output] = same
        return True
    if len(sources) < 2:
        return False
    dims = target_of(sources[0].shape, node.output.shape)
    if dims is None:
        return False
    node.op = Reshape(dims)
    node.set_inputs(sources[:1])
    return True


def _merge_permute(node: Node, op: Permute) -> bool:
    before = node.inputs[0].producer
    if before is None or not isinstance(before.op, Permute) or not op.dims or not before.op.dims:
        return False
    inner = before.op.dims
    node.op = Permute(tuple(inner[d] for d in op.dims))
    node.set_inputs(before.inputs)
    return True
