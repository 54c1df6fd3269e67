"""Names of inputs and outputs of an exported program, in order: those of forward, and those of what it returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


def input_ports(program: Any) -> list[tuple[str, Any]]:
    """Name and example (a fake tensor with sizes and type, or a symbolic number) of each input that is no constant."""
    found = {n.name: n.meta.get("val") for n in program.graph_module.graph.nodes if n.op == "placeholder"}
    return [
        (name, found[name]) for name in program.graph_signature.user_inputs if isinstance(name, str) and name in found
    ]


@dataclass(frozen=True)
class Computed:
    """A result of forward that a node of the program gives."""

    node: str


def output_ports(program: Any) -> dict[str, Any]:
    """The results of forward by name: `Computed`, or a number that does not depend on the inputs.

    A single tensor is `output`, those of a tuple are `output_0`, `output_1`; in a dict or a named tuple they have the
    names of the keys. What is nested has the names joined by underscores.
    """
    from torch.utils import _pytree as pytree

    result = pytree.tree_unflatten(_results(program), program.call_spec.out_spec)
    return flat_outputs(result, {name for name, _ in input_ports(program)})


def flat_outputs(result: Any, inputs: set[str]) -> dict[str, Any]:
    """What forward returned, as `output_ports` calls it, without None and texts.

    `inputs` are the names of the inputs, which an output cannot have.
    """
    from torch.utils import _pytree as pytree

    leaves = [
        (path, leaf) for path, leaf in pytree.tree_flatten_with_path(result)[0] if not isinstance(leaf, str | None)
    ]
    return dict(zip(unique([_name(path) for path, _ in leaves], inputs), (leaf for _, leaf in leaves), strict=True))


def _results(program: Any) -> list[Any]:
    """What forward returns, flat: `Computed` or a constant."""
    from torch.export.graph_signature import ConstantArgument, OutputKind

    specs = [s for s in program.graph_signature.output_specs if s.kind == OutputKind.USER_OUTPUT]
    return [s.arg.value if isinstance(s.arg, ConstantArgument) else Computed(s.arg.name) for s in specs]


def unique(names: list[str], taken: set[str]) -> list[str]:
    """The names, with an underscore and a count where one is taken."""
    used = set(taken)
    found = []
    for name in names:
        candidate, count = name, 1
        while candidate in used:
            candidate, count = f"{name}_{count}", count + 1
        used.add(candidate)
        found.append(candidate)
    return found


def _name(path: tuple[Any, ...]) -> str:
    words = [str(getattr(key, "idx", getattr(key, "key", getattr(key, "name", key)))) for key in path]
    if not words or words[0].isdigit():
        words.insert(0, "output")
    return "_".join(words)
