"""Opens a TFLite file and gives its graph."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mnnconvert.ir import Graph, Shape


def read_tflite(path: Path, shapes: Mapping[str, Shape] | None = None, batch: int = 0) -> Graph:
    """The graph of a TFLite file. `shapes` fixes open sizes of inputs by name, `batch` an open first one."""
    from mnnconvert.frontends.tflite.importer import Importer
    from mnnconvert.frontends.tflite.model import load

    return Importer(load(path), shapes, batch).run()
