"""One self-contained HTML page: no address in it leads anywhere, and its script only shows what it holds."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from html import escape
from importlib.resources import files
from pathlib import PurePath

from mnnconvert.report import sections
from mnnconvert.report.content import UNMEASURED, Content, Flow, Row, common_prefix, within
from mnnconvert.report.graph_view import view
from mnnconvert.report.layer_table import layers
from mnnconvert.report.markup import Section
from mnnconvert.report.plots import paths

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
VERDICTS = {"passed": ("\u2713", "Agrees"), "missed": ("\u2717", "Does not agree"), "disputed": ("~", "Disputed"),
            "none": ("\u2013", "Not compared")}  # fmt: skip


PARTS: tuple[Callable[[Content], Section | None], ...] = (
    sections.summary, sections.answers, sections.errors, sections.sizes, sections.graph, layers, sections.weights,
    sections.passes, sections.notes,
)  # fmt: skip


def page(content: Content) -> str:
    """The whole document."""
    shown = [section for part in PARTS if (section := part(content)) is not None]
    links = "".join(f'<li><a href="#{s.id}">{s.short}</a></li>' for s in shown)
    body = "".join(s.html() for s in shown)
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


def _data(content: Content) -> str:
    """What the script needs beside the tables: layouts of each graph, and of each layer what the table does not say."""
    drawn = {i for i, _ in sections.largest_weights(content.rows)}
    prefix = common_prefix([r.layer.name for r in content.rows])
    leaders = {row.layer.name: i for i, row in enumerate(content.rows) if row.leads}
    rows = [_layer_data(row, i in drawn, leaders, prefix) for i, row in enumerate(content.rows)]
    flows = [_flow_data(flow) for flow in content.flows]
    data = {"prefix": prefix, "unmeasured": UNMEASURED, "layers": rows, "flows": flows}
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
