"""What the constants of a graph tell, without data, about the inputs of a layer."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from mnnconvert.ir import F32, Node, Tensor, Value
from mnnconvert.ir.tensor import row_blocks
from mnnconvert.ops.activation import ELU, ReLU, ReLU6
from mnnconvert.ops.convolution import Convolution, activate
from mnnconvert.ops.elementwise import Binary, Unary
from mnnconvert.ops.normalization import LayerNorm
from mnnconvert.quantizers.blocks import Floats
from mnnconvert.quantizers.channel_groups import Place, own_factors, places_before, read_by

SAMPLES = 256
LAYERS = 1  # that may lie between a norm and the layer: further on, channels are less and less independent
PLACES = 48  # that are looked at: the sides of a gate and what activations are made of
MIDDLES = [NormalDist().inv_cdf((i + 0.5) / SAMPLES) for i in range(SAMPLES)]
QUANTILES = (np.array(MIDDLES) / np.std(MIDDLES)).astype(np.float32)  # of mean 0 and variance 1
ELEMENTWISE = Unary, Binary, ReLU, ReLU6, ELU


def expected_power(node: Node) -> NDArray[np.float64] | None:
    """Mean squares [columns] of the input channels of a layer, as far as the constants before it tell; else None.

    What a norm makes has mean 0 and mean square 1 over all channels before its gain g and offset b. Where no channel
    differs from the others there, channel j is g_j z + b_j with z ~ N(0, 1), whose mean square is g_j^2 + b_j^2.
    What a layer W x + c makes of independent channels of mean m and variance v is close to normal, as a sum of many:
    mean W m + c, variance (W o W) v. Functions of single elements and gates are applied to samples of these, in which
    different sides of a gate are independent. Attention averages the values of a head, which hardly changes how its
    channels compare. All channels have the same z, quantiles of the normal distribution in an order that is the same in
    every run: what is wrong with so few samples is wrong for all channels, and only their proportions matter.
    """
    place = read_by(node)
    x = None if place is None else _Samples().channels(place, LAYERS)
    if x is None:
        return None
    power = np.square(x, dtype=np.float64).mean(axis=1)
    return power if np.isfinite(power).all() else None


class _Samples:
    """Samples float32 [channels, SAMPLES] of values, made once for every value."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)
        self.known: dict[tuple[Value, tuple[int, ...]], Floats | None] = {}

    def channels(self, place: Place, layers: int) -> Floats | None:
        """Samples of the channels at a place, with at most so many layers before it; None when they are not known."""
        key = place.value, place.axes
        if key not in self.known:
            if len(self.known) == PLACES or min(place.sizes) < 1:
                return None
            self.known[key] = None
            with np.errstate(all="ignore"):
                self.known[key] = self._made(Place(*key, np.arange(math.prod(place.sizes))), layers)
        found = self.known[key]
        return None if found is None else found[place.index]

    def _made(self, place: Place, layers: int) -> Floats | None:
        node = place.value.producer
        if node is None or len(node.outputs) != 1 or place.value.dtype != F32:
            return None
        if isinstance(node.op, LayerNorm):
            return self._normalised(node, place)
        if isinstance(node.op, Convolution):
            return self._multiplied(node, place, layers) if layers and place.axes == (1,) else None
        if isinstance(node.op, ELEMENTWISE):
            operands = [self._operand(v, place, layers) for v in node.inputs]
            known = [x for x in operands if x is not None]
            return np.asarray(node.op.ref(*known), np.float32) if len(known) == len(operands) else None
        return next((self.channels(earlier, layers) for _, earlier in places_before(node, place)), None)

    def _normalised(self, node: Node, place: Place) -> Floats | None:
        if own_factors(node, place) is None:
            return None
        gain, offset = (np.asarray(v.constant, np.float32).reshape(-1) for v in node.inputs[1:])
        return self._normal(offset, gain)

    def _multiplied(self, node: Node, place: Place, layers: int) -> Floats | None:
        weight, start = node.inputs[1].tensor, read_by(node)
        x = None if start is None or weight is None else self.channels(start, layers - 1)
        if x is None or weight is None or not all(v.is_constant for v in node.inputs[1:]):
            return None
        mean, variance = _sums(weight, len(place.index), x.mean(axis=1), x.var(axis=1))
        for bias in node.inputs[2:]:
            mean += np.asarray(bias.constant, np.float32).reshape(-1)
        assert isinstance(node.op, Convolution)
        return activate(self._normal(mean, np.sqrt(variance)), node.op.activation)

    def _normal(self, mean: Floats, deviation: Floats) -> Floats:
        return mean[:, None] + deviation[:, None] * self.random.permutation(QUANTILES)

    def _operand(self, value: Value, place: Place, layers: int) -> Floats | None:
        """An operand of a function of single elements, as [channels, SAMPLES], or [.., 1] when it is constant."""
        if not value.is_constant:
            return (
                self.channels(Place(value, place.axes, place.index), layers)
                if value.shape == place.value.shape
                else None
            )
        sizes = value.shape or ()
        axis = len(sizes) - len(place.value.shape or ()) + place.axes[0]
        count = math.prod(s if isinstance(s, int) else 0 for s in sizes)
        per_channel = len(place.axes) == 1 and axis >= 0 and sizes[axis] == count == len(place.index)
        return np.asarray(value.constant, np.float32).reshape(-1, 1) if per_channel or count == 1 else None


def _sums(weight: Tensor, rows: int, mean: Floats, variance: Floats) -> tuple[Floats, Floats]:
    """Mean and variance [rows] of the sums that a matrix makes of independent numbers; of a large one in pieces."""
    means, variances = [], []
    for block in row_blocks(weight, rows):
        floats = np.asarray(block, np.float32)
        means.append(floats @ mean)
        variances.append(np.square(floats) @ variance)
    return np.concatenate(means), np.concatenate(variances)
