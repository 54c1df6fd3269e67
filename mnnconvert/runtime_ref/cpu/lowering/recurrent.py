"""Recurrent layers: what x contributes to the gates of all steps is one matrix product, then the steps."""

from __future__ import annotations

from typing import Any

from mnnconvert.ir import Node
from mnnconvert.ops.recurrent import GRU, LSTM, RNN
from mnnconvert.runtime_ref import recurrent
from mnnconvert.runtime_ref.cpu.lower import Lowering, lowers
from mnnconvert.runtime_ref.lower import Tensor
from mnnconvert.runtime_ref.recurrent import static_panels


@lowers(LSTM)
def lstm(ctx: Lowering, node: Node) -> bool:
    found = recurrent.simple(ctx, node)
    if found is None:
        return False
    gates, r = found
    h, c = [ctx.read(v) for v in node.inputs[4:]] or (None, None)
    y, last_h, last_c = _results(ctx, node)
    ctx.call("lstm_f32", gates=gates, r=static_panels(ctx, r, "recurrent state"), h_start=h, c_start=c, y=y, h=last_h,
             c=last_c, **recurrent.sizes(ctx, node))  # fmt: skip
    return True


@lowers(RNN)
def rnn(ctx: Lowering, node: Node) -> bool:
    found = recurrent.simple(ctx, node)
    if found is None:
        return False
    gates, r = found
    h = ctx.read(node.inputs[4]) if len(node.inputs) > 4 else None
    y, last = _results(ctx, node)
    ctx.call("rnn_f32", gates=gates, r=static_panels(ctx, r, "recurrent state"), h_start=h, y=y, h=last,
             **recurrent.sizes(ctx, node))  # fmt: skip
    return True


@lowers(GRU)
def gru(ctx: Lowering, node: Node) -> bool:
    op: Any = node.op
    found = recurrent.gru(ctx, node)
    if found is None:
        return False
    r, s = (static_panels(ctx, side, "recurrent state") for side in (found.r, found.s))
    y, last = _results(ctx, node)
    h = ctx.read(node.inputs[-1]) if len(node.inputs) > 1 + 5 * op.directions else None
    ctx.call("gru_f32", gates=found.gates, r=r, s=s, bias=found.bias, h_start=h, y=y, h=last,
             linear=op.linear_before_reset, **recurrent.sizes(ctx, node))  # fmt: skip
    return True


def _results(ctx: Lowering, node: Node) -> list[Tensor]:
    return [ctx.result(v) for v in node.outputs]
