"""Sets the steps of values so that MNN 3.6.1 computes on codes what our definitions say.

What its kernels on codes get wrong (all of it was measured):

  convolution   with ReLU6: the 6 is not looked at
  pooling       the maximum: codes of different signs are compared as if they were unsigned; the mean: fractions of
                a code are cut, and padding that counts is not counted
  resize        with different steps on both sides: codes are taken as they are
  arithmetic    MAXIMUM, MINIMUM: nonsense; with a ReLU: it cuts at code 0, whatever stands for 0 (the lowest code of
                the steps does what the ReLU should)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from mnnconvert.ir import Graph, Node, Steps, Value
from mnnconvert.ops.convolution import Convolution
from mnnconvert.ops.elementwise import Binary
from mnnconvert.ops.padding import Padding
from mnnconvert.ops.pooling import Pooling
from mnnconvert.ops.resample import Interp
from mnnconvert.ops.steps import MOVES, activated, on_codes, spread_steps
from mnnconvert.passes.base import GraphPass, Notes

BROKEN = ("MAXIMUM", "MINIMUM")


@dataclass(frozen=True)
class SettleSteps(GraphPass):
    """Set the steps of values, for engines on 8-bit codes, so that MNN computes with them what the ops say."""

    name = "steps"
    after = ("layout",)

    def change(self, graph: Graph, notes: Notes) -> int:
        spread_steps(graph)
        return sum(_settle(node, notes) for node in graph.nodes)


def _settle(node: Node, notes: Notes) -> bool:
    """Change the steps of the result of a node if need be; whether that was so."""
    x, y, op = node.inputs[0].steps if node.inputs else None, node.output.steps if node.outputs else None, node.op
    if x is None or y is None:
        return False
    settled: Steps | None = y
    if isinstance(op, Pooling) and _differs(op, x) and (x.scale, x.zero) == (y.scale, y.zero):
        settled = replace(y, scale=float(np.nextafter(np.float32(y.scale), np.float32(np.inf))))
    elif not on_codes(node):
        return False
    elif isinstance(op, Convolution):
        settled = activated(y, op.activation)
    elif isinstance(op, Interp):
        settled = replace(y, scale=x.scale, zero=x.zero)
    elif isinstance(op, Binary) and op.activation and y.zero and op.function not in BROKEN:
        node.op = replace(op, activation=0)
        settled = activated(y, "relu")
    elif isinstance(op, Binary) and op.function in BROKEN:
        settled = None
        notes.notes.append(f"'{node.name}' computes in floats: MNN 3.6.1 is wrong on codes of {op.function}")
    if settled == y:
        return False
    _set(node.output, settled)
    return True


def _differs(op: Pooling, x: Steps) -> bool:
    """Whether pooling on codes gives something else. With steps that differ, if only by a bit, it is done in floats."""
    return op.function != "MAXPOOL" or x.low < 0 <= x.high


def _set(value: Value, steps: Steps | None) -> None:
    """Set the steps of a value, and of those that have the same because they are moved or pooled from it."""
    before, value.steps = value.steps, steps
    for node in value.users:
        if isinstance(node.op, (*MOVES, Padding, Pooling)):
            for result in node.outputs:
                if result.steps == before and before != steps:
                    _set(result, steps)
