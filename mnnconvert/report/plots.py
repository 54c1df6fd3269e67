"""Plots as SVG text: histograms, and the error of every layer along a model. Colours come from classes of the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from mnnconvert.layers import Histogram
from mnnconvert.report.content import LEVELS, Row, level_of

HISTOGRAM = (240, 72)  # pixels of the bars
ERRORS = (960, 260)
MARGIN = (52, 12, 26, 12)  # left, top, bottom, right of the error plot
FINEST = 120.0  # dB; what is better is drawn as exact


def outline(counts: Sequence[int], most: int) -> str:
    """The steps of a histogram as an SVG path within HISTOGRAM, `most` at the top. Heights are square roots of counts:

    of the tails nothing would be seen otherwise.
    """
    width, height = HISTOGRAM[0] / max(1, len(counts)), HISTOGRAM[1]
    tops = (height * (1 - math.sqrt(count / most)) if most else height for count in counts)
    return f"M0 {height}" + "".join(f"V{top:.3g}h{width:g}" for top in tops) + f"V{height}Z"


def paths(after: Histogram, before: Histogram | None) -> tuple[str, str]:
    """The outlines after and before ("" where there is none), in one scale."""
    most = max((*after.counts, *(before.counts if before is not None else ())), default=0)
    return outline(after.counts, most), "" if before is None else outline(before.counts, most)


def histogram_svg(after: Histogram, before: Histogram | None, label: str) -> str:
    """A histogram with its range below, and where there is one, that of the numbers before as a line over it."""
    width, height = HISTOGRAM
    shape, line = paths(after, before)
    old = f'<path class="before" d="{line}"/>' if line else ""
    return (
        f'<svg class="histogram" viewBox="0 0 {width} {height + 16}" role="img" aria-label="{escape(label)}">'
        f'<path class="after" d="{shape}"/>{old}'
        f'<text x="0" y="{height + 13}">{after.low:.3g}</text>'
        f'<text x="{width}" y="{height + 13}" text-anchor="end">{after.high:.3g}</text></svg>'
    )


def error_svg(rows: Sequence[Row]) -> str:
    """SQNR over the layers with floats, in their order: a line for the whole run, a dot for each layer alone."""
    measured = [(i, row) for i, row in enumerate(rows)
                if row.leads and row.error is not None and "float" in row.error.dtype]  # fmt: skip
    width, height = ERRORS
    left, top, bottom, right = MARGIN
    step = (width - left - right) / max(1, len(measured) - 1)

    def y(decibel: float | None) -> float:
        value = min(max(-math.inf if decibel is None else decibel, 0.0), FINEST)
        return top + (height - top - bottom) * (1 - value / FINEST)

    def mark(decibel: float) -> str:
        name = f"{decibel:.0f} dB" if decibel < FINEST else "exact"
        return (
            f'<line class="grid" x1="{left}" x2="{width - right}" y1="{y(decibel):.1f}" y2="{y(decibel):.1f}"/>'
            f'<text x="{left - 6}" y="{y(decibel) + 4:.1f}" text-anchor="end">{name}</text>'
        )

    grid = "".join(mark(decibel) for decibel in (0.0, *reversed(LEVELS), 80.0, 100.0, FINEST))
    totals = [(n, row.error.total.sqnr) for n, (_, row) in enumerate(measured) if row.error is not None]
    line = " ".join(f"{left + n * step:.1f},{y(db):.1f}" for n, db in totals if db is not None and db < FINEST)
    dots = "".join(_dot(i, row, left + n * step, y(row.own)) for n, (i, row) in enumerate(measured))
    return (
        f'<svg class="errors" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="Signal to noise ratio of each layer">{grid}<polyline class="total" points="{line}"/>{dots}'
        f'<text x="{left}" y="{height - 6}">first layer</text>'
        f'<text x="{width - right}" y="{height - 6}" text-anchor="end">last layer</text></svg>'
    )


def _dot(number: int, row: Row, x: float, y: float) -> str:
    text = (
        f"{row.layer.name}: {decibels(row.own)} alone, {decibels(row.error.total.sqnr) if row.error else ''} in the run"
    )
    size = 3 if level_of(row.own) == 0 else 4.5
    return (
        f'<circle class="l{row.level}" data-layer="{number}" cx="{x:.1f}" cy="{y:.1f}" r="{size}">'
        f"<title>{escape(text)}</title></circle>"
    )


def decibels(value: float | None) -> str:
    """`41.2 dB`, "exact", or a dash."""
    if value is None:
        return "-"
    if math.isinf(value):
        return "exact" if value > 0 else "no signal"
    return f"{value:.1f} dB"
