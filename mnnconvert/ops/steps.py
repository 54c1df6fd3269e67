"""Which ops compute on the 8-bit codes of values that have steps, and how MNN 3.6.1 does it (all of it was measured).

An op does where all its float operands and results have steps of 8 bits, operands inside its own table excepted:

  convolution   with weights of 8 bits, symmetric, one scale per output channel: sums of integers
  moves         with the same steps everywhere: elements change places
  pooling       with the same steps on both sides: the maximum, or the mean of codes
  arithmetic    of operands of one shape, and some functions and normalisations: computed in float32 on the values that
                the codes stand for, and rounded to the steps of the result

Everything else computes in float32 on what the codes of its operands stand for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mnnconvert.ir import I8, CodedTensor, CodedWeights, Graph, Node, Steps, Value
from mnnconvert.ops import arrange, layout, shape, slicing, vision
from mnnconvert.ops.activation import PReLU
from mnnconvert.ops.convolution import Convolution
from mnnconvert.ops.elementwise import COMPARISONS, Binary, Unary
from mnnconvert.ops.normalization import LayerNorm, Scale, Softmax
from mnnconvert.ops.padding import Padding
from mnnconvert.ops.pooling import Pooling
from mnnconvert.ops.resample import Interp

MOVES = (
    layout.ConvertTensor, layout.Identity, shape.Reshape, shape.Squeeze, shape.Unsqueeze, shape.ExpandDims,
    shape.Flatten, shape.Permute, shape.Transpose, arrange.Concat, arrange.Pack, arrange.Unpack, arrange.Reverse,
    arrange.Tile, slicing.Slice, slicing.StridedSlice, slicing.SliceTf, vision.DepthToSpace, vision.SpaceToDepth,
)  # fmt: skip
VALUES = (Binary, Unary, PReLU, Scale, Softmax, LayerNorm, Interp)
FUNCTIONS = ("ABS", "NEG", "SIGN")


def on_codes(node: Node) -> bool:
    """Whether a node computes on codes."""
    operands, results = float_operands(node), node.outputs
    steps = [v.steps for v in (*operands, *results)]
    if not operands or any(s is None or s.dtype != I8 for s in steps):
        return False
    op = node.op
    if isinstance(op, Convolution):
        return integer_weight(node) is not None
    if isinstance(op, Padding):
        return _equal(steps) and len(node.inputs) == 2
    if isinstance(op, Pooling):
        return _equal(steps) and not op.indices and not (op.count == "INCLUDE_PADDING" and any(op.pads))
    if isinstance(op, Binary):
        same_shape = len({v.shape for v in operands}) == 1 and operands[0].shape is not None
        return same_shape and op.function not in COMPARISONS
    if isinstance(op, Unary):
        return op.function in FUNCTIONS
    return isinstance(op, VALUES) or (isinstance(op, MOVES) and _equal(steps))


def spread_steps(graph: Graph) -> None:
    """Give results of moves and pooling without steps those of their operands, as MNN does when it loads a file."""
    for node in graph.nodes:
        steps = [v.steps for v in float_operands(node)]
        if not isinstance(node.op, (*MOVES, Padding, Pooling)) or not steps or None in steps or not _equal(steps):
            continue
        for value in node.outputs:
            if value.steps is None and value.dtype.kind == "f":
                value.steps = steps[0]


def float_operands(node: Node) -> list[Value]:
    """The float operands that are tensors in a file."""
    stored = range(1, 1 + len(getattr(node.op, "embedded", ())))
    return [v for i, v in enumerate(node.inputs) if v.dtype.kind == "f" and not (i in stored and v.is_constant)]


def integer_weight(node: Node) -> CodedWeights | None:
    """The weight of a convolution on codes; None where its form is another, or it is not in the op's table."""
    tensor = node.inputs[1].tensor if isinstance(node.op, Convolution) and len(node.inputs) > 2 else None
    if not isinstance(tensor, CodedTensor) or not all(v.is_constant for v in node.inputs[1:]):
        return None
    coded = tensor.coded
    fits = coded.minimum is None and coded.bits == 8 and coded.blocks == 1 and coded.shape[0] == tensor.shape[0]
    return coded if fits else None


def activated(y: Steps, activation: str) -> Steps:
    """The steps with the codes that are left after an activation ("", "relu" or "relu6")."""
    if not activation:
        return y
    high = min(y.high, int(y.encode(np.float32(6)))) if activation == "relu6" else y.high
    return replace(y, low=min(max(y.low, round(y.zero)), high), high=high)


def _equal(steps: Sequence[Steps | None]) -> bool:
    return len({(s.scale, s.zero) for s in steps if s is not None}) == 1
