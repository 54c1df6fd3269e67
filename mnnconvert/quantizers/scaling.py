"""Channel scales that make layers easier to code, searched on data and folded into what comes before: AWQ, SmoothQuant.

Both use y = (W s)(x / s). AWQ (Lin et al. 2023) raises the channels whose inputs are large, so that their weights are
rounded more finely; SmoothQuant (Xiao et al. 2022) lowers the range of the inputs, so that they can be rounded to 8
bits. How far is found per group of layers by the error of their outputs on a grid of exponents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mnnconvert.ir import Graph, Node
from mnnconvert.quantizers import rtn
from mnnconvert.quantizers.calibrate import Arrays, Prepare, Progress, Seen, observe
from mnnconvert.quantizers.channel_groups import ChannelGroup, find_groups
from mnnconvert.quantizers.plan import LayerPlan

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

STEPS = 20  # exponents 0, 1/20, ... that are tried
SMALLEST = 1e-5  # of a statistic: a channel that is always 0 keeps a finite scale


@dataclass(frozen=True)
class Scaled:
    """A group that was scaled: its layers, the exponent, and the output error relative to that without scales."""

    layers: tuple[str, ...]
    exponent: float
    error: float


def scale_channels(
    graph: Graph,
    layers: Sequence[LayerPlan],
    samples: Sequence[Arrays],
    prepare: Prepare,
    kind: str,
    progress: Progress | None = None,
) -> list[Scaled]:
    """Search and fold scales for every group of layers that has a place for them; the float outputs stay the same.

    `kind` is "awq" or "smooth". Runs the float model over `samples` once (see `calibrate`). A group whose error no
    exponent lowers stays as it is; `notes` of the plans say what was found.
    """
    plans = {x.node: x for x in layers if x.changed and x.setting.bits}
    groups = find_groups(graph, plans)
    seen = _observed(graph, [plans[n] for g in groups for n in g.layers], samples, prepare)
    done = []
    for number, group in enumerate(groups):
        found = _search(group, plans, seen, kind)
        if found is not None:
            exponent, error, scale = found
            group.fold(scale)
            done.append(Scaled(tuple(n.name for n in group.layers), exponent, error))
            for node in group.layers:
                plans[node].notes.append(
                    f"{kind} scales, exponent {exponent:g}: output error {error:.2f} of that without"
                )
        if progress is not None:
            progress((number + 1) / len(groups))
    return done


def _observed(
    graph: Graph, layers: Sequence[LayerPlan], samples: Sequence[Arrays], prepare: Prepare
) -> dict[Node, Seen]:
    """What each layer sees in the float model, before anything is folded."""
    kept: dict[Node, Seen] = {}

    def keep(group: Sequence[LayerPlan], seen: Seen | None) -> None:
        if seen is not None:
            kept.update({x.node: seen for x in group})

    observe(graph, layers, samples, prepare, keep)
    return kept


def _search(
    group: ChannelGroup, plans: Mapping[Node, LayerPlan], seen: Mapping[Node, Seen], kind: str
) -> tuple[float, float, Doubles] | None:
    """The best exponent, its error relative to that without scales, and the scales [channels of the source]."""
    if any(n not in seen for n in group.layers):
        return None
    rows = seen[group.layers[0]].rows
    weights = [(plans[n], _matrix(plans[n])) for n in group.layers]
    propose = _awq if kind == "awq" else _smooth
    inputs = np.abs(rows).mean(axis=0) if kind == "awq" else np.abs(rows).max(axis=0)
    statistics = _per_source(inputs, group), _per_source(_weight_statistic(weights, kind), group)
    exact = [rows @ w.T for _, w in weights]
    start = best = _error(rows, weights, exact, None, kind)
    chosen: tuple[float, float, Doubles] | None = None
    for step in range(STEPS):
        scale = propose(*statistics, step / STEPS)
        error = _error(rows, weights, exact, scale[group.index], kind)
        if error < best:
            best, chosen = error, (step / STEPS, error / start, scale)
    return chosen


def _matrix(plan: LayerPlan) -> Floats:
    tensor = plan.weight.tensor
    assert tensor is not None
    return np.ascontiguousarray(tensor.numpy().reshape(plan.rows, -1), np.float32)


def _per_source(values: Doubles, group: ChannelGroup) -> Doubles:
    """The mean over the input channels that one channel of the source becomes."""
    channels = group.source.channels
    count = np.bincount(group.index, minlength=channels)
    mean = np.bincount(group.index, values, minlength=channels) / np.maximum(count, 1)
    return np.where(count > 0, mean, 1.0)


def _weight_statistic(weights: Sequence[tuple[LayerPlan, Floats]], kind: str) -> Doubles:
    """Per input channel: for AWQ the mean of |w| relative to the largest of its block, for SmoothQuant the largest."""
    if kind == "smooth":
        return np.max([np.abs(w).max(axis=0) for _, w in weights], axis=0).astype(np.float64)
    parts = []
    for plan, w in weights:
        blocks = np.abs(w).reshape(len(w), -1, plan.block or w.shape[1])
        largest = np.maximum(blocks.max(axis=2, keepdims=True), SMALLEST)
        parts.append((blocks / largest).reshape(w.shape))
    return np.concatenate(parts).mean(axis=0).astype(np.float64)


def _awq(inputs: Doubles, weights: Doubles, exponent: float) -> Doubles:
    """s = x^r / w^(1-r), normalised to 1 in the middle of its range."""
    scale = np.maximum(inputs, SMALLEST) ** exponent / (weights ** (1 - exponent) + 1e-4)
    return np.asarray(scale / np.sqrt(scale.max() * scale.min()))


def _smooth(inputs: Doubles, weights: Doubles, exponent: float) -> Doubles:
    """s = max|x|^a / max|w|^(1-a)."""
    scale = np.maximum(inputs, SMALLEST) ** exponent / np.maximum(weights, SMALLEST) ** (1 - exponent)
    return np.maximum(scale, SMALLEST)


def _error(
    rows: Floats,
    weights: Sequence[tuple[LayerPlan, Floats]],
    exact: Sequence[Floats],
    scale: Doubles | None,
    kind: str,
) -> float:
    """Squared error of the outputs with rounded weights and, for SmoothQuant, inputs rounded to 8 bits."""
    factors = np.ones(rows.shape[1], np.float32) if scale is None else scale.astype(np.float32)
    inputs = rows / factors
    if kind == "smooth":
        step = max(float(np.abs(inputs).max()) / 127, 1e-30)
        inputs = np.rint(inputs / step) * np.float32(step)
    total = 0.0
    for (plan, w), want in zip(weights, exact, strict=True):
        how = plan.resolved
        coded = rtn.quantize(w * factors, how.bits, how.block, how.symmetric, how.half_scales).decode()
        total += float(np.square(inputs @ coded.T - want).sum(dtype=np.float64))
    return total
