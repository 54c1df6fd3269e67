"""The shape rules are exact: every intermediate of the real models has the sizes that they foretold."""

from __future__ import annotations

import pytest
from real_models import MODELS, source

from mnnconvert.frontends.onnx.reader import read_onnx
from mnnconvert.ir.types import format_shape
from mnnconvert.runtime_ref.session import Session

pytestmark = pytest.mark.models

# In the neck of det an enlarged map is added to one of the size before: for the rules these are two symbols.
UNKNOWN = {"det": 32}


@pytest.mark.parametrize("name", MODELS)
def test_every_intermediate_has_the_foretold_shape(name):
    graph = read_onnx(source(MODELS[name].file))
    values = [v for node in graph.nodes for v in node.outputs]
    session, unknown = Session(graph), 0
    for feeds in MODELS[name].feeds():
        found = session.run(feeds, outputs=[v.name for v in values])
        symbols: dict[str, int] = {}
        unknown = 0
        for value in values:
            sizes = found[value.name].shape
            assert value.shape is not None and len(value.shape) == len(sizes), value.name
            unknown += sum(dim is None for dim in value.shape)
            named = [(d, n) for d, n in zip(value.shape, sizes, strict=True) if isinstance(d, str)]
            told = [d if isinstance(d, int) else n for d, n in zip(value.shape, sizes, strict=True)]
            assert told == list(sizes), f"{value.name}: {format_shape(value.shape)} is {sizes}"
            assert all(symbols.setdefault(d, n) == n for d, n in named), f"{value.name}: {format_shape(value.shape)}"
    assert unknown <= UNKNOWN.get(name, 0)
