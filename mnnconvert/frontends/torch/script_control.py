"""Branches and loops of TorchScript: run in Python where Python decides, else as torch.cond and torch.while_loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from mnnconvert.errors import ConversionError

if TYPE_CHECKING:
    from mnnconvert.frontends.torch.script import Environment, Script

MOST_STEPS = 1024  # a longer loop would write a file that nobody can mean
ENDLESS = 1 << 62  # the trip count of `while`


def branch(script: Script, node: Any, env: Environment, condition: Any) -> list[Any]:
    """The results of prim::If. A branch that ends in an exception is never taken when the data would decide."""
    import torch

    then, other = node.blocks()
    if not isinstance(condition, torch.Tensor):
        return script.run_block(then if condition else other, env, ())
    for block, remaining in ((then, other), (other, then)):
        if raises(block):
            return script.run_block(remaining, env, ())
    captured = _Captured(script, (then, other), env)
    sides = [_Side(script, block, captured) for block in (then, other)]
    from torch._higher_order_ops.cond import cond_op

    results = cond_op(condition, *(side.run for side in sides), tuple(captured.tensors))
    return sides[0].rebuilt(results)


def raises(block: Any) -> bool:
    """Whether a block does nothing but raise an error."""
    return any(node.kind() == "prim::RaiseException" for node in block.nodes())


def loop(script: Script, node: Any, env: Environment, trips: Any, condition: Any, *carried: Any) -> list[Any]:
    """The results of prim::Loop: steps that Python counts are unrolled."""
    import torch

    (body,) = node.blocks()
    step = 0
    values = list(carried)
    while not any(isinstance(x, torch.Tensor) for x in (trips, condition)):
        if not condition or step >= trips:
            return values
        if step >= MOST_STEPS:
            raise ConversionError.of("too-large", f"a loop of the script has more than {MOST_STEPS} steps", op="Loop")
        condition, *values = script.run_block(body, env, [step, *values])
        step += 1
    return _while(script, body, env, step, trips, condition, values)


def _while(script: Script, body: Any, env: Environment, step: int, trips: Any, go: Any, values: list[Any]) -> list[Any]:
    """From step `step` on, a loop that ends when the data says so."""
    import torch
    from torch._higher_order_ops.while_loop import while_loop_op

    captured = _Captured(script, (body,), env)
    bounded = isinstance(trips, torch.Tensor) or trips < ENDLESS
    state, spec = _tensors_of(values)
    first = [torch.scalar_tensor(step, dtype=torch.int64), _flag(go)]
    limit = [trips.reshape(()).to(torch.int64)] if isinstance(trips, torch.Tensor) else []

    def condition(count: Any, go: Any, *rest: Any) -> Any:
        if not bounded:
            return go.clone()
        return torch.logical_and(go, count < (rest[len(state)] if limit else trips))

    def once(count: Any, go: Any, *rest: Any) -> tuple[Any, ...]:
        inner = captured.environment(rest[len(state) + len(limit) :])
        carried = _rebuilt(rest[: len(state)], spec, values)
        again, *results = _deeper(script, lambda: script.run_block(body, inner, [count, *carried]))
        following, _ = _tensors_of(results)
        return (count + 1, _flag(again), *(x.clone() for x in following))

    operands = (*first, *(x.clone() for x in state))
    results = while_loop_op(condition, once, operands, (*limit, *captured.tensors))
    return _rebuilt(results[2:], spec, values)


class _Captured:
    """What blocks read from outside: tensors become operands, as the traced functions may not close over any."""

    def __init__(self, script: Script, blocks: tuple[Any, ...], env: Environment):
        from torch.utils import _pytree as pytree

        self.env = dict(env)
        for block in blocks:
            self._read_attributes(script, block)
        names = [n for n in dict.fromkeys(n for block in blocks for n in _read(block)) if n in self.env]
        self._leaves, self._spec = pytree.tree_flatten({name: self.env[name] for name in names})
        self._places = [i for i, leaf in enumerate(self._leaves) if _is_tensor(leaf)]
        self.tensors = [self._leaves[i] for i in self._places]

    def _read_attributes(self, script: Script, block: Any) -> None:
        for node in block.nodes():
            if node.kind() == "prim::GetAttr" and node.input().debugName() in self.env:
                self.env[node.output().debugName()] = script.get_attribute(node, [self.env[node.input().debugName()]])
            for inner in node.blocks():
                self._read_attributes(script, inner)

    def environment(self, tensors: Any) -> Environment:
        """What the blocks see, with `tensors` for those that were captured."""
        from torch.utils import _pytree as pytree

        leaves = list(self._leaves)
        for place, tensor in zip(self._places, tensors, strict=True):
            leaves[place] = tensor
        return self.env | pytree.tree_unflatten(leaves, self._spec)


class _Side:
    """One branch as a function of the captured tensors."""

    def __init__(self, script: Script, block: Any, captured: _Captured):
        self.script, self.block, self.captured = script, block, captured
        self.results: list[Any] = []
        self.spec: Any = None

    def run(self, *tensors: Any) -> tuple[Any, ...]:
        env = self.captured.environment(tensors)
        self.results = _deeper(self.script, lambda: self.script.run_block(self.block, env, ()))
        found, self.spec = _tensors_of(self.results)
        return tuple(x.clone() for x in found)

    def rebuilt(self, tensors: Any) -> list[Any]:
        return _rebuilt(tensors, self.spec, self.results)


def _deeper(script: Script, run: Callable[[], list[Any]]) -> list[Any]:
    script.depth += 1
    try:
        return run()
    finally:
        script.depth -= 1


def _read(block: Any) -> Iterator[str]:
    """Names that a block, or one inside it, reads or gives; those that are its own are not in the environment."""
    for node in block.nodes():
        if node.kind() != "prim::GetAttr":
            yield from (value.debugName() for value in node.inputs())
        else:
            yield node.output().debugName()
        for inner in node.blocks():
            yield from _read(inner)
    yield from (value.debugName() for value in block.outputs())


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _flag(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return value.reshape(()).to(torch.bool).clone()
    return torch.scalar_tensor(bool(value), dtype=torch.bool)


def _tensors_of(values: list[Any]) -> tuple[list[Any], Any]:
    """All leaves of a structure as tensors (numbers too), and the structure; None stays in it."""
    import torch
    from torch.utils import _pytree as pytree

    leaves, spec = pytree.tree_flatten(values)
    return [x if isinstance(x, torch.Tensor) else _number_tensor(x) for x in leaves if x is not None], spec


def _number_tensor(value: Any) -> Any:
    import torch

    if not isinstance(value, int | float | bool | torch.SymInt | torch.SymFloat):
        raise ConversionError.of("unsupported-op", f"a branch or loop of the script gives a {type(value).__name__}")
    whole = isinstance(value, int | torch.SymInt)
    kind = torch.bool if isinstance(value, bool) else torch.int64 if whole else torch.float32
    return torch.scalar_tensor(value, dtype=kind)


def _rebuilt(tensors: Any, spec: Any, like: list[Any]) -> list[Any]:
    from torch.utils import _pytree as pytree

    found = iter(tensors)
    leaves = [None if leaf is None else next(found) for leaf in pytree.tree_leaves(like)]
    rebuilt: list[Any] = pytree.tree_unflatten(leaves, spec)
    return rebuilt
