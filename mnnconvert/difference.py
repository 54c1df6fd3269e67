"""What differs between two models: layers, how they are wired, weights, and the answers they give."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np

from mnnconvert.errors import ConversionError
from mnnconvert.ir import Graph, Node, Tensor, Value
from mnnconvert.ir.tensor import content_digest
from mnnconvert.ir.text import attributes
from mnnconvert.ir.types import format_shape
from mnnconvert.layers import Layer, layers_of, stored_weight
from mnnconvert.ops.matmul import CONVERTED
from mnnconvert.sources import check_told, guess_framework, read_source, told_of
from mnnconvert.verify.verification import VerificationResult

ANY_ERROR = 1e300  # outputs are measured here, not judged
MOST_UNNAMED = 4000  # layers without a common name that are still brought together by their order
PIECE = 1 << 20  # numbers that are compared at a time


@dataclass(frozen=True)
class WeightChange:
    """Operand `operand` of a layer before and after: shape, how it is stored, in how many bytes.

    A shape is None where there is no constant. `sqnr` is 10 log10(sum a^2 / sum (b - a)^2) in dB and `max_abs` the
    largest |b - a|; None where shapes do not fit.
    """

    operand: int
    shapes: tuple[tuple[int, ...] | None, tuple[int, ...] | None]
    before: str
    after: str
    bytes_before: int
    bytes_after: int
    sqnr: float | None = None
    max_abs: float | None = None


@dataclass(frozen=True)
class LayerChange:
    """One layer that is "added", "removed" or "changed"; `facts` say what changed about it in words."""

    kind: str
    name: str
    op: str
    facts: tuple[str, ...] = ()
    weights: tuple[WeightChange, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class ModelDifference:
    """Two models, compared; sizes are in bytes, external weights included.

    `operators` tells of kinds of op how many there were and are, where that changed; `interface` what changed about
    inputs and outputs. `outputs` is the second model measured against the first on the same inputs, None where they
    were not run; `notes` say why.
    """

    before: str
    after: str
    bytes_before: int
    bytes_after: int
    operators: dict[str, tuple[int, int]]
    interface: tuple[str, ...]
    layers: tuple[LayerChange, ...]
    same: int
    outputs: VerificationResult | None = None
    notes: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether nothing differs: no layer, no weight, no input or output, and no answer where both were run."""
        return not (self.layers or self.interface) and not self.moved

    @property
    def moved(self) -> bool:
        """Whether the answers differ at all, or one model gave none."""
        if self.outputs is None:
            return False
        verdicts = [v for run in self.outputs.runs if run.comparison is not None for v in run.comparison.outputs]
        broken = any(run.comparison is None for run in self.outputs.runs)
        return broken or any(v.measured is None or v.reason or v.measured.wrong for v in verdicts)

    def to_dict(self) -> dict[str, Any]:
        data = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return data | {
            "equal": self.equal,
            "layers": [change.to_dict() for change in self.layers],
            "outputs": None if self.outputs is None else self.outputs.to_dict(),
        }


def compare_files(
    before: Path, after: Path, *, run: bool = True, inputs: Any = None, seed: int = 0,
    chosen: Mapping[str, str] | None = None,
) -> ModelDifference:  # fmt: skip
    """Two model files of any framework that can be read, layer by layer and (with `run`) answer by answer.

    `chosen` is what else tells one of them: the `prototxt` of Caffe weights, the `signature` of a SavedModel.
    """
    chosen = chosen or {}
    check_told(chosen, [guess_framework(path) for path in (before, after)])
    first, second = read_source(before, None, chosen), read_source(after, None, chosen)
    outputs, notes = _run(before, after, inputs, seed, chosen) if run else (None, ())
    found = compare_graphs(first, second)
    return dataclasses.replace(
        found, before=str(before), after=str(after), bytes_before=_size(before), bytes_after=_size(after),
        outputs=outputs, notes=notes,
    )  # fmt: skip


def _size(path: Path) -> int:
    files = [path, Path(f"{path}.weight")]
    return sum(f.stat().st_size for f in files if f.is_file())


def _run(
    before: Path, after: Path, inputs: Any, seed: int, chosen: Mapping[str, str]
) -> tuple[VerificationResult | None, tuple[str, ...]]:
    """The second model measured against the first; or why not."""
    from mnnconvert.verification import choose_feeds, open_source
    from mnnconvert.verify.compare import Tolerance
    from mnnconvert.verify.verification import verify_engines

    try:
        kinds = [(path, guess_framework(path)) for path in (before, after)]
        engines = [open_source(path, kind, chosen=told_of(kind, chosen)) for path, kind in kinds]
        names = [sorted(i.name for i in engine.inputs) for engine in engines]
        if names[0] != names[1]:
            return None, (f"they were not run: the inputs are {names[0]} and {names[1]}",)
        feeds = choose_feeds(engines[0], engines[1], inputs, seed)
        return verify_engines(engines[0], engines[1], feeds, Tolerance(ANY_ERROR)), ()
    except ConversionError as error:
        if inputs is not None and any(d.reference in ("bad-input", "missing-file") for d in error.diagnostics):
            raise
        return None, tuple(f"they were not run: {d.message}" for d in error.diagnostics)


