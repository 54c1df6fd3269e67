"""One self-contained HTML page: no address in it leads anywhere, and its script only shows what it holds."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib.resources import files
from pathlib import PurePath

from mnnconvert.ir.types import format_shape
from mnnconvert.passes.pipeline import purposes
from mnnconvert.report.content import UNMEASURED, Content, Flow, Row, common_prefix, shorter, within
from mnnconvert.report.graph_view import view
from mnnconvert.report.plots import decibels, error_svg, histogram_svg, paths
from mnnconvert.verify.compare import OutputVerdict

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
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
VERDICTS = {"passed": ("\u2713", "Agrees"), "missed": ("\u2717", "Does not agree"), "disputed": ("~", "Disputed"),
            "none": ("\u2013", "Not compared")}  # fmt: skip


def size(count: float) -> str:
    """A number of bytes: 999 B, 12.3 kB, 4.5 MB (powers of 1000)."""
    for unit in ("B", "kB", "MB"):
        if count < 999.5:
            return f"{count:.0f} B" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def page(content: Content) -> str:
    """The whole document."""
    sections = [s for s in (_summary(content), _answers(content), _errors(content), _sizes(content), _graph(content),
                            _layers(content), _weights(content), _passes(content), _notes(content)) if s]  # fmt: skip
    links = "".join(f'<li><a href="#{s.id}">{s.short}</a></li>' for s in sections)
    body = "".join(s.html() for s in sections)
    name = escape(PurePath(content.path).name)
    own = files("mnnconvert.report")
    style, script = (own.joinpath(each).read_text(encoding="utf-8") for each in ("style.css", "script.js"))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{name} - mnnconvert report</title>
<style>
{style}</style>
</head>
<body>
<a class="skip" href="#content">Skip to the report</a>
<header class="top"><div class="wide"><h1>{name}</h1>{_headline(content)}{_verdict(content)}</div></header>
<nav aria-label="Sections"><ul class="wide">{links}</ul></nav>
<main class="wide" id="content">{body}</main>
<footer class="wide">Made by mnnconvert. This file loads nothing and sends nothing.</footer>
<script type="application/json" id="data">{_data(content)}</script>
<script>
{script}</script>
</body>
</html>
"""


@dataclass(frozen=True)
class Section:
    """A part of the page: its anchor, its name in the navigation and its heading, what it says, and its content."""

    id: str
    short: str
    title: str
    hint: str
    body: str
    card: bool = True

    def html(self) -> str:
        hint = f'<p class="hint">{self.hint}</p>' if self.hint else ""
        head = f'<h2 id="{self.id}-title">{self.title}</h2>{hint}'
        kind = ' class="card"' if self.card else ""
        return f'<section id="{self.id}" aria-labelledby="{self.id}-title"{kind}>{head}{self.body}</section>'


def _headline(content: Content) -> str:
    info = content.info
    origin = f" from <code>{escape(content.source)}</code>" if content.source else ""
    version = f", MNN {escape(info.version)}" if info.version else ""
    return f"<p><code>{escape(content.path)}</code>{origin} ({escape(info.framework)}{version})</p>"


def _verdict(content: Content) -> str:
    proof = content.proof
    if proof is None:
        kind, lines = "none", ["This page describes the file. It was not compared with a source."]
    else:
        disputed = any(run.comparison is not None and run.comparison.disputed for run in proof.runs)
        kind = "missed" if not proof.passed else "disputed" if disputed else "passed"
        lines = list(replace(proof, layers=None).lines()[:4])
        if content.quantized is not None:
            lines = [lines[0], "What the compressed weights change is measured below, and yours to judge."]
    if content.layerwise is not None:
        lines += content.layerwise.verdict()[:2]
    sign, word = VERDICTS[kind]
    word = f"Float graph {word.lower()}" if content.quantized is not None else word
    items = "".join(f"<li>{escape(line.strip())}</li>" for line in lines)
    return f'<div class="verdict"><span class="badge {kind}">{sign} {word}</span><ul>{items}</ul></div>'


def _summary(content: Content) -> Section:
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


