"""Does what the plan says: replaces weights by coded or half tensors, a shared weight once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import numpy as np

from mnnconvert.errors import MnnConvertError
from mnnconvert.ir import F16, ArrayTensor, CodedTensor, CodedWeights, Graph, HalfTensor, LazyTensor, Tensor, Value
from mnnconvert.ir.tensor import row_blocks
from mnnconvert.quantizers.expected import expected_power
from mnnconvert.quantizers.methods import METHODS
from mnnconvert.quantizers.plan import LayerPlan
from mnnconvert.quantizers.recipe import Setting
from mnnconvert.quantizers.statistics import Statistics

LARGEST_HALF = 65504.0
WEIGHTED = ("lsq", "gptq")  # methods that ask how much a column counts
SAMPLED_ROWS = 64
SAMPLED_ELEMENTS = 1 << 18
Progress = Callable[[float], None]


def apply_plan(layers: Iterable[LayerPlan], progress: Progress | None = None) -> None:
    """Store the weights of all layers that are to be changed, without data, and note the error of each."""
    todo = [x for x in layers if x.changed]
    done: dict[tuple[Tensor | None, Setting], LayerPlan] = {}
    for i, layer in enumerate(todo):
        first = done.setdefault((layer.weight.tensor, layer.resolved), layer)
        if first is layer:
            code_layer(layer, expected(layer) if layer.setting.method in WEIGHTED else None)
        else:
            share(first, layer)
        if progress is not None:
            progress((i + 1) / len(todo))


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
    coded = code_rows(source, layer.rows, layer.resolved, statistics, error.add)
    return coded, error.relative


def code_rows(
    source: Tensor,
    rows: int,
    setting: Setting,
    statistics: Statistics | None = None,
    look: Callable[[CodedWeights, np.ndarray], None] | None = None,
) -> CodedWeights:
    """Codes for a weight, block of rows by block of rows. The block of the setting counts columns; `look` is shown the
    codes of each block of rows and the numbers they stand for."""
    columns = math.prod(source.shape) // rows
    codes = np.empty((rows, columns), np.int8)
    scales, minima, start = [], [], 0
    for part in row_blocks(source, rows):
        made = METHODS[setting.method](part, setting, statistics)
        codes[start : start + len(part)] = made.codes
        scales.append(made.scale)
        minima.append(made.minimum)
        if look is not None:
            look(made, part)
        start += len(part)
    minimum = None if setting.symmetric else np.concatenate([m for m in minima if m is not None])
    return CodedWeights(codes, np.concatenate(scales), minimum, setting.bits, setting.half_scales)


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
        flat = np.ascontiguousarray(rows, np.float32).reshape(-1)
        difference = coded.decode().reshape(-1) - flat
        self.noise += float(np.vdot(difference, difference))
        self.power += float(np.vdot(flat, flat))

    @property
    def relative(self) -> float:
        return float(np.sqrt(self.noise / self.power)) if self.power else 0.0


def half(source: Tensor) -> Tensor:
    """A tensor stored as float16; left as it is when a value would overflow to infinity."""
    array = source.numpy()
    if array.size and not np.abs(array[np.isfinite(array)]).max(initial=0) <= LARGEST_HALF:
        return source
    return HalfTensor(LazyTensor(source, lambda a: a.astype(F16), F16, tuple(source.shape)))


def halve_constants(graph: Graph) -> int:
    """Store every float32 constant that stands on its own (not inside an op's table) as float16; returns how many."""
    count = 0
    for inner in graph.graphs():
        embedded = {id(v) for n in inner.nodes for v in n.inputs[1 : 1 + len(getattr(n.op, "embedded", ()))]}
        for value in inner.constants():
            tensor = value.tensor
            if (
                id(value) in embedded
                or not isinstance(tensor, ArrayTensor)
                or tensor.dtype != np.float32
                or tensor.size < 2
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
