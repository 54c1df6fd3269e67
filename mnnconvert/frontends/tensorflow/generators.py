"""Import rules of tensors that are made by a rule."""

from __future__ import annotations

import numpy as np

from mnnconvert.frontends.common.compose import apply, calc, cast
from mnnconvert.frontends.common.run_time import scalar
from mnnconvert.frontends.tensorflow.node import TfNode
from mnnconvert.frontends.tensorflow.registry import tf_op
from mnnconvert.frontends.tensorflow.types import graph_type
from mnnconvert.ir import F32, I32, Builder, Value
from mnnconvert.ops.generators import Fill, LinSpace, RandomNormal, RandomUniform, Range

OTHER_NUMBERS = "other numbers than TensorFlow draws for the same seeds"


@tf_op("Fill")
def fill(b: Builder, n: TfNode) -> Value:
    return b.add(Fill(), n.input(0), scalar(b, n.input(1)))


@tf_op("Empty", gives="dtype")
def empty(b: Builder, n: TfNode) -> Value:
    """Zeros: what is left open in TensorFlow unless it asks for them."""
    return b.add(Fill(), n.input(0), b.constant(np.zeros((), graph_type(n.type("dtype"), n.name))))


@tf_op("Range", gives="Tidx")
def range_(b: Builder, n: TfNode) -> Value:
    return b.add(Range(), *(scalar(b, x) for x in n.inputs))


@tf_op("LinSpace")
def lin_space(b: Builder, n: TfNode) -> Value:
    return b.add(LinSpace(), *(scalar(b, x) for x in n.inputs))


def _seed(n: TfNode) -> int:
    return (n.int_attr("seed") or n.int_attr("seed2")) & 0x7FFFFFFF


@tf_op("RandomUniform", "RandomStandardNormal", gives="dtype", limits=OTHER_NUMBERS)
def random(b: Builder, n: TfNode) -> Value:
    op = RandomUniform if n.op == "RandomUniform" else RandomNormal
    return b.add(op(seed=_seed(n)), n.input(0))


@tf_op("RandomUniformInt", gives="Tout", limits=OTHER_NUMBERS)
def random_integers(b: Builder, n: TfNode) -> Value:
    """Whole numbers from a smallest one on, below a largest one."""
    low, high = (cast(b, scalar(b, n.input(i)), F32) for i in (1, 2))
    drawn = b.add(RandomUniform(seed=_seed(n)), n.input(0))
    scaled = calc(b, "ADD", calc(b, "MUL", drawn, calc(b, "SUB", high, low)), low)
    return calc(b, "MINIMUM", cast(b, apply(b, "FLOOR", scaled), I32), calc(b, "SUB", scalar(b, n.input(2)), 1))
