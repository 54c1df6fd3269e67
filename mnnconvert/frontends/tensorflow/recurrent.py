"""Import rules of cells and layers of recurrent networks that TensorFlow has as single ops."""

from __future__ import annotations

from dataclasses import dataclass

from mnnconvert.frontends.common.compose import apply, calc
from mnnconvert.frontends.common.moves import clip
from mnnconvert.frontends.common.nodes import FIX_SIZES
from mnnconvert.frontends.tensorflow.node import TfNode
from mnnconvert.frontends.tensorflow.registry import tf_op
from mnnconvert.ir import Builder, Value
from mnnconvert.ops.arrange import Concat, Pack
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.matmul import MatMul
from mnnconvert.ops.slicing import Slice

MOST_STEPS = 256  # of a layer that is written out
GATES = ("i", "cs", "f", "o", "ci", "co", "h")


@dataclass
class Lstm:
    """A cell with gates side by side in its weights [in + hidden, 4 hidden]; `order` is that of i, g, f, o there."""

    w: Value
    bias: Value
    peepholes: list[Value]
    order: tuple[int, int, int, int]
    forget_bias: float
    clip: float

    def step(self, b: Builder, x: Value, h: Value, c: Value) -> tuple[Value, ...]:
        """i, cell, f, o, g, tanh(cell), h after one step (H. Sak et al., 2014)."""
        product = b.add(MatMul(), b.add(Concat(1), x, h), self.w)
        parts = b.add(Slice(1, parts=4), calc(b, "ADD", product, self.bias), names=[""] * 4)
        i, g, f, o = (parts[k] for k in self.order)
        f = calc(b, "ADD", f, self.forget_bias) if self.forget_bias else f
        if self.peepholes:
            i, f = (calc(b, "ADD", v, calc(b, "MUL", c, p)) for v, p in zip((i, f), self.peepholes, strict=False))
        i, f, g = apply(b, "SIGMOID", i), apply(b, "SIGMOID", f), apply(b, "TANH", g)
        c = calc(b, "ADD", calc(b, "MUL", f, c), calc(b, "MUL", i, g))
        c = clip(b, c, -self.clip, self.clip) if self.clip > 0 else c
        o = calc(b, "ADD", o, calc(b, "MUL", c, self.peepholes[2])) if self.peepholes else o
        o, out = apply(b, "SIGMOID", o), apply(b, "TANH", c)
        return i, c, f, o, g, out, calc(b, "MUL", o, out)


def _lstm(n: TfNode, first: int) -> Lstm:
    """The cell of a node whose weights start at operand `first`: w, then peepholes of i, f and o, then the bias."""
    second = n.op == "BlockLSTMV2"
    peepholes = [n.input(first + i) for i in (1, 2, 3)] if n.flag("use_peephole") else []
    order = (0, 2, 1, 3) if second else (0, 1, 2, 3)
    return Lstm(
        n.input(first), n.input(first + 4), peepholes, order,
        0.0 if second else n.float_attr("forget_bias", 1.0), n.float_attr("cell_clip", 0.0 if second else 3.0),
    )  # fmt: skip


@tf_op("LSTMBlockCell", results=GATES)
def lstm_block_cell(b: Builder, n: TfNode) -> tuple[Value, ...]:
    """Operands: x, cell, h, then the weights."""
    return _lstm(n, 3).step(b, n.input(0), n.input(2), n.input(1))


@tf_op("BlockLSTM", "BlockLSTMV2", results=GATES, limits=f"a known number of at most {MOST_STEPS} steps, all of them")
def block_lstm(b: Builder, n: TfNode) -> tuple[Value, ...]:
    """Operands: how many steps, x [steps, batch, in], cell, h, then the weights."""
    x, c, h, cell = n.input(1), n.input(2), n.input(3), _lstm(n, 4)
    steps = x.shape[0] if x.shape else None
    if not isinstance(steps, int) or steps > MOST_STEPS or n.ints(0, "the number of steps")[0] < steps:
        raise n.refuse(f"{n.op} needs a known number of at most {MOST_STEPS} steps, all of them", hint=FIX_SIZES)
    rows = []
    for i in range(steps):
        rows.append(cell.step(b, b.add(GatherV2(), x, b.ints(i), b.ints(0)), h, c))
        c, h = rows[-1][1], rows[-1][6]
    return tuple(b.add(Pack(0), *column) for column in zip(*rows, strict=True))


@tf_op("GRUBlockCell", results=("r", "u", "c", "h"))
def gru_block_cell(b: Builder, n: TfNode) -> tuple[Value, ...]:
    """Operands: x, h, weights of the gates r and u, of the candidate, and their biases (K. Cho et al., 2014)."""
    x, h, w, w_candidate, bias, bias_candidate = n.inputs
    gates = calc(b, "ADD", b.add(MatMul(), b.add(Concat(1), x, h), w), bias)
    r, u = b.add(Slice(1, parts=2), apply(b, "SIGMOID", gates), names=["", ""])
    inner = b.add(MatMul(), b.add(Concat(1), x, calc(b, "MUL", r, h)), w_candidate)
    candidate = apply(b, "TANH", calc(b, "ADD", inner, bias_candidate))
    kept = calc(b, "MUL", u, h)
    return r, u, candidate, calc(b, "ADD", kept, calc(b, "MUL", calc(b, "SUB", b.floats(1.0), u), candidate))
