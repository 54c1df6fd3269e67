"""`mnnconvert compress`: the mixture that loses least within a budget, or the smallest one within a loss."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from mnnconvert.conversion import Conversion, ConversionReport
from mnnconvert.errors import ConversionError, GateError, UsageError
from mnnconvert.ir import Graph, Node
from mnnconvert.options import OPTIONS, WEIGHTS, ConversionOptions
from mnnconvert.quantizers.apply import naming
from mnnconvert.quantizers.recipe import Recipe
from mnnconvert.quantizers.search import Mix, Search, size
from mnnconvert.quantizers.statistics import Moments, Statistics, is_measurable, layer_rows
from mnnconvert.runtime_ref.session import Session
from mnnconvert.schema import flatbuffer
from mnnconvert.schema.reader import read_model
from mnnconvert.schema.weights import WeightStore
from mnnconvert.schema.writer import NetBuilder
from mnnconvert.verification import choose_feeds
from mnnconvert.verify.engines import SessionEngine
from mnnconvert.verify.metrics import ArrayComparison, compare_arrays
from mnnconvert.weights import read_samples

METRICS = ("cosine", "top1", "error")
UNIFORM_RIVALS = 3  # uniform settings that are measured against the mixture
STEPS = 10  # bisections of the size under --max-drop,
CLOSE = 1.002  # which end when the size is known up to this factor
LAYERS_AT_ONCE = 16  # whose inputs are held together
METHOD, METHOD_WITH_DATA = "lsq", "gptq"
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}

DECIDED = {word for option in OPTIONS if option.group == WEIGHTS and option.field not in ("data", "save_recipe")
           for word in (option.field, option.alias) if word}  # fmt: skip
"""Keywords of a conversion that the search answers."""

Feeds = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Goal:
    """What to reach; one of them. `max_size` is bytes of the file, `avg_bits` bits per weight with their scales.

    `drop` is what may be lost of a metric between the float and the compressed outputs: 1 - cosine, 1 - top1 agreement
    or the relative root mean square error.
    """

    max_size: int | None = None
    avg_bits: float | None = None
    drop: tuple[str, float] | None = None


def options_of(**keywords: Any) -> ConversionOptions:
    """Options of a conversion with coded weights; the 8 bits only say that there are some, the search says how many.

    Raises UsageError for options that say what the search decides, besides those of ConversionOptions.
    """
    decided = sorted(keywords.keys() & DECIDED)
    if decided:
        raise UsageError.of(
            "option-without-effect",
            f"{', '.join(decided)} would have no effect: compress decides how weights are stored",
            hint="Use convert with these, or leave them out.",
        )
    return ConversionOptions.from_keywords(weight_quant_bits=8, **keywords)


def goal_of(max_size: str | int | None, avg_bits: float | None, max_drop: str | None) -> Goal:
    """The goal that options say; UsageError unless it is exactly one, well written."""
    given = [x for x in (max_size, avg_bits, max_drop) if x is not None]
    if len(given) != 1:
        raise UsageError.of(
            "missing-option" if not given else "contradictory-options",
            "compress needs one goal: --max-size, --max-drop or --avg-bits",
            hint="for example --max-size 5MB, --max-drop cosine=0.002 or --avg-bits 4.5",
        )
    if max_size is not None:
        return Goal(max_size=read_size(max_size))
    if avg_bits is not None:
        if not (isinstance(avg_bits, int | float) and 1 <= avg_bits <= 32):
            raise UsageError.of("out-of-range", f"--avg-bits takes a number from 1 to 32, not {avg_bits!r}")
        return Goal(avg_bits=avg_bits)
    metric, _, number = str(max_drop).partition("=")
    if metric not in METRICS or not re.fullmatch(r"([0-9]+\.?|[0-9]*\.[0-9]+)(e-?[0-9]+)?", number, re.IGNORECASE):
        raise UsageError.of(
            "bad-option-value",
            f"--max-drop takes METRIC=NUMBER with one of {', '.join(METRICS)}, not {max_drop!r}",
            hint="--max-drop cosine=0.002",
        )
    return Goal(drop=(metric, float(number)))


def read_size(text: str | int) -> int:
    """Bytes of `5MB` (decimal), `5MiB` (binary) or a plain number."""
    found = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]+)?) ?([KMG]?I?B?)", str(text).upper())
    if found is None or found[2] not in UNITS or float(found[1]) <= 0:
        raise UsageError.of(
            "bad-option-value", f"--max-size takes a number of bytes, not {text!r}", hint="5MB, 800kB, 1.5GiB"
        )
    return int(float(found[1]) * UNITS[found[2]])


@dataclass
class Compressed:
    """What was chosen: sizes in bytes, the relative squared error of the outputs as predicted and as measured.

    `drop` holds all metrics as they were measured, `uniform` the rivals (setting, bytes, measured error). These are of
    mixtures coded by METHOD; `written` is the drop of the file, which with data is coded by METHOD_WITH_DATA.
    """

    goal: Goal
    size: int
    predicted: float
    measured: float
    drop: dict[str, float]
    uniform: list[tuple[str, int, float]]
    average_bits: float
    written: dict[str, float] | None = None
    conversion: ConversionReport | None = None

    def to_dict(self) -> dict[str, Any]:
        plain = {key: value for key, value in vars(self).items() if key not in ("goal", "conversion")}
        return {"goal": {k: v for k, v in vars(self.goal).items() if v is not None}, **plain}


class Compression:
    """One compression: a conversion whose recipe is searched for on the float graph.

    With `data` in the options the outputs on these inputs count, and the weights are calibrated with them; without,
    made-up inputs take their place.
    """

    def __init__(self, options: ConversionOptions, goal: Goal, progress: Callable[[str, float], None] | None = None):
        self.options, self.goal = options, goal
        self.progress = progress or (lambda stage, fraction: None)
        self.result: Compressed | None = None
        self.judge: Judge | None = None

    def run(self) -> Compressed:
        """Search, convert and prove. Raises `budget-too-small`, GateError `goal-missed`, what a conversion raises."""
        report = Conversion(self.options, self.progress, self._choose, self._judge).run()
        assert self.result is not None
        self.result.conversion = report
        return self.result

    def _judge(self, path: Path) -> None:
        """With data the file is coded in another way, which as a rule loses less; it is refused where it does not."""
        assert self.result is not None and self.judge is not None
        lost = self.result.written = self.judge.drops(read_model(path))
        metric, allowed = self.goal.drop or ("error", math.inf)
        if lost[metric] > allowed:
            raise GateError.of(
                "goal-missed",
                f"the file would lose {lost[metric]:.3g} of {metric}, more than {allowed:g}",
                hint="ask for a smaller loss, or leave --data out",
            )

    def _choose(self, graph: Graph) -> Recipe:
        samples = self._samples(graph)
        judge = self.judge = Judge(graph, samples, self.options.seed)
        statistics = None if samples is None else mean_squares(graph, samples)
        search = Search(graph, judge.loss, METHOD, statistics, self.progress)
        if not search.items:
            raise ConversionError.of("nothing-to-compress", f"'{self.options.model_file}' has no weights to quantize")
        mix = self._best(search, judge, _Sizes(graph, search))
        return search.recipe(mix, METHOD if self.options.data is None else METHOD_WITH_DATA)

    def _samples(self, graph: Graph) -> Sequence[Feeds] | None:
        return None if self.options.data is None else read_samples(Path(self.options.data), graph)

    def _best(self, search: Search, judge: Judge, sizes: _Sizes) -> Mix:
        if self.goal.drop is not None:
            mix = self._smallest(search, judge, sizes)
            rivals: list[Mix] = []
        else:
            budget = self._budget(search, sizes)
            mix = sizes.within(budget)
            fitting = (m for m in search.uniform(sizes.of_weights(budget)) if sizes.file(m) <= budget)
            rivals = list(islice(fitting, UNIFORM_RIVALS))
        losses = [search.apply(m, judge.loss) for m in (mix, *rivals)]
        best = int(np.argmin(losses))
        chosen = (mix, *rivals)[best]
        self.result = Compressed(
            self.goal,
            sizes.file(chosen),
            search.predicted(chosen),
            losses[best],
            search.apply(chosen, judge.drops),
            [(_title(m), sizes.file(m), loss) for m, loss in zip(rivals, losses[1:], strict=True)],
            _average_bits(search, chosen),
        )
        return chosen

    def _budget(self, search: Search, sizes: _Sizes) -> int:
        if self.goal.max_size is not None:
            return self.goal.max_size
        assert self.goal.avg_bits is not None
        return sizes.fixed + int(sum(item.elements for item in search.items) * self.goal.avg_bits / 8)

    def _smallest(self, search: Search, judge: Judge, sizes: _Sizes) -> Mix:
        """The smallest mixture found by bisection whose measured drop is allowed; float weights drop nothing."""
        assert self.goal.drop is not None
        metric, allowed = self.goal.drop
        low, high = sizes.file(search.smallest()), sizes.float_size
        best = search.unchanged()
        for step in range(STEPS):
            budget = round(math.sqrt(low * high))
            self.progress("search", step / STEPS)
            mix = sizes.within(budget)
            if search.apply(mix, judge.drops)[metric] <= allowed:
                best, high = mix, sizes.file(mix)
            else:
                low = budget
            if high <= low * CLOSE:
                break
        return best


class _Sizes:
    """Bytes of the file that a mixture makes."""

    def __init__(self, graph: Graph, search: Search):
        self.search = search
        self.float_size = file_size(graph)
        self.fixed = self.float_size - sum(item.unchanged.bytes for item in search.items)

    def of_weights(self, budget: int) -> int:
        return budget - self.fixed

    def file(self, mix: Mix) -> int:
        """Tables count as they will be: their codes become constants of the graph only after the search."""
        tables = [(i, c) for i, c in zip(self.search.items, mix, strict=True) if i.is_table and c.setting.bits]
        return self.search.apply(mix, file_size) - sum(4 * i.elements - c.bytes for i, c in tables)

    def within(self, budget: int) -> Mix:
        """The best mixture whose file is not larger than `budget`, its tables and paddings included."""
        left = self.of_weights(budget)
        while (mix := self.search.choose(left)) is not None:
            excess = self.file(mix) - budget
            if excess <= 0:
                return mix
            left = size(mix) - excess
        smallest = self.search.smallest()
        least = self.file(smallest)
        if least > budget:
            raise UsageError.of(
                "budget-too-small",
                f"a file of {budget} bytes is out of reach: the smallest has {least}",
                hint=f"ask for {least} bytes or more; {self.fixed} are not weights that can be quantized",
            )
        return smallest


class Judge:
    """Runs a graph and compares its outputs with those of its float weights, on `samples` or made-up inputs.

    Raises `bad-input` where all outputs are empty.
    """

    def __init__(self, graph: Graph, samples: Sequence[Feeds] | None, seed: int):
        session = Session(graph)
        self.samples = list(samples) if samples else _made_up(session, seed)
        self.wanted = [session.run(dict(feeds)) for feeds in self.samples]
        if not any(array.size for arrays in self.wanted for array in arrays.values()):
            raise ConversionError.of("bad-input", "the outputs have no elements, so nothing tells what codes change")

    def loss(self, graph: Graph) -> float:
        """The mean relative squared error of the outputs; shares of wrong elements for integers."""
        return float(np.mean([_squared_error(c) for c in self._compare(graph)]))

    def drops(self, graph: Graph) -> dict[str, float]:
        """Every metric's drop, the mean over samples, the worst over outputs."""
        found = self._compare(graph)
        outputs = len(self.wanted[0])
        error = [math.sqrt(_squared_error(c)) for c in found]
        cosine = [1 - (c.cosine if c.cosine is not None else 0.0) for c in found]
        top1 = [1 - c.top1 if c.top1 is not None else 0.0 for c in found]
        rows = {"cosine": cosine, "top1": top1, "error": error}
        return {key: float(np.max(np.mean(np.reshape(v, (-1, outputs)), axis=0))) for key, v in rows.items()}

    def _compare(self, graph: Graph) -> list[ArrayComparison]:
        session = Session(graph)
        found = []
        for feeds, wanted in zip(self.samples, self.wanted, strict=True):
            got = session.run(dict(feeds))
            found += [compare_arrays(got[name], wanted[name]) for name in wanted]
        return found


