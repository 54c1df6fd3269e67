"""Mixed precision: which setting for which weight, so that the outputs suffer least within a number of bytes.

The outputs of a network move, to first order, by the sum of what its layers do to them (the linearity of Malinovskii
et al., "Pushing the Limits of Large Language Model Quantization via the Linearity Theorem", 2024):

    loss = sum over weights of g_i * e_i(s),   e_i(s) = sum_j h_j (w_j - w^_j)^2 / sum_j h_j w_j^2,

where e_i(s) is the relative squared error that a setting s makes in weight i, with the mean squares h of the inputs of
its columns where data told them and 1 elsewhere. The gain g_i is measured: the loss of the model with weight i alone
coded, over the error of that code. The sum is then made least by an exact knapsack.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from mnnconvert.ir import CodedTensor, Graph, Node, Tensor, Value
from mnnconvert.quantizers.apply import code_layer, expected, naming
from mnnconvert.quantizers.knapsack import choose, useful
from mnnconvert.quantizers.methods import METHODS
from mnnconvert.quantizers.plan import LayerPlan, holds_weight, layer_plan
from mnnconvert.quantizers.recipe import Recipe, Rule, Setting
from mnnconvert.quantizers.statistics import Statistics

BITS = (2, 3, 4, 5, 6, 8)
BLOCKS = (32, 64, 128, 0)
SAMPLED_ELEMENTS = 1 << 16  # of a weight, on which the errors of all settings are found
PROBE = Setting(4, 64)
FLOAT = Setting()
OVERHEAD = 96  # bytes of dimensions, vector lengths and padding around a coded weight
DECODING = 3000  # bytes of the operators that decode the rows of a coded table
WHOLE_ROW = 1 << 20  # stands for "no blocks" where sizes of blocks are compared

Result = TypeVar("Result")
Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Choice:
    """A setting for a weight, the bytes it takes in the file, and its relative squared error."""

    setting: Setting
    bytes: int
    error: float


Mix = list[Choice]
"""A choice for every item."""


@dataclass
class Item:
    """A weight, the layers that read it, and what may be chosen for it: codes, or `unchanged`."""

    layers: list[LayerPlan]
    tensor: Tensor
    elements: int
    choices: list[Choice]
    unchanged: Choice
    statistics: Statistics | None = None
    gain: float = 0.0
    stored: tuple[Setting, Tensor] | None = field(default=None, repr=False)

    @property
    def is_table(self) -> bool:
        """Whether rows of the weight are looked up by index."""
        return self.layers[0].is_table

    @property
    def values(self) -> list[Value]:
        """The values that hold the weight."""
        return list(dict.fromkeys(layer.weight for layer in self.layers))


class Search:
    """Finds and judges mixtures of settings for the weights of a float graph.

    `loss` runs the graph as it stands and tells the relative squared error of its outputs; `method` codes the weights
    meanwhile. The graph has its float weights again after every call.
    """

    def __init__(
        self,
        graph: Graph,
        loss: Callable[[Graph], float],
        method: str = "lsq",
        statistics: Mapping[Node, Statistics] | None = None,
        progress: Progress | None = None,
    ):
        self.graph, self.loss, self.method = graph, loss, method
        self.progress = progress or (lambda stage, fraction: None)
        self.items = self._items(statistics)
        self._find_gains()

    def _items(self, statistics: Mapping[Node, Statistics] | None) -> list[Item]:
        """The weights with their choices; what counts in them is as when they are coded in the end."""
        probe = Recipe(replace(PROBE, method=self.method, block=0))
        readers: dict[Tensor, list[LayerPlan]] = {}
        for graph in self.graph.graphs():
            for node in graph.nodes:
                plan = layer_plan(node, probe) if holds_weight(node) else None
                if plan is not None and plan.changed and plan.weight.tensor is not None:
                    readers.setdefault(plan.weight.tensor, []).append(plan)
        items = []
        for number, layers in enumerate(readers.values()):
            self.progress("errors", number / len(readers))
            with naming(layers[0].name):
                first = layers[0]
                items.append(self._item(layers, expected(first) if statistics is None else statistics.get(first.node)))
        return items

    def _item(self, layers: list[LayerPlan], statistics: Statistics | None) -> Item:
        tensor = layers[0].weight.tensor
        assert tensor is not None
        plans = [p for s in self._settings() if (p := layer_plan(layers[0].node, Recipe(s))).block >= 0]
        plans = [p for p in plans if p.changed and p.block_channels in (0, p.setting.block)]
        rows = _some_rows(tensor, plans[0])
        extra = OVERHEAD + (DECODING if layers[0].is_table else 0)
        coded = [Choice(p.setting, p.bytes_after + extra + (1 << p.setting.bits), self._error(p, rows, statistics))
                 for p in plans]  # fmt: skip
        unchanged = Choice(FLOAT, layer_plan(layers[0].node, Recipe()).bytes_after, 0.0)
        return Item(layers, tensor, plans[0].rows * plans[0].columns, [*coded, unchanged], unchanged, statistics)

    def _settings(self) -> list[Setting]:
        """What is tried for every weight. Scales as halves cost no accuracy that could be measured."""
        return [Setting(bits, block, symmetric, self.method, True)
                for bits, block, symmetric in itertools.product(BITS, BLOCKS, (False, True))]  # fmt: skip

    def _error(self, plan: LayerPlan, rows: np.ndarray, statistics: Statistics | None) -> float:
        coded = METHODS[plan.setting.method](rows, plan.resolved, statistics)
        importance = np.ones(rows.shape[1]) if statistics is None else statistics.importance
        lost = np.square(coded.decode() - rows, dtype=np.float64).sum(axis=0) @ importance
        power = np.square(rows, dtype=np.float64).sum(axis=0) @ importance
        return float(lost / power) if power > 0 else 0.0

    def _find_gains(self) -> None:
        """Code each weight alone, and see what the outputs make of its error."""
        for number, item in enumerate(self.items):
            self.progress("probe", number / len(self.items))
            probe = min(item.choices, key=lambda c: (c.setting.bits != PROBE.bits, abs(c.setting.block - PROBE.block)))
            if probe.error > 0:
                loss = self._with({number: probe.setting}, self.loss)
                item.gain = (loss if np.isfinite(loss) else 1 / probe.error) / probe.error

    def smallest(self) -> Mix:
        """The mixture of the fewest bytes, and of these the one with the least errors."""
        return [min(item.choices, key=lambda c: (c.bytes, c.error)) for item in self.items]

    def unchanged(self) -> Mix:
        """All weights as they are."""
        return [item.unchanged for item in self.items]

    def choose(self, budget: int) -> Mix | None:
        """The mixture of least predicted loss whose weights take at most `budget` bytes; None where none does."""
        kept = [[item.choices[i] for i in useful([(c.bytes, c.error) for c in item.choices])] for item in self.items]
        costs = [[(c.bytes, item.gain * c.error) for c in some] for item, some in zip(self.items, kept, strict=True)]
        found = choose(costs, budget)
        return None if found is None else [some[i] for some, i in zip(kept, found, strict=True)]

    def uniform(self, budget: int) -> list[Mix]:
        """One setting for all weights, as far as they have it: what fits the budget, least predicted loss first."""
        mixes = [[_nearest(item.choices, setting) for item in self.items] for setting in self._settings()]
        return sorted((mix for mix in mixes if size(mix) <= budget), key=self.predicted)

    def predicted(self, mix: Mix) -> float:
        """The loss that the sum of all gains and errors makes one expect."""
        return sum(item.gain * choice.error for item, choice in zip(self.items, mix, strict=True))

    def apply(self, mix: Mix, measure: Callable[[Graph], Result]) -> Result:
        """What `measure` says of the graph with coded weights."""
        return self._with({n: choice.setting for n, choice in enumerate(mix)}, measure)

    def _with(self, settings: Mapping[int, Setting], measure: Callable[[Graph], Result]) -> Result:
        """What `measure` says of the graph while items have these settings."""
        try:
            for number, setting in settings.items():
                _put(self.items[number], self._stored(self.items[number], setting))
            return measure(self.graph)
        finally:
            for number in settings:
                _put(self.items[number], self.items[number].tensor)

    def _stored(self, item: Item, setting: Setting) -> Tensor:
        """A weight with a setting; the last one is kept, as neighbouring mixtures share most of theirs."""
        if not setting.bits:
            return item.tensor
        if item.stored is None or item.stored[0] != setting:
            first = item.layers[0]
            weight = first.weight
            code_layer(layer_plan(first.node, Recipe(setting)), item.statistics)
            stored = first.weight.tensor
            assert stored is not None
            if first.weight is not weight:
                first.node.replace_input(first.operand, weight)
            weight.tensor = item.tensor
            item.stored = setting, stored
        return item.stored[1]

    def recipe(self, mix: Mix, method: str) -> Recipe:
        """The mixture as a recipe whose default is the setting that most weights have; `method` codes them.

        What the source holds as codes that the search leaves alone has a rule, too: the default may have other bits.
        """
        settings = [replace(c.setting, method=method) if c.setting.bits else c.setting for c in mix]
        counts = Counter(s for s in settings if s.bits)
        default = counts.most_common(1)[0][0] if counts else Setting(8, method=method)
        rules = []
        for item, setting in zip(self.items, settings, strict=True):
            for layer in item.layers if setting != default else ():
                rules.append(_rule(layer.name, setting, default))
        return Recipe(default, (*rules, *(_rule(name, FLOAT, default) for name in self._coded_before())))

    def _coded_before(self) -> Iterator[str]:
        """The names of the layers that are no item because the source holds their weights as codes."""
        known = {layer.node for item in self.items for layer in item.layers}
        for node in (n for graph in self.graph.graphs() for n in graph.nodes if n not in known and holds_weight(n)):
            plan = layer_plan(node, Recipe())
            if isinstance(plan.weight.tensor, CodedTensor):
                yield plan.name


def _put(item: Item, tensor: Tensor) -> None:
    for value in item.values:
        value.tensor = tensor


def _rule(name: str, setting: Setting, default: Setting) -> Rule:
    if not setting.bits:
        return Rule(regex=f"^{re.escape(name)}$", skip=True)
    changes = {key: value for key, value in vars(setting).items() if value != getattr(default, key)}
    return Rule(regex=f"^{re.escape(name)}$", changes=changes)


def size(mix: Mix) -> int:
    """Bytes of all weights of a mixture."""
    return sum(choice.bytes for choice in mix)


def _nearest(choices: Sequence[Choice], setting: Setting) -> Choice:
    """The choice with this setting or the one most like it: not all sizes divide, and tables have fewer forms."""

    def distance(choice: Choice) -> tuple[int, bool, int, int]:
        s, blocks = choice.setting, abs((choice.setting.block or WHOLE_ROW) - (setting.block or WHOLE_ROW))
        return abs(s.bits - setting.bits), s.symmetric != setting.symmetric, blocks, choice.bytes

    return min((c for c in choices if c.setting.bits), key=distance)


def _some_rows(tensor: Tensor, plan: LayerPlan) -> np.ndarray:
    """Rows spread over a weight matrix, up to some number of elements."""
    rows = tensor.numpy().reshape(plan.rows, plan.columns)
    wanted = max(1, SAMPLED_ELEMENTS // plan.columns)
    chosen = np.linspace(0, plan.rows - 1, min(plan.rows, wanted)).astype(int)
    return np.ascontiguousarray(rows[chosen], np.float32)
