"""Which layers cost most when they run in integers, so that a few of them can stay in floats."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mnnconvert.calibration.report import Agreement
from mnnconvert.calibration.samples import Feeds
from mnnconvert.ir import Graph, Node, Tensor
from mnnconvert.quantizers.int8 import plan_int8, set_constant, simulate
from mnnconvert.runtime_ref.session import Session
from mnnconvert.schema.reader import read_model

Operands = tuple[Tensor, Tensor | None]  # weight and bias

MOST = 0.2  # of the layers may go back to floats


def operands_of(node: Node) -> Operands:
    """The constant weight of a layer, and its bias where it has one."""
    weight, bias = node.inputs[1].tensor, node.inputs[2].tensor if len(node.inputs) > 2 else None
    assert weight is not None
    return weight, bias


def restore(graph: Graph, floats: dict[str, Operands], names: Collection[str]) -> None:
    """Let the named layers run in floats again: their operands as in `floats`, no steps that only they needed."""
    for node in graph.nodes:
        if node.name in names and node.name in floats:
            weight, bias = floats[node.name]
            set_constant(node, 1, weight)
            if bias is not None:
                set_constant(node, 2, bias)
            elif len(node.inputs) > 2:
                node.set_inputs(node.inputs[:2])
    held = plan_int8(graph, names).owners
    for value in graph.values():
        if value not in held:
            value.steps = None


@dataclass
class Sensitivity:
    """Measures the noise that layers bring into the outputs of an int8 file at `path`, on a few samples.

    `floats` are the operands of the float layers by name; `want` the float outputs of `feeds`.
    """

    path: Path
    floats: dict[str, Operands]
    feeds: Sequence[Feeds]
    want: Sequence[Feeds]

    def noise(self, in_floats: Collection[str]) -> float:
        """Noise power relative to the signal, summed over the outputs, while the named layers run in floats."""
        graph = read_model(self.path)
        restore(graph, self.floats, in_floats)
        simulate(graph)
        session, outputs = Session(graph), {name: Agreement() for name in self.want[0]}
        for feeds, want in zip(self.feeds, self.want, strict=True):
            for name, array in session.run(feeds, list(outputs)).items():
                outputs[name].add(array, want[name])
        return sum(a.noise / a.signal for a in outputs.values() if a.signal)

    def worst(self, limit: float, progress: Callable[[float], None]) -> list[str]:
        """The fewest layers, the worst first, that leave a noise of `limit` when they are back in floats.

        How bad a layer is, is the noise with all others in floats. At most a fifth of the layers are taken, and if that
        is not enough, as many of them as leave the least noise: behind a softmax, which hides the noise of a layer
        alone, more floats can be worse.
        """
        noise = [self.noise(())]
        if noise[0] <= limit:
            return []
        alone: dict[str, float] = {}
        for name in self.floats:
            alone[name] = self.noise(self.floats.keys() - {name})
            progress(len(alone) / len(self.floats))
        order = sorted(alone, key=lambda name: -alone[name])
        for count in range(1, max(1, int(MOST * len(order))) + 1):
            noise.append(self.noise(order[:count]))
            if noise[-1] <= limit:
                break
        return order[: int(np.argmin(noise))]
