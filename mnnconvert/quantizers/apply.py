"""Does what the plan says: replaces weights by coded or half tensors, a shared weight once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np

from mnnconvert.errors import MnnConvertError
from mnnconvert.ir import (
    F16,
    CastTensor,
    CodedForm,
    CodedLater,
    CodedTensor,
    CodedWeights,
    Graph,
    HalfTensor,
    LazyTensor,
    Tensor,
    Value,
)
from mnnconvert.ir.coded import gathered
from mnnconvert.ir.tensor import row_blocks
from mnnconvert.quantizers.expected import expected_power
from mnnconvert.quantizers.methods import METHODS
from mnnconvert.quantizers.plan import LayerPlan
from mnnconvert.quantizers.recipe import Setting
from mnnconvert.quantizers.statistics import Statistics

LARGEST_HALF = 65504.0
LARGE = 1 << 16  # weights of a matrix from which on its codes are worth computing late
WEIGHTED = ("lsq", "gptq")  # methods that ask how much a column counts
IN_CACHE = 1 << 16  # weights that are compared at a time
SAMPLED_ROWS = 64
SAMPLED_ELEMENTS = 1 << 18
Progress = Callable[[float], None]


def apply_plan(layers: Iterable[LayerPlan], progress: Progress | None = None, later: bool = False) -> None:
    """Store the weights of all layers that are to be changed, without data, and note the error of each.

    With `later`, large weights are coded only when they are written, and their errors known then: a model whose codes
    take more than the memory can be converted.
    """
    groups: dict[tuple[Tensor | None, Setting], list[LayerPlan]] = {}
    for layer in layers:
        if layer.changed:
            groups.setdefault((layer.weight.tensor, layer.resolved), []).append(layer)
    known = [expected(group[0]) if group[0].setting.method in WEIGHTED else None for group in groups.values()]
    ticks = _Ticks(len(groups), progress or (lambda fraction: None))
    for group, statistics in zip(groups.values(), known, strict=True):
        first, *others = group
        if later and not first.half and first.rows * first.columns >= LARGE:
            _code_later(group, statistics, ticks)
        else:
            code_layer(first, statistics)
            ticks.tick()
        for other in others:
            share(first, other)


class _Ticks:
    """Counts weights that are done, each once, and tells the share of all."""

    def __init__(self, count: int, progress: Progress):
        self.count, self.progress, self.done = count, progress, 0

    def tick(self) -> None:
        self.done = min(self.done + 1, self.count)  # a weight may be coded twice
        self.progress(self.done / self.count)


def expected(layer: LayerPlan) -> Statistics | None:
    """What the constants before a layer tell about its inputs."""
    power = expected_power(layer.node)
    return None if power is None or layer.half else Statistics(0, power)


def share(first: LayerPlan, other: LayerPlan) -> None:
    """Let a layer whose weight was that of `first` have its codes."""
    assert first.weight.tensor is not None
    _store(other, first.weight.tensor)
    other.error, other.weighted_error = first.error, first.weighted_error


def _store(layer: LayerPlan, tensor: Tensor) -> None:
    """Give a layer its new weight; who else reads the old one keeps it."""
    old = layer.weight
    if old.users == [layer.node]:
        old.tensor = tensor
    else:
        layer.node.replace_input(layer.operand, Value(f"{old.name}/{layer.name}", old.spec, tensor))


def code_layer(layer: LayerPlan, statistics: Statistics | None = None) -> None:
    """Replace the weight of one layer by what its plan says, and note the error that this makes."""
    source = layer.weight.tensor
    assert source is not None
    with naming(layer.name):
        if layer.half:
            _store(layer, half(source))
            return
        coded, layer.error = _code(layer, source, statistics)
    _store(layer, CodedTensor(coded, tuple(source.shape)))


def _code_later(layers: Sequence[LayerPlan], statistics: Statistics | None, ticks: _Ticks) -> None:
    """Let layers that share a weight have codes that are computed, and whose error is noted, when they are written."""
    first, source = layers[0], layers[0].weight.tensor
    assert source is not None

    def parts() -> Iterator[CodedWeights]:
        error = _Error()
        with naming(first.name):
            yield from code_rows(source, first.rows, first.resolved, statistics, error.add)
        for layer in layers:
            layer.error = error.relative
        ticks.tick()

    _store(first, CodedLater(source, tuple(source.shape), form_of(first.rows, first.columns, first.resolved), parts))


def form_of(rows: int, columns: int, setting: Setting) -> CodedForm:
    """The form of the codes of a matrix; the block of the setting counts columns."""
    blocks = columns // setting.block if setting.block else 1
    return CodedForm((rows, columns), setting.bits, blocks, setting.symmetric, setting.half_scales)


@contextmanager
def naming(layer: str) -> Iterator[None]:
    """Errors from inside say which layer they are about."""
    try:
        yield
    except MnnConvertError as error:
        for diagnostic in error.diagnostics:
            diagnostic.context.setdefault("layer", layer)
        raise


def _code(layer: LayerPlan, source: Tensor, statistics: Statistics | None) -> tuple[CodedWeights, float]:
    """The codes of a layer, and the relative root mean square error of the whole."""
    error = _Error()
    parts = code_rows(source, layer.rows, layer.resolved, statistics, error.add)
    return gathered(form_of(layer.rows, layer.columns, layer.resolved), parts), error.relative


def code_rows(
    source: Tensor,
    rows: int,
    setting: Setting,
    statistics: Statistics | None = None,
    look: Callable[[CodedWeights, np.ndarray], None] | None = None,
) -> Iterator[CodedWeights]:
    """Codes for a weight, block of rows by block of rows. The block of the setting counts columns; `look` is shown the
    codes of each block of rows and the numbers they stand for."""
    for part in ahead(row_blocks(source, rows)):
        made = METHODS[setting.method](part, setting, statistics)
        if look is not None:
            look(made, part)
        yield made


def ahead(blocks: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    """The blocks, the next one of which is read, or transposed, while one is used."""
    with ThreadPoolExecutor(1) as worker:
        coming = worker.submit(next, blocks, None)
        while (block := coming.result()) is not None:
            coming = worker.submit(next, blocks, None)
            yield block


def predict(layer: LayerPlan) -> float:
    """The error that the codes of a layer will have about, from rows out of the first megabytes of its weight."""
    assert layer.weight.tensor is not None
    first = next(iter(row_blocks(layer.weight.tensor, layer.rows)))
    few = max(1, min(SAMPLED_ROWS, SAMPLED_ELEMENTS // layer.columns, len(first)))
    rows = first[np.linspace(0, len(first) - 1, few).astype(int)]
    error = _Error()
    with naming(layer.name):
        error.add(METHODS[layer.setting.method](rows, layer.resolved, None), rows)
    return error.relative


class _Error:
    """Root mean square of the change of weights relative to theirs, added up piece by piece."""

    def __init__(self) -> None:
        self.noise = self.power = 0.0

    def add(self, coded: CodedWeights, rows: np.ndarray) -> None:
        step = max(1, IN_CACHE // coded.shape[1])
        for start in range(0, coded.shape[0], step):
            stop = min(start + step, coded.shape[0])
            flat = np.ascontiguousarray(rows[start:stop], np.float32).reshape(-1)
            difference = coded.decode_rows(start, stop).reshape(-1)
            difference -= flat
            self.noise += float(np.vdot(difference, difference))
            self.power += float(np.vdot(flat, flat))

    @property
    def relative(self) -> float:
        return float(np.sqrt(self.noise / self.power)) if self.power else 0.0


def half(source: Tensor) -> Tensor:
    """A tensor stored as float16; left as it is when a value would overflow to infinity."""
    if isinstance(source, CastTensor) and source.source.dtype == F16:
        return HalfTensor(source.source)
    rows = source.shape[0] if source.shape else 1
    if any(np.abs(x[np.isfinite(x)]).max(initial=0) > LARGEST_HALF for x in row_blocks(source, rows)):
        return source
    return HalfTensor(CastTensor(source, F16))


def halve_constants(graph: Graph) -> int:
    """Store every float32 constant that stands on its own (not inside an op's table) as float16; returns how many."""
    count = 0
    for inner in graph.graphs():
        embedded = {id(v) for n in inner.nodes for v in n.inputs[1 : 1 + len(getattr(n.op, "embedded", ()))]}
        for value in inner.constants():
            tensor = value.tensor
            if (
                id(value) in embedded
                or tensor is None
                or isinstance(tensor, CodedTensor | CodedLater | HalfTensor)
                or tensor.dtype != np.float32
                or math.prod(tensor.shape) < 2
            ):
                continue
            value.tensor = half(tensor)
            count += value.tensor is not tensor
    return count


def flush_denormals(graph: Graph) -> None:
    """Let every float32 constant read with denormal numbers (below 2^-126) as zero; nothing is computed yet."""
    for inner in graph.graphs():
        for value in inner.constants():
            tensor = value.tensor
            if tensor is not None and tensor.dtype == np.float32 and not isinstance(tensor, CodedTensor | HalfTensor):
                value.tensor = LazyTensor(tensor, _flushed, np.dtype(np.float32), tuple(tensor.shape))


def _flushed(array: np.ndarray) -> np.ndarray:
    return np.where(np.abs(array) < np.finfo(np.float32).tiny, np.float32(0), array)
