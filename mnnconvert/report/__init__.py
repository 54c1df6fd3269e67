"""HTML reports: one file with verdict, errors and sizes of layers, graph, weights and passes of a model."""

from __future__ import annotations

from pathlib import Path

from mnnconvert.report.content import Content


def write_page(content: Content, path: Path) -> None:
    """Write the page; it gets its name when it is complete. Raises `unwritable-output`."""
    from mnnconvert.report.page import page
    from mnnconvert.schema.files import replacing

    with replacing(path, text=True) as stream:
        stream.write(page(content))
