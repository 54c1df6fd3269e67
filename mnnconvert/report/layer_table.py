"""The table of all layers: every column that has something to say, each of which sorts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from mnnconvert.ir.types import format_shape
from mnnconvert.report.content import UNMEASURED, Content, Row, common_prefix, within
from mnnconvert.report.markup import Section, right
from mnnconvert.report.plots import decibels
from mnnconvert.units import size


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


def layers(content: Content) -> Section:
    """All layers, those of subgraphs too."""
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
    return f'<th scope="col"{right(title)}><button type="button">{title.lstrip(">")}</button></th>'


def _layer_row(number: int, row: Row, columns: Sequence[Column], prefix: str) -> str:
    cells = "".join(_cell(column, row) for column in columns)
    reason = row.error.reason if row.error is not None and row.leads else ""
    flag = f'<br><span class="flag">{escape(reason)}</span>' if reason else ""
    dot = f'<span class="dot d{row.level}"></span>' if row.level != UNMEASURED else ""
    name = escape(within(row.layer.name, prefix))
    return (
        f'<tr id="layer-{number}"><td>{number + 1}</td><th scope="row">{dot}'
        f'<a href="#layer-{number}">{name}</a>{flag}</th>{cells}</tr>'
    )


def _cell(column: Column, row: Row) -> str:
    text = escape(column.text(row))
    key = f' data-v="{column.key(row)}"' if text and column.key is not None else ""
    return f"<td{key}>{text}</td>"