def mean_squares(graph: Graph, samples: Sequence[Feeds]) -> dict[Node, Statistics]:
    """Of every convolution without groups, the mean squares of what its columns are multiplied by."""
    session = Session(graph)
    nodes = [n for n in graph.nodes if is_measurable(n) and n.inputs[1].is_constant]
    found: dict[Node, Statistics] = {}
    for start in range(0, len(nodes), LAYERS_AT_ONCE):
        some = nodes[start : start + LAYERS_AT_ONCE]
        moments = {n: Moments(math.prod(d for d in (n.inputs[1].shape or ())[1:] if isinstance(d, int)), False)
                   for n in some}  # fmt: skip
        for feeds in samples:
            inputs = session.run(dict(feeds), outputs=list(dict.fromkeys(n.inputs[0].name for n in some)))
            for node in some:
                for rows in layer_rows(node, inputs[node.inputs[0].name]):
                    moments[node].add(rows)
        for node in some:
            with naming(node.name):
                found[node] = moments[node].statistics()
    return found


def _squared_error(comparison: ArrayComparison) -> float:
    if comparison.sqnr is None:
        return 1.0
    return float(10 ** (-comparison.sqnr / 10))


def _made_up(session: Any, seed: int) -> list[Feeds]:
    """Seeded inputs as verification makes them up, several variants."""
    engine = SessionEngine(session)
    made: list[Feeds] = []
    for number in range(4):
        for feeds in choose_feeds(engine, engine, None, seed + 2 * number):
            made.append(_first_accepted(session, feeds))
    return made


def _first_accepted(session: Any, feeds: Any) -> Feeds:
    """The feeds, or the first of several that the model takes."""
    if isinstance(feeds, Mapping):
        return feeds
    failure: ConversionError | None = None
    for some in feeds:
        try:
            session.run(dict(some))
            return dict(some)
        except ConversionError as error:
            failure = error
    assert failure is not None
    raise failure


def file_size(graph: Graph) -> int:
    """Bytes of the file that would hold the graph."""
    return flatbuffer.layout_size(NetBuilder(WeightStore()).net(graph))


def _average_bits(search: Search, mix: Mix) -> float:
    return 8 * size(mix) / sum(item.elements for item in search.items)


def _title(mix: Mix) -> str:
    """`4 bits, block 64`, as most of the weights of a uniform mixture have it."""
    settings = [c.setting for c in mix]
    s = max(settings, key=settings.count)
    return f"{s.bits} bits, {f'block {s.block}' if s.block else 'per channel'}{', symmetric' if s.symmetric else ''}"
