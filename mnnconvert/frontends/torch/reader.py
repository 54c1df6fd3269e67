"""Opens a Torch file and gives its graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mnnconvert.frontends.torch.inputs import BOUND, InputOptions
from mnnconvert.ir import Graph

Note = Callable[[str, str, str], None]
FORGOTTEN = (
    "state-forgotten",
    "the model keeps values from run to run; the converted one starts each run from those in the file",
    "make them inputs and outputs of forward to keep them",
)


def read_torch(path: Path, options: InputOptions | None = None, note: Note | None = None) -> Graph:
    """The graph of a TorchScript file or an exported program. `note` is told what a user has to know."""
    from mnnconvert.frontends.torch.export import open_file, program_of
    from mnnconvert.frontends.torch.script import sets_state

    options = options or InputOptions()
    source = open_file(path, options)
    program = program_of(source)
    scripted = source.scripted is not None
    if scripted and note is not None and sets_state(source.scripted):
        note(*FORGOTTEN)
    graph = graph_of(program, path.resolve().parent, InputOptions() if scripted else options, note)
    graph.metadata |= {f"{BOUND}{name}": str(number) for name, number in options.values.items()}
    return graph


def graph_of(program: Any, folder: Path, options: InputOptions, note: Note | None = None) -> Graph:
    """The graph of an ExportedProgram, with the sizes that `options` fix."""
    from mnnconvert.frontends.onnx.importer import Importer
    from mnnconvert.frontends.torch.lower import lower, prepared

    program = prepared(program)
    model, tensors = lower(program)
    if program.graph_signature.buffers_to_mutate and note is not None:
        note(*FORGOTTEN)
    return Importer(model, folder, options.shapes, options.batch, tensors).run()
