"""Outputs leave under their names, whatever they are."""

from __future__ import annotations

import numpy as np
import pytest
from pass_cases import build, kinds, noise

from mnnconvert.ir import Builder, Graph, verify
from mnnconvert.ops.elementwise import Unary
from mnnconvert.ops.layout import Identity
from mnnconvert.passes.names import NameOutputs
from mnnconvert.runtime_ref.session import Session, load
from mnnconvert.schema.writer import write_model
from mnnconvert.verify.mnn_engine import MnnEngine

X = noise(2, 3)


def _graph(outputs) -> Graph:
    """x -> NEG -> y, ABS -> z, a constant c; `outputs` pairs output names with those of values."""
    builder = Builder()
    x = builder.input("x", X.dtype, X.shape)
    with builder.at("n", "source"):
        y = builder.add(Unary("NEG"), x, name="y")
        values = {"x": x, "y": y, "z": builder.add(Unary("ABS"), y, name="z"), "c": builder.constant(noise(3), "c")}
    for name, value in outputs:
        builder.output(values[value], name)
    return builder.graph


CASES = {
    "own names": ([("y", "y"), ("z", "z")], 0),
    "renamed": ([("out", "z")], 0),
    "exchanged": ([("z", "y"), ("y", "z")], 0),
    "name of an inner value": ([("y", "z")], 0),
    "twice": ([("y", "y"), ("again", "y"), ("more", "y")], 2),
    "twice under other names": ([("a", "z"), ("b", "z")], 1),
    "input": ([("x", "x"), ("z", "z")], 0),
    "renamed input": ([("out", "x")], 1),
    "constant": ([("c", "c"), ("z", "z")], 0),
    "renamed constant": ([("out", "c"), ("z", "z")], 1),
    "name of a constant": ([("c", "z"), ("k", "c")], 1),
}


@pytest.mark.parametrize("name", CASES)
def test_outputs_are_values_of_their_names(name):
    outputs, copies = CASES[name]
    wanted = Session(_graph(outputs)).run({"x": X})
    graph = _graph(outputs)
    NameOutputs().run(graph)
    verify(graph, "names")
    assert all(value.name == output for output, value in graph.outputs)
    assert kinds(graph).count("Identity") == copies
    assert [v.name for v in graph.inputs] == ["x"]
    got = Session(graph).run({"x": X})
    assert {n: a.tolist() for n, a in got.items()} == {n: a.tolist() for n, a in wanted.items()}


@pytest.mark.mnn
@pytest.mark.parametrize("name", CASES)
def test_files_return_them(name, tmp_path):
    outputs, _ = CASES[name]
    wanted = Session(_graph(outputs)).run({"x": X})
    graph = _graph(outputs)
    NameOutputs().run(graph)
    write_model(graph, tmp_path / "m.mnn")
    with MnnEngine(tmp_path / "m.mnn", timeout=20) as engine:
        results = (load(tmp_path / "m.mnn").run({"x": X}), engine.run({"x": X}))
    for got in results:
        assert list(got) == list(wanted)
        assert all(np.array_equal(got[n], wanted[n]) for n in wanted)


def test_graphs_inside_are_named_too():
    outer = _graph([("z", "z")])
    outer.subgraphs["inner"] = _graph([("out", "z"), ("x", "x")])
    assert NameOutputs().run(outer).changes == 1
    assert [value.name for _, value in outer.subgraphs["inner"].outputs] == ["out", "x"]


def test_running_twice_changes_nothing():
    graph = build(lambda op, x: (op.NEG(x), op.ABS(x)), x=X)
    NameOutputs().run(graph)
    assert NameOutputs().run(graph).changes == 0
    assert not any(isinstance(n.op, Identity) for n in graph.nodes)
