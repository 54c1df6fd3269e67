"""Finds the layer where a converted file leaves its source.

Both sides run in slices: some layers at a time, whose values and those that they are computed from are held together,
so that memory does not grow with the depth of a model. The file goes on in each slice where it stood in the one before.

A layer is bad if its own error, on the very values that the source has before it, is beyond the tolerance. What it
inherits from layers before it is no fault of its own. Layers with rounded weights or codes are expected to differ: of
those only the ones are bad that are far worse than the others (OUTLIER dB and three robust standard deviations), and
not HARMLESS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from mnnconvert.errors import UsageError
from mnnconvert.verify.branches import opened
from mnnconvert.verify.compare import Tolerance, allowed, distance
from mnnconvert.verify.engines import Engine, Feeds, Outputs
from mnnconvert.verify.layer_walk import LayerAlone, LayerWalk, Plan
from mnnconvert.verify.layers import IntermediateEngine, LayerReport, LayerwiseResult
from mnnconvert.verify.second_opinion import of_layer

OUTLIER, SPREAD = 10.0, 3 * 1.4826  # dB; of the median absolute deviation
EXACT_ENOUGH = 60.0  # dB: better ones say nothing about what the others may lose
HARMLESS = 35.0  # dB: about what 8 bits make; a layer that is better is none to look at first
FEWEST = 3  # lossy layers that tell what is usual
OPINIONS = 3  # bad layers that a second reference is asked about


def require_values(engine: Engine) -> IntermediateEngine:
    """The engine, or `no-layer-values` where it runs models as a whole only."""
    if isinstance(engine, IntermediateEngine):
        return engine
    raise UsageError.of("no-layer-values", f"{engine.name} does not tell the values inside a model")


@dataclass(frozen=True)
class Localiser(Plan):
    """Compares the layers of a converted graph with those of its source; see `Plan` for its fields."""

    def run(self, feeds: Feeds) -> LayerwiseResult:
        """All layers on these inputs. Raises what the reference raises where it cannot run them."""
        plan = self.opened(feeds)
        walk = LayerWalk(plan, feeds, plan.reference.layers())
        rows = _without_inherited(list(walk.rows()), plan.tolerance)
        rows = [
            replace(row, reason=reason) if reason else row for row, reason in zip(rows, _outliers(rows), strict=True)
        ]
        rows = plan._heard(rows, walk)
        shapes = {name: tuple(np.shape(array)) for name, array in feeds.items()}
        covered = {row.node for row in rows}
        unmatched = sum(1 for node in plan.graph.nodes if node.name not in covered)
        notes = tuple(walk.notes)
        return LayerwiseResult(self.reference.name, self.name, self.tolerance, shapes, tuple(rows), unmatched, notes)

    def opened(self, feeds: Feeds) -> Localiser:
        """The same with the branches that these inputs take in the place of their nodes."""
        reference, graph = opened(self.reference, self.graph, feeds)
        if graph is self.graph and reference is self.reference:
            return self
        told = {value.name for node in self.graph.nodes for value in node.outputs}
        whole = self.peer

        def peer(feeds: Feeds, names: Sequence[str]) -> Outputs:
            """What the runtime tells are values of the file as it is."""
            known = [name for name in names if name in told]
            return whole(feeds, known) if whole is not None and known else {}

        return replace(self, reference=reference, graph=graph, peer=None if whole is None else peer)

    def _heard(self, rows: Sequence[LayerReport], walk: LayerWalk) -> list[LayerReport]:
        """The first bad layers with what a second reference says; one that it sides with is no longer bad.

        It is asked until it agrees that a layer is bad.
        """
        said: dict[str, LayerReport] = {}
        for row in [row for row in rows if row.reason and not row.lossy][:OPINIONS]:
            alone = walk.alone(row.name)
            if alone is None:
                break
            text, agrees = of_layer(self.reference, row.name, alone.source, alone.got, alone.expected, self.tolerance)
            said[row.name] = replace(row, disputed=text, reason="" if text and agrees else row.reason)
            if said[row.name].reason:
                break
        return [said.get(row.name, row) for row in rows]

    def alone(self, feeds: Feeds, name: str) -> LayerAlone | None:
        """The layer of the source value `name` by itself, with what the source gives it; None where it has no such."""
        walk = LayerWalk(self, feeds, self.reference.layers())
        return walk.alone(name) if any(row.name == name for row in walk.rows()) else None


def _without_inherited(rows: Sequence[LayerReport], tolerance: Tolerance) -> list[LayerReport]:
    """A layer that could not be run alone is only blamed where nothing before it was off: else it may inherit that."""
    exact, judged = True, []
    for row in rows:
        measured = row.total.max_abs is not None
        judged.append(replace(row, reason="") if measured and row.own is None and not exact else row)
        exact = exact and measured and distance(row.total) <= allowed(row.total, tolerance)
    return judged


def _outliers(rows: Sequence[LayerReport]) -> list[str]:
    """For every layer why it is far worse than other lossy ones; "" where it is not."""
    levels = [min(row.own.sqnr, EXACT_ENOUGH) for row in rows
              if row.lossy and row.own is not None and row.own.sqnr is not None]  # fmt: skip
    if len(levels) < FEWEST:
        return [""] * len(rows)
    middle = median(levels)
    below = max(OUTLIER, SPREAD * median(abs(level - middle) for level in levels))
    return [_outlier(row, middle, min(middle - below, HARMLESS)) for row in rows]


def _outlier(row: LayerReport, middle: float, bound: float) -> str:
    sqnr = None if row.own is None else row.own.sqnr
    if not row.lossy or row.reason or sqnr is None or sqnr >= bound:
        return ""
    return f"its own noise is at {sqnr:.1f} dB, where half of the rounded layers have {middle:.1f} dB or better"
