"""The parts of a page but for its head and the table of layers. One that has nothing to say is None."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from html import escape

from mnnconvert.ir.types import format_shape
from mnnconvert.layers import totals
from mnnconvert.passes.pipeline import purposes
from mnnconvert.report.content import UNMEASURED, Content, Row, common_prefix, shorter
from mnnconvert.report.markup import Section, table
from mnnconvert.report.plots import decibels, error_svg, histogram_svg
from mnnconvert.units import size
from mnnconvert.verify.compare import OutputVerdict

LARGEST = 16  # layers whose sizes are drawn
SPREADS = 24  # weights whose histograms are drawn; those of all others are shown with their layer
LEVEL_NAMES = (
    "exact, from 60 dB",
    "40 to 60 dB",
    "30 to 40 dB",
    "20 to 30 dB",
    "below 20 dB, or to blame",
    "not measured",
)


def summary(content: Content) -> Section:
    """The numbers to begin with."""
    info, rows = content.info, content.rows
    whole = info.file_bytes + info.external_bytes
    before = (
        f"{whole / content.source_bytes:.0%} of the {size(content.source_bytes)} of the source"
        if content.source_bytes
        else ""
    )
    facts = [("Size", size(whole), before)]
    facts.append(
        ("Layers", str(len(rows)), f"from {content.source_nodes} nodes of the source" if content.source_nodes else "")
    )
    facts.append(("Parameters", f"{sum(r.layer.parameters for r in rows):,}", _stored(rows)))
    worst = _worst_answer(content)
    if worst is not None:
        facts.append(("Least exact output", decibels(worst.measured.sqnr if worst.measured else None), worst.name))
    if content.layerwise is not None and content.layerwise.worst is not None:
        layer = content.layerwise.worst
        facts.append(("Least exact layer", decibels(layer.judged.sqnr), layer.name))
    body = "".join(
        f'<div class="card"><dt>{title}</dt><dd>{escape(value)}<small>{escape(more)}</small></dd></div>'
        for title, value, more in facts
    )
    return Section("summary", "Summary", "Summary", "", f'<dl class="facts">{body}</dl>', card=False)


def _stored(rows: Sequence[Row]) -> str:
    counts = Counter(r.layer.weight.bits for r in rows if r.layer.weight is not None)
    return ", ".join(f"{n} weights in {bits} bits" for bits, n in sorted(counts.items()))


def _worst_answer(content: Content) -> OutputVerdict | None:
    found = [v for _, v in _verdicts(content) if v.measured is not None and v.measured.sqnr is not None]
    return min(found, key=lambda v: (v.measured.sqnr or 0.0) if v.measured else math.inf, default=None)


def _verdicts(content: Content) -> list[tuple[int, OutputVerdict]]:
    runs = content.measured.runs if content.measured is not None else ()
    return [(n, v) for n, run in enumerate(runs, 1) if run.comparison is not None for v in run.comparison.outputs]


def answers(content: Content) -> Section | None:
    """How far every output is off in every run."""
    result = content.measured
    if result is None:
        return None
    rows = [_answer(number, v, content.quantized is None) for number, v in _verdicts(content)]
    rows += [[str(n), "", "", "", "", "", str(p)] for n, run in enumerate(result.runs, 1) for p in run.problems]
    columns = ("Run", "Output", ">Cosine", ">SQNR", ">Largest error", ">Largest value", "Verdict")
    shapes = "; ".join(
        f"run {n}: " + ", ".join(f"{escape(name)} {list(shape)}" for name, shape in run.shapes.items())
        for n, run in enumerate(result.runs, 1)
    )
    hint = f"{escape(result.candidate)} against {escape(result.reference)} on the same inputs ({shapes})."
    body = f'<div class="answers">{table(columns, rows, header=1)}</div>'
    return Section("answers", "Answers", "Answers", hint, body)


def _answer(number: int, v: OutputVerdict, judged: bool) -> list[str]:
    m = v.measured
    cosine, sqnr, error, largest = (None,) * 4 if m is None else (m.cosine, m.sqnr, m.max_abs, m.largest)
    verdict = f"{v.verdict}: {v.reason}" if v.reason else v.verdict
    numbers = _number(cosine), decibels(sqnr), _number(error), _number(largest)
    return [str(number), v.name, *numbers, verdict if judged else "measured"]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def errors(content: Content) -> Section | None:
    """The error of every layer that was compared."""
    if not any(row.leads for row in content.rows):
        return None
    hint = (
        "Signal to noise ratio of the layers with floats, in their order; higher is better, and 20 dB are a factor of "
        "ten. A dot is the error of a layer alone, on exact inputs; the line is that of the whole run, with all that "
        "came before."
    )
    body = f'{_legend(content)}<div class="scroll">{error_svg(content.rows)}</div>'
    return Section("errors", "Errors", "Error along the model", hint, body)


def _legend(content: Content) -> str:
    used = {row.level for row in content.rows}
    items = (f'<li><span class="dot d{i}"></span>{name}</li>' for i, name in enumerate(LEVEL_NAMES) if i in used)
    return f'<ul class="legend">{"".join(items)}</ul>'


def sizes(content: Content) -> Section | None:
    """The largest layers as bars, and the sums of each kind of op."""
    held = [r for r in content.rows if r.layer.bytes]
    rows = sorted(held, key=lambda r: -max(r.layer.bytes, r.bytes_before))[:LARGEST]
    if not rows:
        return None
    most = max(max(r.layer.bytes, r.bytes_before) for r in rows)
    prefix = common_prefix([r.layer.name for r in content.rows])
    bars = "".join(_bar(r, most, prefix) for r in rows)
    compared = any(r.before is not None for r in rows)
    hint = f"The {len(rows)} largest of {len(held)} layers that hold numbers."
    hint += " The outline is what they took before." if compared else ""
    body = f'<div class="two"><ul class="bars">{bars}</ul>{_by_op(content.rows)}</div>'
    return Section("sizes", "Sizes", "Where the bytes are", hint, body)


def _bar(row: Row, most: int, prefix: str) -> str:
    old, new = row.bytes_before, row.layer.bytes
    text = size(new) if old == new else f"{size(old)} \u2192 {size(new)}"
    outline = f'<i class="b" style="width:{100 * old / most:.1f}%"></i>' if old != new else ""
    return (
        f'<li><span class="what" title="{escape(row.layer.name)}">{escape(shorter(row.layer.name, prefix))}</span>'
        f'<span class="bar">{outline}<i class="a" style="width:{100 * new / most:.1f}%"></i>'
        f"<span>{text}</span></span></li>"
    )


def _by_op(rows: Sequence[Row]) -> str:
    sums = totals(row.layer for row in rows)
    cells = [[r["op"], str(r["count"]), f"{r['parameters']:,}", size(r["bytes"])] for r in sums]
    return f'<div class="tall">{table(("Operator", ">Count", ">Parameters", ">Size"), cells, header=0)}</div>'


def graph(content: Content) -> Section | None:
    """Where the script draws the graph and tells of single layers."""
    if not content.flows:
        return None
    hint = (
        "Arrow keys walk along the graph, Home and End go to its ends. Simplified, a chain without branches is one "
        "box, and what only computes with sizes is left out."
    )
    legend = _legend(content) if any(row.level != UNMEASURED for row in content.rows) else ""
    if content.layerwise is None and legend:
        hint += " Layers have the colour of the error of their weight, as they were not compared themselves."
    body = f"""{legend}<div class="tools">{_choice(content)}