def _answers(content: Content) -> Section | None:
    result = content.measured
    if result is None:
        return None
    rows = []
    for number, v in _verdicts(content):
        m = v.measured
        numbers = [None] * 4 if m is None else [m.cosine, m.sqnr, m.max_abs, m.largest]
        cells = [_number(numbers[0]), decibels(numbers[1]), _number(numbers[2]), _number(numbers[3])]
        verdict = "measured" if content.quantized is not None else v.verdict
        rows.append(
            [
                str(number),
                v.name,
                *cells,
                f"{verdict}{': ' + v.reason if v.reason and content.quantized is None else ''}",
            ]
        )
    problems = [[str(n), "", "", "", "", "", str(p)] for n, run in enumerate(result.runs, 1) for p in run.problems]
    columns = ("Run", "Output", ">Cosine", ">SQNR", ">Largest error", ">Largest value", "Verdict")
    shapes = "; ".join(
        f"run {n}: " + ", ".join(f"{escape(name)} {list(shape)}" for name, shape in run.shapes.items())
        for n, run in enumerate(result.runs, 1)
    )
    hint = f"{escape(result.candidate)} against {escape(result.reference)} on the same inputs ({shapes})."
    return Section(
        "answers",
        "Answers",
        "Answers",
        hint,
        f'<div class="answers">{_table(columns, rows + problems, header=1)}</div>',
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _errors(content: Content) -> Section | None:
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


def _sizes(content: Content) -> Section | None:
    rows = sorted((r for r in content.rows if r.layer.bytes), key=lambda r: -max(r.layer.bytes, r.bytes_before))[
        :LARGEST
    ]
    if not rows:
        return None
    most = max(max(r.layer.bytes, r.bytes_before) for r in rows)
    prefix = common_prefix([r.layer.name for r in content.rows])
    bars = "".join(_bar(r, most, prefix) for r in rows)
    compared = any(r.before is not None for r in rows)
    hint = f"The {len(rows)} largest of {sum(1 for r in content.rows if r.layer.bytes)} layers that hold numbers."
    hint += " The outline is what they took before." if compared else ""
    sums = _by_op(content.rows)
    return Section(
        "sizes", "Sizes", "Where the bytes are", hint, f'<div class="two"><ul class="bars">{bars}</ul>{sums}</div>'
    )


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
    sums: dict[str, list[int]] = {}
    for r in rows:
        entry = sums.setdefault(r.layer.op, [0, 0, 0, 0])
        for i, n in enumerate((1, r.layer.parameters, r.layer.bytes, r.bytes_before)):
            entry[i] += n
    ordered = sorted(sums.items(), key=lambda item: (-item[1][2], -item[1][0], item[0]))
    cells = [[op, str(n), f"{parameters:,}", size(bytes_)] for op, (n, parameters, bytes_, _) in ordered]
    return f'<div class="tall">{_table(("Operator", ">Count", ">Parameters", ">Size"), cells, header=0)}</div>'


def _graph(content: Content) -> Section | None:
    if not content.flows:
        return None
    hint = (
        "Arrow keys walk along the graph, Home and End go to its ends. Simplified, a chain without branches is one "
        "box, and what only computes with sizes is left out."
    )
    legend = _legend(content) if any(row.error for row in content.rows) else ""
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


@dataclass(frozen=True)
class Column:
    """A column of the layer table: a title that starts with ">" is aligned right; `key` sorts where text would not."""

    title: str
    text: Callable[[Row], str]
    key: Callable[[Row], int] | None = None


def _decibel_column(title: str, read: Callable[[Row], float | None]) -> Column:
    return Column(title, lambda row: "" if read(row) is None else decibels(read(row)))


def _columns(rows: Sequence[Row]) -> list[Column]:
    """The columns that have something to say."""
    columns = [
        Column("Operator", lambda r: r.layer.op),
        Column("Result", lambda r: f"{r.layer.dtype}{format_shape(r.layer.shape)}"),
        Column("Stored as", lambda r: r.layer.weight.stored if r.layer.weight is not None else ""),
    ]
    if any(r.layer.graph for r in rows):
        columns.append(Column("Subgraph", lambda r: r.layer.graph))
    columns.append(Column(">Size", lambda r: size(r.layer.bytes) if r.layer.bytes else "", lambda r: r.layer.bytes))
    if any(r.before is not None for r in rows):
        columns.append(Column(">Before", lambda r: size(r.bytes_before) if r.before else "", lambda r: r.bytes_before))
        columns.append(_decibel_column(">Weight", lambda r: r.spread.sqnr if r.spread else None))
    if any(r.leads for r in rows):
        columns.append(_decibel_column(">Alone", lambda r: r.own if r.leads else None))
        columns.append(_decibel_column(">In the run", lambda r: r.error.total.sqnr if r.error and r.leads else None))
    return columns


def _layers(content: Content) -> Section:
    columns = _columns(content.rows)
    prefix = common_prefix([r.layer.name for r in content.rows])
    head = "".join(_head(title) for title in (">#", "Layer", *(c.title for c in columns)))
    body = "".join(_layer_row(i, row, columns, prefix) for i, row in enumerate(content.rows))
    hint = "A heading sorts."
    if prefix:
        hint += f" Names inside <code>{escape(prefix)}</code> are shown without it."
    if any(r.leads for r in content.rows):
        hint += (
            " Alone: the layer on exact inputs; in the run: with what it inherits. Layers without numbers are measured "
            "with the next one that has them."
        )
    texts = 2 + sum(1 for c in columns if not c.title.startswith(">"))  # numbers come after them
    rows = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    table = f'<div class="tall"><table id="layers-table" class="after{texts}">{rows}</table></div>'
    return Section("layers", "Layers", f"{len(content.rows)} layers", hint, table)


def _head(title: str) -> str:
    return f'<th scope="col"{_right(title)}><button type="button">{title.lstrip(">")}</button></th>'


def _layer_row(number: int, row: Row, columns: Sequence[Column], prefix: str) -> str:
    cells = "".join(_cell(column, row) for column in columns)
    reason = row.error.reason if row.error is not None and row.leads else ""
    flag = f'<br><span class="flag">{escape(reason)}</span>' if reason else ""
    dot = f'<span class="dot d{row.level}"></span>' if row.error is not None else ""
    name = escape(within(row.layer.name, prefix))
    return (
        f'<tr id="layer-{number}"><td>{number + 1}</td><th scope="row">{dot}'
        f'<a href="#layer-{number}">{name}</a>{flag}</th>{cells}</tr>'
    )


def _cell(column: Column, row: Row) -> str:
    text = escape(column.text(row))
    key = f' data-v="{column.key(row)}"' if text and column.key is not None else ""
    return f"<td{key}>{text}</td>"


def _right(title: str) -> str:
    return ' class="r"' if title.startswith(">") else ""


def _largest_weights(rows: Sequence[Row]) -> list[tuple[int, Row]]:
    """The layers whose histograms are on the page."""
    held = [(i, r) for i, r in enumerate(rows) if r.spread is not None and r.layer.weight is not None]
    return sorted(held, key=lambda item: -(item[1].layer.weight.elements if item[1].layer.weight else 0))[:SPREADS]


def _weights(content: Content) -> Section | None:
    chosen = _largest_weights(content.rows)
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


def _passes(content: Content) -> Section | None:
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
    table = _table(("Pass", ">Changes", ">ms", "What it does", "Notes"), rows, header=0)
    return Section("passes", "Passes", "What each pass did", hint, f'<div class="tall">{table}</div>')


def _notes(content: Content) -> Section:
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


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], header: int) -> str:
    """A table whose rows are named by the cell `header`; titles that start with ">" align to the right."""
    head = "".join(f'<th scope="col"{_right(c)}>{c.lstrip(">")}</th>' for c in columns)
    body = "".join(
        "<tr>" + "".join(
            f'<th scope="row">{escape(cell)}</th>' if i == header else f"<td{_right(columns[i])}>{escape(cell)}</td>"
            for i, cell in enumerate(row)
        ) + "</tr>"
        for row in rows
    )  # fmt: skip
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _data(content: Content) -> str:
    """What the script needs beside the tables: layouts of each graph, and of each layer what the table does not say."""
    drawn = {i for i, _ in _largest_weights(content.rows)}
    prefix = common_prefix([r.layer.name for r in content.rows])
    leaders = {row.layer.name: i for i, row in enumerate(content.rows) if row.leads}
    layers = [_layer_data(row, i in drawn, leaders, prefix) for i, row in enumerate(content.rows)]
    flows = [_flow_data(flow) for flow in content.flows]
    data = {"prefix": prefix, "unmeasured": UNMEASURED, "layers": layers, "flows": flows}
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")


