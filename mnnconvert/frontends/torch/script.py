"""TorchScript -> ExportedProgram: runs a scripted or traced graph node by node in Python, for torch.export to trace.

Whatever is a Python value while it runs (sizes, flags, lists, conditions on them) is settled then; what depends on the
numbers of a tensor becomes torch.cond and torch.while_loop. torch itself has no way from one form to the other any more
(docs/decisions/0008-torch-through-exported-programs.md).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mnnconvert.errors import ConversionError
from mnnconvert.frontends.torch.script_control import branch, loop
from mnnconvert.frontends.torch.script_ops import call_operator, find_python

Environment = dict[str, Any]


class Script:
    """The forward method of a ScriptModule. `constants` binds inputs, by name, to numbers.

    `module` is a plain nn.Module with the same parameters and buffers, under the same names, whose forward interprets
    the graph: it takes the inputs that are not bound, by name.
    """

    def __init__(self, scripted: Any, constants: dict[str, Any] | None = None):
        self.graph = scripted.inlined_graph
        self.constants = dict(constants or {})
        self.module = _mirror(scripted)
        self.assigned: dict[tuple[int, str], Any] = {}  # attributes that this run has set
        self.depth = 0  # of branches and loops that the run decides on
        self.names = input_names(scripted)
        free = [name for name in self.names if name not in self.constants]
        parameters = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in free]

        def forward(*inputs: Any, **named: Any) -> Any:
            return self._run(dict(zip(free, inputs, strict=False)) | named)

        forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        self.module.forward = forward

    def _run(self, inputs: dict[str, Any]) -> Any:
        import torch

        self.assigned.clear()
        values = self.constants | inputs
        # a clone, as the graph may write into what it was given
        fed = [v.clone() if isinstance(v, torch.Tensor) else v for v in (values[name] for name in self.names)]
        results = self.run_block(self.graph, {}, [self.module, *fed])
        return results[0] if len(results) == 1 else tuple(results)

    def run_block(self, block: Any, env: Environment, inputs: Sequence[Any]) -> list[Any]:
        """Run the nodes of a graph or block; values of its outputs. What it computes is added to `env`."""
        env.update(zip((value.debugName() for value in block.inputs()), inputs, strict=True))
        for node in block.nodes():
            self._run_node(node, env)
        return [env[value.debugName()] for value in block.outputs()]

    def _run_node(self, node: Any, env: Environment) -> None:
        kind = node.kind()
        operands = [env[value.debugName()] for value in node.inputs()]
        results: Any
        if kind == "prim::If":
            results = branch(self, node, env, operands[0])
        elif kind == "prim::Loop":
            results = loop(self, node, env, *operands)
        elif kind in _NODES:
            results = _NODES[kind](self, node, operands)
        else:
            results = self._operator(node, operands)
        names = [value.debugName() for value in node.outputs()]
        if len(names) == 1 and kind not in ("prim::If", "prim::Loop", *_UNPACKING):
            results = [results]
        env.update(zip(names, results if names else (), strict=True))

    def _operator(self, node: Any, operands: list[Any]) -> Any:
        function = find_python(node, operands)
        if function is not None:
            return function(*operands)
        return call_operator(node, operands)

    def get_attribute(self, node: Any, operands: list[Any]) -> Any:
        """The value of an attribute: as this run has set it, else as it is in the file."""
        owner, name = operands[0], node.s("name")
        key = (id(owner), name)
        if key in self.assigned:
            return self.assigned[key]
        if name in owner._modules or name in owner._parameters or name in owner._buffers:
            return getattr(owner, name)
        return getattr(owner.scripted[0], name)

    def set_attribute(self, node: Any, operands: list[Any]) -> None:
        if self.depth:
            raise refuse(node, "sets an attribute where the data decides whether it is reached")
        self.assigned[id(operands[0]), node.s("name")] = operands[1]


def input_names(scripted: Any) -> list[str]:
    """The names of the inputs of forward, in order."""
    return [value.debugName().split(".")[0] for value in list(scripted.inlined_graph.inputs())[1:]]


def sets_state(scripted: Any) -> bool:
    """Whether forward sets attributes, which the next call would see."""
    return any(node.kind() == "prim::SetAttr" for node in _nodes(scripted.inlined_graph))


def _nodes(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)


def _mirror(scripted: Any) -> Any:
    """A plain module with the tensors and submodules of a scripted one; other attributes stay in `scripted`."""
    import torch

    module = torch.nn.Module()
    module.scripted = (scripted,)  # in a tuple, so that it is no submodule
    for name, parameter in scripted._parameters.items():
        module.register_parameter(name, torch.nn.Parameter(parameter.detach(), requires_grad=False))
    for name, buffer in scripted._buffers.items():
        module.register_buffer(name, buffer)
    for name, child in scripted.named_children():
        module.add_module(name, _mirror(child))
    return module


def refuse(node: Any, what: str) -> ConversionError:
    """An error that names a node of the graph and the line of the source that it comes from; raise it."""
    place = node.sourceRange().strip().splitlines()
    line = next((text.strip() for text in place if text.strip().startswith(("File", "#")) or "line" in text), "")
    return ConversionError.of("unsupported-op", f"the script {what}", op=node.kind(), **({"at": line} if line else {}))


def _raise(script: Script, node: Any, operands: list[Any]) -> Any:
    raise ConversionError.of(
        "torch-export-failed", f"the script raises an error for these inputs: {operands[0]}", op=node.kind(),
        hint="check the sizes given with --input-shape and the numbers given with --input-value",
    )  # fmt: skip


_UNPACKING = {"prim::TupleUnpack", "prim::ListUnpack"}
_NODES: dict[str, Callable[[Script, Any, list[Any]], Any]] = {
    "prim::Constant": lambda s, n, x: n.output().toIValue(),
    "prim::GetAttr": lambda s, n, x: s.get_attribute(n, x),
    "prim::SetAttr": lambda s, n, x: s.set_attribute(n, x),
    "prim::ListConstruct": lambda s, n, x: list(x),
    "prim::TupleConstruct": lambda s, n, x: tuple(x),
    "prim::DictConstruct": lambda s, n, x: dict(zip(x[::2], x[1::2], strict=True)),
    "prim::TupleUnpack": lambda s, n, x: x[0],
    "prim::ListUnpack": lambda s, n, x: x[0],
    "prim::Uninitialized": lambda s, n, x: None,
    "prim::RaiseException": _raise,
    "prim::Print": lambda s, n, x: None,
    "aten::warn": lambda s, n, x: None,
}
"""Nodes that are no functions of their operands."""
