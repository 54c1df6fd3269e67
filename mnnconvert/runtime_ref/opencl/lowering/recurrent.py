"""Recurrent layers: what x contributes to the gates of all steps is one matrix product, then the steps.

On a processor an item goes through all steps of a row of the batch, on a GPU every step is a launch, or two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mnnconvert.ir import F32, Node, Value
from mnnconvert.ops.recurrent import GRU, LSTM, RNN
from mnnconvert.runtime_ref import recurrent
from mnnconvert.runtime_ref.lower import Tensor
from mnnconvert.runtime_ref.opencl.lower import Lowering, Variant, lowers
from mnnconvert.runtime_ref.recurrent import Matrices

MANY_STEPS = 256
"""Launches that are not worth a try."""


@lowers(LSTM)
def lstm(ctx: Lowering, node: Node) -> bool:
    found = recurrent.simple(ctx, node)
    if found is None:
        return False
    gates, r = found
    h, c = [ctx.read(v) for v in node.inputs[4:]] or (None, None)
    y, last_h, last_c = (ctx.result(v) for v in node.outputs)
    _steps(ctx, node, "lstm", {}, 1, gates=gates, r=_by_units(ctx, [r], 4), h_start=h, c_start=c, y=y, h=last_h,
           c=last_c)  # fmt: skip
    return True


@lowers(RNN)
def rnn(ctx: Lowering, node: Node) -> bool:
    found = recurrent.simple(ctx, node)
    if found is None:
        return False
    gates, r = found
    y, last = (ctx.result(v) for v in node.outputs)
    _steps(ctx, node, "rnn", {}, 1, gates=gates, r=_by_units(ctx, [r], 1), h_start=_start(ctx, node.inputs[4:]), y=y,
           h=last)  # fmt: skip
    return True


@lowers(GRU)
def gru(ctx: Lowering, node: Node) -> bool:
    op: Any = node.op
    found = recurrent.gru(ctx, node)
    if found is None:
        return False
    y, last = (ctx.result(v) for v in node.outputs)
    r, kept = _by_units(ctx, [found.r, found.s], 3), ctx.tensor(last.shape)
    defines, parts = ({"LINEAR": 1}, 1) if op.linear_before_reset else ({}, 2)
    h = _start(ctx, node.inputs[1 + 5 * op.directions :])
    _steps(ctx, node, "gru", defines, parts, gates=found.gates, r=r, bias=found.bias, h_start=h, kept=kept, y=y,
           h=last)  # fmt: skip
    return True


def _start(ctx: Lowering, given: Sequence[Value]) -> Tensor | None:
    return ctx.read(given[0]) if given else None


def _by_units(ctx: Lowering, sides: Sequence[Matrices], gates: int) -> Tensor:
    """Weights of the state as [directions, vectors of units, old units, gates, lanes]."""

    def make() -> np.ndarray:
        whole = np.concatenate([side.array() for side in sides], 2)
        directions, n, _ = whole.shape
        vectors = -(-n // ctx.lanes)
        filled = np.zeros((directions, n, gates, vectors * ctx.lanes), F32)
        filled[..., :n] = whole.reshape(directions, n, gates, n)
        return filled.reshape(directions, n, gates, vectors, ctx.lanes).transpose(0, 3, 1, 2, 4)

    return ctx.static(("recurrent units", *(id(v.tensor) for side in sides for v in side.values)), make)


def _steps(ctx: Lowering, node: Node, kernel: str, defines: dict[str, int], parts: int, **tensors: Any) -> None:
    """Append the steps: as one launch, or as launches of `parts` each."""
    sizes: dict[str, Any] = recurrent.sizes(ctx, node)
    steps, batch, directions = sizes["steps"], sizes["batch"], sizes["directions"]
    defines = defines | ({"STARTS": 1} if tensors["h_start"] is not None else {})
    whole = ctx.variant(kernel, (batch, directions), (1, 1), defines | {"WHOLE": 1}, first=0, **tensors, **sizes)
    units = -(-sizes["hidden"] // ctx.lanes)
    each: list[Variant] = [
        ctx.variant(kernel, (units, batch, directions), None, defines | {"PART": part}, first=i, **tensors, **sizes)
        for i in range(steps if steps <= MANY_STEPS or not ctx.device.is_cpu else 0)
        for part in range(parts)
    ]
    single = [replace(each[-1], before=tuple(each[:-1]))] if each else []
    ctx.choose([whole, *single] if ctx.device.is_cpu else [*single, whole])
