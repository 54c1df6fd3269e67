"""Programs: stages where sizes depend on data, several shapes, any value asked for, threads, profiles."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from mnnconvert.errors import UsageError
from mnnconvert.ir import F32, I32, Builder, Graph
from mnnconvert.ops.control import If
from mnnconvert.ops.elementwise import Binary, Unary
from mnnconvert.ops.search import Where
from mnnconvert.ops.shape import Reshape, ShapeOf, Size
from mnnconvert.runtime_ref.cpu import library
from mnnconvert.runtime_ref.session import Session

pytestmark = pytest.mark.skipif(not library.runnable_levels(), reason="no compiled kernels")


def data_dependent():
    """y = where(x != 0) * 2, of as many rows as x has non-zeros; z = -x reshaped to the shape of x."""
    b = Builder(Graph())
    x = b.input("x", I32, ("n",))
    f = b.input("f", F32, ("n", 3))
    rows = b.add(Where(), x, name="rows")
    b.output(b.add(Binary("MUL"), rows, b.ints(2), name="y"))
    shape = b.add(ShapeOf(), f, name="shape")
    b.output(b.add(Reshape(), b.add(Unary("NEG"), f, name="n"), shape, name="z"))
    return b.graph


@pytest.mark.parametrize("n", [1, 4, 9])
def test_sizes_that_depend_on_data(n):
    graph = data_dependent()
    session = Session(graph, "cpu")
    for seed in range(3):
        rng = np.random.default_rng(seed)
        feeds = {"x": rng.integers(0, 2, n).astype(np.int32), "f": rng.standard_normal((n, 3)).astype(np.float32)}
        expected = Session(graph, "reference").run(feeds)
        got = session.run(feeds)
        for name, want in expected.items():
            np.testing.assert_array_equal(got[name], want)


def chain():
    b = Builder(Graph())
    x = b.input("x", F32, ("n", 5))
    a = b.add(Unary("ABS"), x, name="a")
    e = b.add(Unary("EXP"), a, name="e")
    b.output(b.add(Binary("ADD"), e, a, name="y"))
    b.output(x, "same")
    return b.graph


def test_any_value_can_be_asked_for():
    x = np.linspace(-1, 1, 15, dtype=np.float32).reshape(3, 5)
    got = Session(chain(), "cpu").run({"x": x}, ["a", "y", "same"])
    np.testing.assert_array_equal(got["a"], np.abs(x))
    np.testing.assert_allclose(got["y"], np.exp(np.abs(x)) + np.abs(x), rtol=1e-6)
    np.testing.assert_array_equal(got["same"], x)


def test_results_belong_to_the_caller():
    session = Session(chain(), "cpu")
    x = np.ones((2, 5), np.float32)
    first = session.run({"x": x})
    kept = first["y"].copy()
    first["same"][...] = 7
    session.run({"x": 3 * x})
    np.testing.assert_array_equal(first["y"], kept)
    np.testing.assert_array_equal(x, 1)


def test_many_shapes_in_turn():
    session = Session(chain(), "cpu")
    for n in [*range(1, 40), 1, 2, 3]:
        x = np.full((n, 5), 0.5, np.float32)
        np.testing.assert_allclose(session.run({"x": x})["y"], np.exp(x) + x, rtol=1e-6)


def test_feeds_may_be_strided_and_empty():
    session = Session(chain(), "cpu")
    x = np.arange(60, dtype=np.float32).reshape(6, 10)[:, ::2] / 60
    np.testing.assert_allclose(session.run({"x": x})["y"], np.exp(x) + x, rtol=1e-6)
    assert session.run({"x": np.empty((0, 5), np.float32)})["y"].shape == (0, 5)


def test_several_threads_may_share_a_session():
    session, wrong = Session(chain(), "cpu"), []

    def work(seed):
        x = np.random.default_rng(seed).standard_normal((50 + seed, 5)).astype(np.float32)
        for _ in range(30):
            y = session.run({"x": x})["y"]
            if not np.allclose(y, np.exp(np.abs(x)) + np.abs(x), rtol=1e-5):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong


def test_profile_names_kernels_or_the_reference():
    rows = Session(chain(), "cpu").profile({"x": np.ones((2, 5), np.float32)})
    assert rows and all(row.seconds >= 0 and row.kernel for row in rows)
    assert {row.kernel for row in Session(chain(), "reference").profile({"x": np.ones((2, 5), np.float32)})} == {
        "reference"
    }


def test_a_level_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv("MNNCONVERT_ISA", "avx1024")
    with pytest.raises(UsageError, match="avx1024"):
        Session(chain(), "cpu")


def test_without_kernels_numpy_computes_and_says_so(monkeypatch):
    monkeypatch.setattr(library, "runnable_levels", lambda: ())
    monkeypatch.delenv("MNNCONVERT_ISA", raising=False)
    session = Session(chain(), "cpu")
    assert session.backend == "reference"
    assert session.run({"x": np.zeros((1, 5), np.float32)})["y"].tolist() == [[1.0] * 5]


def branches(condition):
    """y, z = if(condition): x exp, -x  else: x, 2 x, twice with the same graphs; the condition follows from a shape."""
    b = Builder(Graph())
    for name, functions in (("yes", ("EXP", "NEG")), ("no", ("ABS", "SQUARE"))):
        inner = Builder(Graph(name=name))
        x = inner.input("x", F32, ("n", 5))
        for i, function in enumerate(functions):
            inner.output(inner.add(Unary(function), x, name=f"{name}{i}"))
        b.graph.subgraphs[name] = inner.graph
    x = b.input("x", F32, ("n", 5))
    known = b.add(Binary("GREATER"), b.add(Size(), x), b.ints(20), name="c")
    chosen = known if condition == "known" else b.input("k", I32, ())
    y, z = b.add(If("yes", "no"), chosen, x, names=["y", "z"])
    u, _ = b.add(If("yes", "no"), chosen, y, names=["u", "v"])
    b.output(b.add(Binary("ADD"), u, z, name="out"))
    b.output(y)
    return b.graph


@pytest.mark.parametrize("rows", [2, 9])
@pytest.mark.parametrize("condition", ["known", "fed"])
def test_branches(rows, condition):
    graph = branches(condition)
    session = Session(graph, "cpu")
    for seed in range(2):
        feeds = {"x": np.random.default_rng(seed).standard_normal((rows, 5)).astype(np.float32)}
        if condition == "fed":
            feeds["k"] = np.array(seed, np.int32)
        expected, got = Session(graph, "reference").run(feeds), session.run(feeds)
        for name, want in expected.items():
            np.testing.assert_allclose(got[name], want, rtol=1e-6)