<label><input type="checkbox" id="simplify" checked> Simplified</label>
<button type="button" id="smaller" aria-label="Zoom out">\u2212</button>
<button type="button" id="larger" aria-label="Zoom in">+</button>
<button type="button" id="worst">Least exact layer</button>
<input type="search" id="find" placeholder="Find a layer by name or operator" aria-label="Find a layer">
</div>
<div class="stage">
<div id="canvas" tabindex="0" role="group" aria-label="Graph of the model"><div id="sheet"></div></div>
<div id="details" aria-live="polite"><p class="hint">Choose a layer in the graph, the plot or the table.</p></div>
</div><noscript><p>The graph needs a script; the table below holds the same layers.</p></noscript>"""
    return Section("graph", "Graph", "Graph", hint, body)


def _choice(content: Content) -> str:
    """What is drawn, where there is more than one graph."""
    if len(content.flows) < 2:
        return ""
    names = (f.name or "the model" for f in content.flows)
    options = "".join(
        f'<option value="{i}">{escape(name)} ({f.layers} layers)</option>'
        for i, (name, f) in enumerate(zip(names, content.flows, strict=True))
    )
    return f'<select id="flow" class="choice" aria-label="Graph that is drawn">{options}</select>'


def largest_weights(rows: Sequence[Row]) -> list[tuple[int, Row]]:
    """The layers whose histograms are on the page."""
    held = [(i, r) for i, r in enumerate(rows) if r.spread is not None and r.layer.weight is not None]
    return sorted(held, key=lambda item: -(item[1].layer.weight.elements if item[1].layer.weight else 0))[:SPREADS]


def weights(content: Content) -> Section | None:
    """Histograms of the largest weights."""
    chosen = largest_weights(content.rows)
    if not chosen:
        return None
    count = sum(1 for r in content.rows if r.spread is not None)
    prefix = common_prefix([r.layer.name for r in content.rows])
    figures = "".join(_figure(i, r, prefix) for i, r in chosen)
    compared = any(r.before is not None for _, r in chosen)
    hint = (
        f"The {len(chosen)} largest of {count} weights; heights are square roots of counts, so that tails can be seen."
    )
    hint += " The line is the weight before it was rounded." if compared else ""
    return Section("weights", "Weights", "How weights are spread", hint, f'<div class="weights">{figures}</div>')


def _figure(number: int, row: Row, prefix: str) -> str:
    spread, weight = row.spread, row.layer.weight
    assert spread is not None and weight is not None  # of rows that have both
    error = f", {decibels(spread.sqnr)}" if spread.sqnr is not None else ""
    name = escape(shorter(row.layer.name, prefix))
    svg = histogram_svg(spread.after, spread.before, f"Histogram of the weight of {shorter(row.layer.name, prefix)}")
    caption = f"{name}<span>{format_shape(weight.shape)} {escape(weight.stored)}{error}</span>"
    return f'<figure data-weight="{number}"><figcaption>{caption}</figcaption>{svg}</figure>'


def passes(content: Content) -> Section | None:
    """What the passes of the conversion did."""
    if not content.passes:
        return None
    does = purposes()
    rows = []
    for report in content.passes:
        notes = "; ".join(report.notes[:6]) + ("; ..." if len(report.notes) > 6 else "")
        rows.append(
            [report.name, str(report.changes), f"{report.seconds * 1000:.1f}", does.get(report.name, ""), notes]
        )
    changed = sum(1 for report in content.passes if report.changes)
    hint = f"{changed} of {len(rows)} passes changed something, in this order."
    body = table(("Pass", ">Changes", ">ms", "What it does", "Notes"), rows, header=0)
    return Section("passes", "Passes", "What each pass did", hint, f'<div class="tall">{body}</div>')


def notes(content: Content) -> Section:
    """Notes of the conversion, inputs and outputs, and how things were measured."""
    info = content.info
    entries = [(d.reference, f"{d.message}{' ' + d.hint if d.hint else ''}") for d in content.notes]
    entries += [("input", f"{v['name']}: {v['dtype']} {v['shape']}") for v in info.inputs]
    entries += [("output", f"{v['name']}: {v['dtype']} {v['shape']}") for v in info.outputs]
    entries += [(name, str(value)) for name, value in info.metadata.items()]
    if content.layerwise is not None:
        entries += [("layers", note) for note in content.layerwise.notes]
        unmatched = content.layerwise.unmatched
        entries += (
            [("layers", f"{unmatched} nodes stand for no value of the source by themselves")] if unmatched else []
        )
    if any(r.spread and r.spread.after.counted < r.spread.after.elements for r in content.rows):
        entries.append(("histograms", "of large weights count rows at equal distances"))
    body = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in entries)
    return Section("notes", "Notes", "Notes", "", f'<dl class="notes">{body}</dl>')
