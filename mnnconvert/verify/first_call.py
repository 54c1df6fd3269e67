"""A decoder that is handed the keys and values of earlier calls, as one that keeps them sees it: at its first call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mnnconvert.verify.engines import Engine, Feeds, Outputs, TensorInfo
from mnnconvert.verify.layers import IntermediateEngine, SourceLayer


def at_first_call(reference: Engine, candidate: Engine) -> Engine:
    """The reference with nothing before, where the candidate keeps keys and values that the reference is handed.

    These are inputs [batch, heads, positions, size] that the candidate lacks, all with an open number of positions that
    no other input has. Any other reference is returned as it is.
    """
    known = {info.name for info in candidate.inputs}
    pasts = [info for info in reference.inputs if info.name not in known]
    lengths = {info.shape[2] if info.shape is not None and len(info.shape) == 4 else None for info in pasts}
    others = {size for info in reference.inputs if info.name in known for size in info.shape or ()}
    named = all(isinstance(length, str) for length in lengths) and not lengths & others
    if not pasts or not named:
        return reference
    kind = FirstCallOfLayers if isinstance(reference, IntermediateEngine) else FirstCall
    return kind(reference, candidate, pasts, frozenset(map(str, lengths)))


class FirstCall:
    """An engine without the inputs `pasts`, which are empty, and without the outputs that the candidate lacks."""

    def __init__(self, engine: Engine, candidate: Engine, pasts: Sequence[TensorInfo], lengths: frozenset[str]):
        self.name = engine.name
        self.exact_kinds = engine.exact_kinds
        self.notes = [*engine.notes, f"{candidate.name} keeps {', '.join(info.name for info in pasts)}: empty here"]
        self._engine, self._pasts, self._lengths = engine, pasts, lengths
        given = {info.name for info in candidate.outputs}
        self.outputs = [info for info in engine.outputs if info.name in given]
        gone = {info.name for info in pasts}
        self.inputs = [self._shortened(info) for info in engine.inputs if info.name not in gone]

    def run(self, feeds: Feeds) -> Outputs:
        results = self._engine.run(self._with_pasts(feeds))
        return {info.name: results[info.name] for info in self.outputs}

    def _with_pasts(self, feeds: Feeds) -> dict[str, np.ndarray]:
        sizes = {
            symbol: size
            for info in self.inputs
            for symbol, size in zip(info.shape or (), np.shape(feeds[info.name]), strict=False)
        }
        return {**feeds, **{info.name: self._nothing(info, sizes) for info in self._pasts}}

    def _nothing(self, info: TensorInfo, sizes: dict[int | str | None, int]) -> np.ndarray:
        shape = [size if isinstance(size, int) else sizes.get(size, 1) for size in info.shape or ()]
        shape[2] = 0
        return np.zeros(shape, info.dtype)

    def _shortened(self, info: TensorInfo) -> TensorInfo:
        """Sizes such as "past + sequence" without the past."""
        return replace(info, shape=info.shape and tuple(self._without(size) for size in info.shape))

    def _without(self, size: int | str | None) -> int | str | None:
        terms = [term.strip() for term in size.split("+")] if isinstance(size, str) else []
        if len(terms) < 2 or not self._lengths & set(terms):
            return size
        rest = " + ".join(term for term in terms if term not in self._lengths)
        return int(rest) if rest.isdigit() else rest


class FirstCallOfLayers(FirstCall):
    """The same of an engine that tells the values inside its model; see `IntermediateEngine`."""

    _engine: IntermediateEngine

    def layers(self) -> Sequence[SourceLayer]:
        return self._engine.layers()

    def run_values(self, feeds: Feeds, names: Sequence[str]) -> Outputs:
        return self._engine.run_values(self._with_pasts(feeds), names)
