"""Opens a pair of Caffe files and gives their graph."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mnnconvert.errors import UsageError
from mnnconvert.ir import Graph, Shape


def read_caffe(path: Path, prototxt: str | None, shapes: Mapping[str, Shape] | None = None, batch: int = 0) -> Graph:
    """The graph of trained weights and the description of their net.

    `shapes` replaces the sizes of inputs by name, `batch` a first one that is open.
    """
    from mnnconvert.frontends.caffe.importer import Importer
    from mnnconvert.frontends.caffe.model import load

    if prototxt is None and path.suffix.lower() == ".prototxt":
        raise UsageError.of(
            "missing-option", f"'{path.name}' describes a net, whose trained weights are in a .caffemodel",
            hint="give the .caffemodel with --modelFile, and this file with --prototxt", file=path,
        )  # fmt: skip
    if prototxt is None:
        raise UsageError.of(
            "missing-option", f"'{path.name}' holds trained weights: the net is described by a .prototxt",
            hint="give it with --prototxt", file=path,
        )  # fmt: skip
    return Importer(load(Path(prototxt), path), shapes, batch).run()
