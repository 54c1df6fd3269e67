"""Values inside a Torch program: it is run node by node, as it is in its file, and those that are asked for are kept.

Values have the names of the converted graph. These come of the program as it was taken apart to be translated, where a
node tells which node of the file it was made of. Of the nodes that were made of one, the value that others read is that
of the node, if there is but one such value; what is computed on the way has no counterpart.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from mnnconvert.frontends.torch.lower import prepared
from mnnconvert.frontends.torch.ports import Computed, output_ports
from mnnconvert.verify.layers import SourceLayer

IN_FILE = (
    "ExportedProgram.module()"  # the step of torch that a node tells before which its program was that of the file
)
Place = tuple[str, int | None]  # a node of the program, and which of its results where it has several
NO_MODULE = "_empty_nn_module_stack"  # what torch writes where a path of modules is not known
HIDDEN = "~"  # ends the names of values without a counterpart: no node is called so


class Inside:
    """The values inside an ExportedProgram."""

    def __init__(self, program: Any):
        self._program = program

    def layers(self) -> Iterator[SourceLayer]:
        """See `IntermediateEngine`. Outputs are values of the nodes that give them; nodes know their module."""
        outputs: dict[str, list[str]] = {}
        for name, port in output_ports(self._program).items():
            if isinstance(port, Computed):
                outputs.setdefault(port.node, []).append(name)
        for node in self._program.graph.nodes:
            if node.op == "call_function" and not _picks(node):
                parts = [node, *(user for user in node.users if _picks(user))]
                made = [name for part in parts for name in (self._called(part), *outputs.get(part.name, ()))]
                read = tuple(self._called(each) for each in node.all_input_nodes)
                yield SourceLayer(_label(node), str(node.target), read, tuple(made))

    def values(self, inputs: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
        """The named values as tensors for `inputs`, also tensors; without those that have no counterpart.

        Only these are held: each as it was before a later node wrote into it.
        """
        wanted: dict[str, list[tuple[str, int | None]]] = {}
        for name in names:
            if name in self._places:
                source, result = self._places[name]
                wanted.setdefault(source, []).append((name, result))
        found: dict[str, Any] = {}

        def keep(node: str, value: Any) -> None:
            for name, result in wanted.get(node, ()):
                found[name] = (value if result is None else value[result]).clone()

        if wanted:
            _watched(self._program.module(), keep).run(*leaves(self._program, inputs), enable_io_processing=False)
        return found

    @cached_property
    def _places(self) -> dict[str, Place]:
        return places(self._program)

    @cached_property
    def _names(self) -> dict[Place, str]:
        return {place: name for name, place in self._places.items()}

    def _called(self, node: Any) -> str:
        """The name of a node's value in the converted graph."""
        if node.op == "placeholder":
            return str(node.name)
        place = (node.args[0].name, node.args[1]) if _picks(node) else (node.name, None)
        return self._names.get(place, f"{node.name}{HIDDEN}")


def places(program: Any) -> dict[str, Place]:
    """For each name of the converted graph that has one its place in the program."""
    before = {node.name: node for node in program.graph.nodes if node.op == "call_function"}
    groups: dict[str, list[Any]] = {}
    for node in prepared(program).graph.nodes:
        origin = _origin(node)
        if node.op == "call_function" and origin in before:
            groups.setdefault(origin, []).append(node)
    found: dict[str, Place] = {}
    for origin, group in groups.items():
        inside = set(group)
        left = [node for node in group if any(user not in inside for user in node.users)]
        found |= {node.name: place for node, place in _paired(before[origin], left)}
    return found


def _paired(node: Any, made: Sequence[Any]) -> Iterator[tuple[Any, Place]]:
    """The values `made` of a node of the file that are its results."""
    value = node.meta.get("val")
    if isinstance(value, list | tuple):
        for each in made:
            if _picks(each) and each.args[1] < len(value) and _alike(each.meta.get("val"), value[each.args[1]]):
                yield each, (node.name, each.args[1])
    elif len(made) == 1 and _alike(made[0].meta.get("val"), value):
        yield made[0], (node.name, None)


def _alike(one: Any, other: Any) -> bool:
    """Whether two example tensors are of one type, and of one size where both are known."""
    import torch

    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor) or one.dtype != other.dtype:
        return False
    pairs = list(zip(one.shape, other.shape, strict=False))
    known = [(a, b) for a, b in pairs if isinstance(a, int) and isinstance(b, int)]
    return one.dim() == other.dim() and all(a == b for a, b in known)


def _origin(node: Any) -> str:
    """The node of the file that a node was made of, as torch keeps it; empty where it does not tell."""
    sources = node.meta.get("from_node") or ()
    while sources:
        last = sources[-1]
        if last.pass_name == IN_FILE:
            return str(last.name)
        sources = last.from_node
    return ""


def _picks(node: Any) -> bool:
    """Whether a node takes one of the results of another."""
    return getattr(node.target, "__name__", "") == "getitem"


def _label(node: Any) -> str:
    """The name of a node, behind the path of the module that it is of."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = str(stack[-1][0]) if stack else ""
    return f"{path}/{node.name}" if path and not path.startswith(NO_MODULE) else str(node.name)


def leaves(program: Any, inputs: Mapping[str, Any]) -> list[Any]:
    """What a program takes, flat: `inputs` by name, and the constants that it was traced with."""
    return [inputs[each] if isinstance(each, str) else each for each in program.graph_signature.user_inputs]


def _watched(module: Any, keep: Callable[[str, Any], None]) -> Any:
    """An interpreter of a graph module that tells `keep` the name and value of each node."""
    from torch.fx import Interpreter

    class Watched(Interpreter):  # type: ignore[misc]  # torch is not looked into
        def run_node(self, n: Any) -> Any:
            value = super().run_node(n)
            keep(n.name, value)
            return value

    return Watched(module)
