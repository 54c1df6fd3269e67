"""What a comparison layer by layer says: plain rows, in the order of computation, that any report can show.

A layer is a value of the converted file that stands for a value of the source: nodes that were fused are one layer,
called by the last source value that they compute. Two errors are measured of each. `total` is that of a whole run, with
all that went wrong before; `own` is that of the layer alone, which is given the values of the source.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Protocol, runtime_checkable

from mnnconvert.verify.compare import Tolerance
from mnnconvert.verify.engines import Engine, Feeds, Outputs
from mnnconvert.verify.metrics import ArrayComparison, plain


@dataclass(frozen=True)
class SourceLayer:
    """A node of a source model: its name, operator, and the names of the values that it reads and makes."""

    node: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@runtime_checkable
class IntermediateEngine(Engine, Protocol):
    """An engine that tells the values inside its model."""

    def layers(self) -> Sequence[SourceLayer]:
        """The nodes of the main graph in the order of computation; those that compute constants may be left out."""
        ...

    def run_values(self, feeds: Feeds, names: Sequence[str]) -> Outputs:
        """The named values, inputs and outputs of the model included; names that cannot be had are left out.

        Values of quantized tensors are the real numbers that their codes stand for.
        """
        ...


@dataclass(frozen=True)
class LayerReport:
    """One layer: `name` is that of its value in the source, `nodes` of the file compute it, and `node` and `op` say
    which of these does the work.

    `origin` are the source nodes it covers as "op name", the last one first. `own` is None where it could not be run
    alone, `peer` where MNN's own runtime was not asked or does not tell. `lossy` layers have rounded weights or compute
    on codes: they are expected to differ. `first_nan` is the first position of a NaN or infinity that the source does
    not have, and `reason` says why the layer is a bad one: empty for a good one.
    """

    name: str
    node: str
    op: str
    origin: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    total: ArrayComparison
    own: ArrayComparison | None = None
    peer: ArrayComparison | None = None
    lossy: bool = False
    first_nan: tuple[int, ...] | None = None
    reason: str = ""
    disputed: str = ""
    nodes: tuple[str, ...] = ()

    @property
    def judged(self) -> ArrayComparison:
        """The error that tells whether this layer is to blame."""
        return self.total if self.own is None else self.own

    def to_dict(self) -> dict[str, object]:
        facts = {name: plain(value) for name, value in vars(self).items() if not isinstance(value, ArrayComparison)}
        measured = {"total": self.total, "own": self.own, "peer": self.peer}
        return facts | {name: None if m is None else m.to_dict() for name, m in measured.items()}


@dataclass(frozen=True)
class LayerwiseResult:
    """All layers in the order of computation, `first_bad` of them and the `worst` (of those that differ at all).

    `unmatched` nodes of the file stand for no value of the source by themselves; they are part of the layer after them.
    """

    reference: str
    candidate: str
    tolerance: Tolerance
    shapes: dict[str, tuple[int, ...]]
    layers: tuple[LayerReport, ...]
    unmatched: int = 0
    notes: tuple[str, ...] = field(default=())

    @property
    def first_bad(self) -> LayerReport | None:
        return next((layer for layer in self.layers if layer.reason), None)

    @property
    def first_nan(self) -> LayerReport | None:
        return next((layer for layer in self.layers if layer.first_nan is not None), None)

    @property
    def worst(self) -> LayerReport | None:
        """The layer whose own noise is largest relative to its signal; None where all are exact."""
        inexact = [layer for layer in self.layers if layer.judged.max_abs]
        return min(inexact, key=lambda layer: _decibels(layer.judged), default=None)

    def to_dict(self) -> dict[str, object]:
        bad, worst, nan = self.first_bad, self.worst, self.first_nan
        return {
            "reference": self.reference,
            "candidate": self.candidate,
            "tolerance": asdict(self.tolerance),
            "shapes": {name: list(shape) for name, shape in self.shapes.items()},
            "first_bad": None if bad is None else bad.name,
            "worst": None if worst is None else worst.name,
            "first_nan": None if nan is None else nan.name,
            "unmatched": self.unmatched,
            "notes": list(self.notes),
            "layers": [layer.to_dict() for layer in self.layers],
        }

    def verdict(self) -> list[str]:
        """The first bad layer with its source nodes, and the worst where none is bad: lines for people."""
        bad = self.first_bad
        if bad is None:
            worst = self.worst
            head = f"none of {len(self.layers)} layers is to blame"
            return [head] if worst is None else [f"{head}; the least exact is {described(worst)}"]
        lines = [f"first bad layer: {described(bad)}", f"  {bad.reason}"]
        lines += [f"  source node: {origin}" for origin in bad.origin[:1]]
        lines += [f"  with {', '.join(bad.origin[1:])}"] if len(bad.origin) > 1 else []
        lines += [f"  disputed: {bad.disputed}"] if bad.disputed else []
        more = sum(1 for layer in self.layers if layer.reason) - 1
        return [*lines, *([f"  {more} more bad layers after it"] if more else [])]


def described(layer: LayerReport) -> str:
    """`'name' (op, own error 1e-3 of 2.1, 41.2 dB)`."""
    m = layer.judged
    if m.max_abs is None or m.sqnr is None:
        return f"'{layer.name}' ({layer.op})"
    return f"'{layer.name}' ({layer.op}, off by {m.max_abs:.3g} of {m.largest:.3g}, {m.sqnr:.1f} dB)"


def _decibels(m: ArrayComparison) -> float:
    return float("-inf") if m.sqnr is None else m.sqnr


def names_of(layers: Iterable[SourceLayer]) -> set[str]:
    """Every value that some node makes."""
    return {name for layer in layers for name in layer.outputs if name}