def _flow_data(flow: Flow) -> dict[str, object]:
    views = view(flow.count, flow.edges), view(flow.count, flow.edges, True, flow.sizes)
    return {
        "first": flow.first, "inputs": flow.inputs, "layers": flow.layers, "outputs": flow.outputs,
        "edges": flow.edges, "views": [each.to_dict() for each in views],
    }  # fmt: skip


def _layer_data(row: Row, drawn: bool, leaders: dict[str, int], prefix: str) -> dict[str, object]:
    """Of one layer; its histogram only where that is not drawn on the page already."""
    origin = row.error.origin if row.error is not None and row.leads else row.layer.origin
    data: dict[str, object] = {"v": row.level, "t": row.layer.text}
    cut = len(row.layer.name) - len(within(row.layer.name, prefix))
    data |= {"p": cut} if cut else {}
    if tuple(origin) not in ((), (row.layer.name,)):
        data["o"] = [" ".join(within(part, prefix) for part in source.split(" ")) for source in origin]
    if row.own is not None and math.isfinite(row.own):
        data["q"] = round(row.own, 1)
    if row.error is not None and not row.leads:
        data["with"] = leaders[row.error.node]
    if row.spread is not None and not drawn:
        after, before = paths(row.spread.after, row.spread.before)
        data["h"] = [f"{row.spread.after.low:.3g}", f"{row.spread.after.high:.3g}", after, before]
    return data
