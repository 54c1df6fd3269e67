"""Pieces of HTML that several parts of a page are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape


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
        """The section as an element."""
        hint = f'<p class="hint">{self.hint}</p>' if self.hint else ""
        head = f'<h2 id="{self.id}-title">{self.title}</h2>{hint}'
        kind = ' class="card"' if self.card else ""
        return f'<section id="{self.id}" aria-labelledby="{self.id}-title"{kind}>{head}{self.body}</section>'


def right(title: str) -> str:
    """The class of cells under a title that starts with ">"."""
    return ' class="r"' if title.startswith(">") else ""


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], header: int) -> str:
    """A table whose rows are named by the cell `header`; titles that start with ">" align to the right."""
    head = "".join(f'<th scope="col"{right(c)}>{c.lstrip(">")}</th>' for c in columns)
    body = "".join(
        "<tr>" + "".join(
            f'<th scope="row">{escape(cell)}</th>' if i == header else f"<td{right(columns[i])}>{escape(cell)}</td>"
            for i, cell in enumerate(row)
        ) + "</tr>"
        for row in rows
    )  # fmt: skip
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
