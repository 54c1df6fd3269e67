"""Opens a TensorFlow model, in any of its forms, and gives its graph."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mnnconvert.ir import Graph, Shape


def read_tensorflow(
    path: Path, shapes: Mapping[str, Shape] | None = None, batch: int = 0, signature: str = ""
) -> Graph:
    """The graph of a frozen GraphDef (`.pb`), a SavedModel folder or a Keras file.

    `shapes` fixes open sizes of inputs by name, `batch` an open first one; `signature` names one of a SavedModel.
    """
    from mnnconvert.frontends.tensorflow.framework import load
    from mnnconvert.frontends.tensorflow.importer import Importer

    return Importer(load(path, signature), shapes, batch).run()
