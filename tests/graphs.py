"""Graphs for tests: imported without passes, sent through a file, run."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from mnnconvert.frontends.onnx.importer import Importer
from mnnconvert.ir import Graph, verify
from mnnconvert.runtime_ref.session import Session
from mnnconvert.schema.reader import read_model
from mnnconvert.schema.writer import write_model


def import_proto(model) -> Graph:
    """The legal graph of an ONNX ModelProto, no pass run."""
    graph = Importer(model, Path(".")).run()
    verify(graph, "import")
    return graph


def through_file(graph: Graph, folder: Path | None = None) -> Graph:
    """The graph written to a file and read back."""
    with tempfile.TemporaryDirectory() as temporary:
        path = (folder or Path(temporary)) / "model.mnn"
        write_model(graph, path)
        return read_model(path)


def run_graph(graph: Graph, feeds) -> dict[str, np.ndarray]:
    """Outputs of the reference executor."""
    return Session(graph).run(feeds)
