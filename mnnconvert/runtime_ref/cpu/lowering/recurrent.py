"""Recurrent layers: what x contributes to the gates of all steps is one matrix product, then the steps.

Weights and biases that are not constants are left to the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mnnconvert.ir import F32, Node, Value
from mnnconvert.ops.recurrent import GRU, LSTM, RNN
from mnnconvert.runtime_ref.cpu.lower import Lowering, lowers
from mnnconvert.runtime_ref.lower import Epilogue, Tensor
from mnnconvert.runtime_ref.memory import aligned
from mnnconvert.runtime_ref.products import Operand, multiply
from mnnconvert.runtime_ref.strided import phantom

Make = Callable[..., np.ndarray]


@lowers(LSTM)
def lstm(ctx: Lowering, node: Node) -> bool:
    x, w, r, b, *starts = node.inputs
    if w.tensor is None or r.tensor is None or 0 in ctx.shape(x):
        return False
    gates = _projected(ctx, x, _packed(ctx, [w], "recurrent input", _input_matrix), ctx.read(b))
    h, c = [ctx.read(v) for v in starts] or (None, None)
    packed = _packed(ctx, [r], "recurrent state", _recurrent_matrices)
    y, last_h, last_c = _results(ctx, node)
    ctx.call("lstm_f32", gates=gates, r=packed, h_start=h, c_start=c, y=y, h=last_h, c=last_c, **_sizes(ctx, node))
    return True


@lowers(RNN)
def rnn(ctx: Lowering, node: Node) -> bool:
    x, w, r, b, *start = node.inputs
    if w.tensor is None or r.tensor is None or 0 in ctx.shape(x):
        return False
    gates = _projected(ctx, x, _packed(ctx, [w], "recurrent input", _input_matrix), ctx.read(b))
    h = ctx.read(start[0]) if start else None
    packed = _packed(ctx, [r], "recurrent state", _recurrent_matrices)
    y, last = _results(ctx, node)
    ctx.call("rnn_f32", gates=gates, r=packed, h_start=h, y=y, h=last, **_sizes(ctx, node))
    return True


@lowers(GRU)
def gru(ctx: Lowering, node: Node) -> bool:
    op: Any = node.op
    x, *rest = node.inputs
    weights, start = rest[: 5 * op.directions], rest[5 * op.directions :]
    if any(v.tensor is None for v in weights) or 0 in ctx.shape(x):
        return False
    gate_w, gate_b, candidate_w, candidate_b, recurrent_b = (weights[i::5] for i in range(5))
    width, n = ctx.shape(x)[2], op.hidden

    def projection(*each: np.ndarray) -> np.ndarray:
        pairs = zip(each[: op.directions], each[op.directions :], strict=True)
        return np.concatenate([part[:width] for pair in pairs for part in pair], 1)[None]

    def biases(*each: np.ndarray) -> np.ndarray:
        gates, candidates, recurrent = (each[i : i + op.directions] for i in range(0, len(each), op.directions))
        parts = [
            np.concatenate([g.reshape(-1) + r.reshape(-1)[: 2 * n], c.reshape(-1)])
            for g, c, r in zip(gates, candidates, recurrent, strict=True)
        ]
        return np.concatenate(parts)

    packed = _packed(ctx, [*gate_w, *candidate_w], "recurrent input", projection)
    bias = _made(ctx, [*gate_b, *candidate_b, *recurrent_b], "recurrent bias", biases)
    gates = _projected(ctx, x, packed, bias)

    def state_matrices(*each: np.ndarray) -> np.ndarray:
        return np.stack([w[width:] for w in each])

    r, s = (_packed(ctx, side, "recurrent state", state_matrices) for side in (gate_w, candidate_w))
    inner = _made(
        ctx, recurrent_b, "recurrent inner bias", lambda *each: np.stack([b.reshape(-1)[2 * n :] for b in each])
    )
    y, last = _results(ctx, node)
    h = ctx.read(start[0]) if start else None
    ctx.call("gru_f32", gates=gates, r=r, s=s, bias=inner, h_start=h, y=y, h=last, linear=op.linear_before_reset,
             **_sizes(ctx, node))  # fmt: skip
    return True


def _input_matrix(w: np.ndarray) -> np.ndarray:
    """[directions, gates, in] -> [1, in, directions * gates]."""
    return w.reshape(1, -1, w.shape[2]).swapaxes(1, 2)


def _recurrent_matrices(r: np.ndarray) -> np.ndarray:
    """[directions, gates, hidden] -> [directions, hidden, gates]."""
    return r.swapaxes(1, 2)


def _made(ctx: Lowering, values: Sequence[Value], form: str, make: Make) -> Tensor:
    """What `make` makes of the contents of constants, once per session."""

    def arrays() -> np.ndarray:
        return np.ascontiguousarray(make(*(v.tensor.numpy() for v in values if v.tensor is not None)), F32)

    return ctx.static((form, *(id(v.tensor) for v in values)), arrays)


def _packed(ctx: Lowering, values: Sequence[Value], form: str, make: Make) -> Tensor:
    """Matrices [batch, k, n], made of constants, in panels."""

    def pack() -> np.ndarray:
        b = np.ascontiguousarray(make(*(v.tensor.numpy() for v in values if v.tensor is not None)), F32)
        batch, k, n = b.shape
        packed = aligned((batch, -(-n // (2 * ctx.lanes)), k, 2 * ctx.lanes), F32)
        ctx.once("gemm_pack_b", b=b, packed=packed, batch=batch, k=k, n=n, row=n, column=1, outer=k * n)
        return packed

    return ctx.static((form, *(id(v.tensor) for v in values)), pack)


def _projected(ctx: Lowering, x: Value, packed: Tensor, bias: Tensor) -> Tensor:
    """x [steps, batch, in] times a packed matrix, plus a bias: [steps * batch, columns]."""
    steps, batch, width = ctx.shape(x)
    rows, columns = steps * batch, bias.size
    y = ctx.tensor((rows, columns))
    a, b = Operand(ctx.read(x), phantom((rows, width), F32)), Operand(packed, phantom((1, 1), F32))
    product = Operand(y, phantom((rows, columns), F32))
    multiply(ctx, a, b, product, packed=True, bias=bias, residual=None, epilogue=Epilogue(x))
    return y


def _results(ctx: Lowering, node: Node) -> list[Tensor]:
    return [ctx.result(v) for v in node.outputs]


def _sizes(ctx: Lowering, node: Node) -> dict[str, int]:
    steps, directions, batch, hidden = ctx.shape(node.output)
    return {"steps": steps, "batch": batch, "directions": directions, "hidden": hidden}
