"""What recurrent layers of every backend share: the product of x with the input weights, and the recurrent weights.

Weights and biases that are not constants are left to the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from mnnconvert.ir import F32, Node, Value
from mnnconvert.runtime_ref.lower import Epilogue, Lowering, Tensor
from mnnconvert.runtime_ref.products import Operand, multiply
from mnnconvert.runtime_ref.strided import phantom

Make = Callable[..., np.ndarray]


class Matrices(NamedTuple):
    """Recurrent weights: the constants that they come from, and what makes [directions, hidden, gates] of these."""

    values: Sequence[Value]
    make: Make

    def array(self) -> np.ndarray:
        """The matrices, float32."""
        return _content(self.values, self.make)


class Gru(NamedTuple):
    """The gates, weights of the state for its gates and for the candidate, and the bias [directions, hidden] there."""

    gates: Tensor
    r: Matrices
    s: Matrices
    bias: Tensor


def sizes(ctx: Lowering, node: Node) -> dict[str, int]:
    """The numbers that kernels take."""
    steps, directions, batch, hidden = ctx.shape(node.output)
    return {"steps": steps, "batch": batch, "directions": directions, "hidden": hidden}


def simple(ctx: Lowering, node: Node) -> tuple[Tensor, Matrices] | None:
    """What x contributes to the gates of an LSTM or RNN [steps * batch, directions * gates], and its state weights."""
    x, w, r, b, *_ = node.inputs
    if w.tensor is None or r.tensor is None or 0 in ctx.shape(x):
        return None
    packed = static_panels(ctx, Matrices([w], _input_matrix), "recurrent input")
    return _projected(ctx, x, packed, ctx.read(b)), Matrices([r], lambda r: r.swapaxes(1, 2))


def gru(ctx: Lowering, node: Node) -> Gru | None:
    """What the kernel of a GRU takes."""
    op: Any = node.op
    x, *rest = node.inputs
    weights = rest[: 5 * op.directions]
    if any(v.tensor is None for v in weights) or 0 in ctx.shape(x):
        return None
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

    def states(*each: np.ndarray) -> np.ndarray:
        return np.stack([w[width:] for w in each])

    packed = static_panels(ctx, Matrices([*gate_w, *candidate_w], projection), "recurrent input")
    bias = _static(ctx, [*gate_b, *candidate_b, *recurrent_b], "recurrent bias", biases)
    inner = _static(
        ctx, recurrent_b, "recurrent inner bias", lambda *each: np.stack([b.reshape(-1)[2 * n :] for b in each])
    )
    return Gru(_projected(ctx, x, packed, bias), Matrices(gate_w, states), Matrices(candidate_w, states), inner)


def static_panels(ctx: Lowering, matrices: Matrices, form: str) -> Tensor:
    """The matrices in panels, as products take them, once per session."""
    key = (form, *(id(v.tensor) for v in matrices.values))
    return ctx.static(key, lambda: ctx.in_panels(matrices.array()))


def _input_matrix(w: np.ndarray) -> np.ndarray:
    """[directions, gates, in] -> [1, in, directions * gates]."""
    return w.reshape(1, -1, w.shape[2]).swapaxes(1, 2)


def _content(values: Sequence[Value], make: Make) -> np.ndarray:
    return np.ascontiguousarray(make(*(v.tensor.numpy() for v in values if v.tensor is not None)), F32)


def _static(ctx: Lowering, values: Sequence[Value], form: str, make: Make) -> Tensor:
    """What `make` makes of the contents of constants, once per session."""
    return ctx.static((form, *(id(v.tensor) for v in values)), lambda: _content(values, make))


def _projected(ctx: Lowering, x: Value, packed: Tensor, bias: Tensor) -> Tensor:
    """x [steps, batch, in] times a packed matrix, plus a bias: [steps * batch, columns]."""
    steps, batch, width = ctx.shape(x)
    rows, columns = steps * batch, bias.size
    y = ctx.tensor((rows, columns))
    a, b = Operand(ctx.read(x), phantom((rows, width), F32)), Operand(packed, phantom((1, 1), F32))
    product = Operand(y, phantom((rows, columns), F32))
    multiply(ctx, a, b, product, packed=True, bias=bias, residual=None, epilogue=Epilogue(x))
    return y