def compare_graphs(before: Graph, after: Graph) -> ModelDifference:
    """The layers of two graphs, brought together by name, by origin, and what is left by order."""
    first, second = layers_of(before), layers_of(after)
    pairs = pair_layers(first, second)
    changes = list(_changes(first, second, pairs))
    counts = [Counter(layer.op for layer in layers) for layers in (first, second)]
    operators = {op: (counts[0][op], counts[1][op]) for op in sorted({*counts[0], *counts[1]})
                 if counts[0][op] != counts[1][op]}  # fmt: skip
    same = len(pairs) - sum(change.kind == "changed" for change in changes)
    return ModelDifference("", "", 0, 0, operators, tuple(_interface(before, after)), tuple(changes), same)


def pair_layers(first: Sequence[Layer], second: Sequence[Layer]) -> dict[int, int]:
    """Which layer of `second` is that of `first`, by position: each at most once, in the order of trust.

    Layers with weights come first, as a product and the convolution that it became are one layer: by a name and sizes
    in common, then by sizes in order. Then equal names, names in common (of results or of nodes of the source), and
    equal kinds in order.
    """
    pairs: dict[int, int] = {}
    _pair_by(_weight_names, first, second, pairs)
    _pair_in_order(_weight_sizes, first, second, pairs)
    for names in (lambda x: {(x.graph, x.name)}, lambda x: {*x.outputs}, _all_names):
        _pair_by(names, first, second, pairs)
    _pair_in_order(_kind, first, second, pairs)
    return dict(sorted(pairs.items()))


def _pair_in_order(
    key: Callable[[Layer], Any], first: Sequence[Layer], second: Sequence[Layer], pairs: dict[int, int]
) -> None:
    """Pair what is left and has equal keys, in order, as many as can be; a layer without a key is left out."""
    taken = set(pairs.values())
    left = [i for i, layer in enumerate(first) if i not in pairs and key(layer) is not None]
    right = [i for i, layer in enumerate(second) if i not in taken and key(layer) is not None]
    if max(len(left), len(right)) > MOST_UNNAMED:
        return
    keys = [key(first[i]) for i in left], [key(second[i]) for i in right]
    for block in SequenceMatcher(None, keys[0], keys[1], autojunk=False).get_matching_blocks():
        pairs |= {left[block.a + i]: right[block.b + i] for i in range(block.size)}


def _weight_sizes(layer: Layer) -> tuple[int, ...] | None:
    return None if layer.weight is None else tuple(sorted(d for d in layer.weight.shape if d != 1))


def _all_names(layer: Layer) -> set[str]:
    return {name.removesuffix(CONVERTED) for name in (layer.name, *layer.outputs, *layer.origin)}


def _weight_names(layer: Layer) -> set[tuple[object, ...]]:
    """With the sizes of the weight: what a norm was fused into has its name, and another weight."""
    return set() if layer.weight is None else {(name, _weight_sizes(layer)) for name in _all_names(layer)}


def _kind(layer: Layer) -> tuple[object, ...]:
    return layer.op, layer.shape, None if layer.weight is None else layer.weight.shape


def _pair_by(
    names: Callable[[Layer], set[Any]], first: Sequence[Layer], second: Sequence[Layer], pairs: dict[int, int]
) -> None:
    """Pair what is left and shares a name that is of one layer on each side."""
    taken = set(pairs.values())
    left = _unique({i: names(layer) for i, layer in enumerate(first) if i not in pairs})
    right = _unique({i: names(layer) for i, layer in enumerate(second) if i not in taken})
    for name, i in left.items():
        if name in right and i not in pairs and right[name] not in taken:
            pairs[i] = right[name]
            taken.add(right[name])


def _unique(names: Mapping[int, set[Any]]) -> dict[Any, int]:
    counts = Counter(name for own in names.values() for name in own)
    return {name: i for i, own in names.items() for name in own if counts[name] == 1}


def _changes(first: Sequence[Layer], second: Sequence[Layer], pairs: Mapping[int, int]) -> Iterator[LayerChange]:
    """What differs, in the order of the first model; what it lacks comes last."""
    numbers = {id(first[a].node): a for a in pairs} | {id(second[b].node): a for a, b in pairs.items()}
    for i, layer in enumerate(first):
        if i not in pairs:
            yield LayerChange("removed", layer.name, layer.op)
            continue
        other = second[pairs[i]]
        facts, weights = tuple(_facts(layer, other, numbers)), tuple(_weights(layer.node, other.node))
        if facts or weights:
            yield LayerChange("changed", layer.name, other.op, facts, weights)
    paired = set(pairs.values())
    yield from (LayerChange("added", x.name, x.op) for i, x in enumerate(second) if i not in paired)


