"""Runs the shape rules over a graph that was read, and over the graphs that its ops run."""

from __future__ import annotations

from collections.abc import Mapping

from mnnconvert.errors import ConversionError
from mnnconvert.ir import Graph, Node, Spec
from mnnconvert.ops.control import If, While

MAX_NESTING = 32  # graphs in graphs; a graph that runs itself is deeper


def infer_shapes(graph: Graph, named: Mapping[str, Graph], depth: int = 0) -> None:
    """Fill in what the shape rules can say, op by op; `named` are all graphs of the file that ops may run.

    Ops of control flow are brought into their form by position first. Raises `bad-mnn-file` where operands do not fit,
    or where a graph is missing or runs itself.
    """
    if depth > MAX_NESTING:
        raise ConversionError.of("bad-mnn-file", f"the graph '{graph.name}' runs itself, or is nested too deeply")
    for node in graph.nodes:
        try:
            specs = _results(node, named, depth)
            if len(specs) < len(node.outputs):
                raise ValueError(f"it has {len(specs)} results, and {len(node.outputs)} are asked for")
        except (ValueError, TypeError, IndexError, ArithmeticError, AttributeError) as error:
            raise ConversionError.of(
                "bad-mnn-file", f"the op '{node.name}' ({node.op.kind}) does not fit its operands: {error}"
            ) from error
        for value, spec in zip(node.outputs, specs, strict=False):
            value.spec = spec


def _results(node: Node, named: Mapping[str, Graph], depth: int) -> tuple[Spec, ...]:
    op = node.op
    if not isinstance(op, If | While):
        result = op.infer(*(v.spec for v in node.inputs))
        return (result,) if isinstance(result, Spec) else result
    missing = [name for name in op.subgraphs() if name not in named]
    if missing:
        raise ValueError(f"there is no graph '{missing[0]}'")
    node.op = op = op.settled(node, named)
    operands = [v.spec for v in node.inputs]
    op.feed(operands, named)
    for name in op.subgraphs():
        infer_shapes(named[name], named, depth + 1)
    return op.infer(*operands, graphs=named)