def _facts(a: Layer, b: Layer, numbers: Mapping[int, int]) -> Iterator[str]:
    """What is not a weight: name, kind, attributes, operands, results."""
    if a.op != b.op:
        yield f"op {a.op} -> {b.op}"
    elif type(a.node.op) is type(b.node.op):
        for (field, old), (_, new) in zip(attributes(a.node.op), attributes(b.node.op), strict=True):
            if repr(old) != repr(new):  # arrays and NaN have no plain equality
                yield f"{field.name} {old!r} -> {new!r}"
    sources = [[_source(v, numbers) for v in x.node.inputs if v.tensor is None] for x in (a, b)]
    if sources[0] != sources[1]:
        yield f"inputs {', '.join(a.inputs) or 'none'} -> {', '.join(b.inputs) or 'none'}"
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        yield f"result {a.dtype}{format_shape(a.shape)} -> {b.dtype}{format_shape(b.shape)}"


def _source(value: Value, numbers: Mapping[int, int]) -> object:
    """Where a value comes from, equal on both sides where that is the same layer or input."""
    node = value.producer
    if node is None or id(node) not in numbers:
        return value.name
    return numbers[id(node)], next(i for i, v in enumerate(node.outputs) if v is value)


def _weights(a: Node, b: Node) -> Iterator[WeightChange]:
    """The constant operands that differ, by position."""
    for i in range(max(len(a.inputs), len(b.inputs))):
        old, new = (n.inputs[i].tensor if i < len(n.inputs) else None for n in (a, b))
        if old is None and new is None:
            continue
        stored = [_as_stored(t) for t in (old, new)]
        if stored[0] == stored[1] and old is not None and new is not None and _same_numbers(old, new):
            continue
        sqnr, largest = (None, None) if old is None or new is None else numeric_change(old, new)
        sizes = [0 if t is None else t.nbytes for t in (old, new)]
        shapes = [None if t is None else tuple(t.shape) for t in (old, new)]
        yield WeightChange(i, (shapes[0], shapes[1]), stored[0], stored[1], sizes[0], sizes[1], sqnr, largest)


def _same_numbers(a: Tensor, b: Tensor) -> bool:
    return a is b or (tuple(a.shape) == tuple(b.shape) and content_digest(a) == content_digest(b))


def _as_stored(tensor: Tensor | None) -> str:
    return "none" if tensor is None else stored_weight(tensor).stored


def numeric_change(before: Tensor, after: Tensor) -> tuple[float | None, float | None]:
    """SQNR in dB and largest difference; axes of size 1 do not count, and a matrix may have become its transpose.

    None where shapes do not fit, or one holds codes whose scales are elsewhere.
    """
    if before.dtype.kind != after.dtype.kind:
        return None, None
    a, b = (np.squeeze(t.numpy()) for t in (before, after))
    views = [v for v in (b, b.T) if v.shape == a.shape] if a.ndim == 2 else [b] if a.shape == b.shape else []
    found = [_distance(a, view) for view in views]
    return max(found) if found else (None, None)


def _distance(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """SQNR in dB and largest difference, piece by piece."""
    signal = noise = largest = 0.0
    old, new = a.reshape(-1), np.ascontiguousarray(b).reshape(-1)
    for start in range(0, old.size, PIECE):
        x = old[start : start + PIECE].astype(np.float64)
        error = new[start : start + PIECE].astype(np.float64) - x
        signal, noise = signal + float(x @ x), noise + float(error @ error)
        largest = max(largest, float(np.abs(error).max(initial=0.0)))
    if noise == 0:
        return math.inf, largest
    return (10 * math.log10(signal / noise) if signal > 0 else -math.inf), largest


def _interface(before: Graph, after: Graph) -> Iterator[str]:
    """Inputs and outputs that one has, or has otherwise."""
    for side, old, new in (
        ("input", {v.name: v for v in before.inputs}, {v.name: v for v in after.inputs}),
        ("output", dict(before.outputs), dict(after.outputs)),
    ):
        yield from (f"{side} {name} is gone" for name in old if name not in new)
        yield from (f"{side} {name} is new" for name in new if name not in old)
        for name in (n for n in old if n in new):
            types = [_typed(name, graph, values[name]) for graph, values in ((before, old), (after, new))]
            if types[0] != types[1]:
                yield f"{side} {name} {types[0]} -> {types[1]}"


def _typed(name: str, graph: Graph, value: Value) -> str:
    return f"{graph.source_types.get(name, value.dtype)}{format_shape(value.shape)}"
