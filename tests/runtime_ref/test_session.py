"""Sessions: feeds are checked and converted, any value can be asked for, failures name the op."""

import gc
import weakref

import ml_dtypes
import numpy as np
import pytest

from mnnconvert.errors import ConversionError, UsageError
from mnnconvert.ir import F32, I32, Builder, Graph
from mnnconvert.ops.elementwise import Binary, Unary
from mnnconvert.ops.layout import Opaque
from mnnconvert.runtime_ref.session import Session


@pytest.fixture
def session():
    """z = -(|x| + y) with x [n,2], y [n,1]; k is int32 [2]."""
    b = Builder(Graph())
    x, y, k = b.input("x", F32, ("n", 2)), b.input("y", F32, ("n", 1)), b.input("k", I32, (2,))
    b.output(b.add(Unary("NEG"), b.add(Binary("ADD"), b.add(Unary("ABS"), x, name="a"), y, name="s"), name="z"))
    b.output(b.add(Binary("GREATER"), k, b.ints(0), name="positive"))
    b.graph.source_types["positive"] = "bool"
    b.graph.source_types["k"] = "int64"
    return Session(b.graph)


def feeds(n=3):
    return {"x": np.ones((n, 2), np.float32), "y": np.zeros((n, 1), np.float32), "k": np.array([1, -1], np.int32)}


@pytest.mark.parametrize("n", [1, 3, 0])
def test_open_sizes_may_change_from_run_to_run(session, n):
    out = session.run(feeds(n))
    np.testing.assert_array_equal(out["z"], -np.ones((n, 2)))


def test_types_are_those_of_the_source(session):
    assert [(i.name, i.dtype) for i in session.inputs][-1] == ("k", np.dtype("int64"))
    out = session.run(feeds())["positive"]
    assert out.dtype == np.bool_ and out.tolist() == [True, False]


def test_any_value_can_be_asked_for(session):
    out = session.run(feeds(), outputs=["s", "z", "a"])
    assert list(out) == ["s", "z", "a"] and out["a"].shape == (3, 2)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.float32])
def test_floats_of_other_widths_are_converted(session, dtype):
    given = feeds() | {"x": np.ones((3, 2), dtype)}
    assert session.run(given)["z"].dtype == np.float32


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_short_floats_are_widened(session, name):
    x = np.array([[0.5, -2.0]], getattr(ml_dtypes, name))
    result = session.run({**feeds(1), "x": x}, ["z"])["z"]
    np.testing.assert_array_equal(result, [[-0.5, -2.0]])


def test_short_integers_are_widened_and_unknown_types_refused(session):
    k = np.array([-8, 7], ml_dtypes.int4)
    np.testing.assert_array_equal(session.run({**feeds(1), "k": k}, ["positive"])["positive"], [False, True])
    with pytest.raises(UsageError, match="takes float32"):
        session.run({**feeds(1), "x": np.zeros((1, 2), "V8")})
    with pytest.raises(UsageError, match="takes float32"):
        session.run({**feeds(1), "x": np.zeros((1, 2), ml_dtypes.int4)})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x": np.ones((3, 3), np.float32)}, r"'x' takes \[n,2\], not \[3, 3\]"),
        ({"x": np.ones(3, np.float32)}, r"'x' takes \[n,2\]"),
        ({"y": np.ones((4, 1), np.float32)}, r"'y' takes \[n,1\], not \[4, 1\]"),
        ({"x": np.ones((3, 2), np.int64)}, "'x' takes float32, not int64"),
        ({"k": np.array([2**40, 1])}, "int32 cannot hold"),
        ({"k": np.array([0.5, 1.0])}, "'k' takes int32, not float64"),
        ({"q": np.ones(1)}, "there is no input 'q'"),
        ({"x": None}, "the input 'x' is missing"),
    ],
)
def test_wrong_feeds_are_named(session, change, words):
    given = {k: v for k, v in (feeds() | change).items() if v is not None}
    with pytest.raises(UsageError, match=words) as caught:
        session.run(given)
    assert caught.value.diagnostics[0].reference == "bad-input"


def test_int64_feeds_that_fit_are_taken(session):
    assert session.run(feeds() | {"k": np.array([5, -7], np.int64)})["positive"].tolist() == [True, False]


def test_floats_beyond_float32_are_refused_and_infinities_are_taken(session):
    far = np.array([[1e300], [0], [1]])
    with pytest.raises(UsageError, match="cannot hold") as caught:
        session.run(feeds() | {"y": far})
    assert caught.value.diagnostics[0].reference == "bad-input"
    assert np.isinf(session.run(feeds() | {"y": np.where(far > 1e38, np.inf, far)})["z"][0]).all()


def test_unknown_outputs_are_named(session):
    with pytest.raises(UsageError, match="no value 'nothing'"):
        session.run(feeds(), outputs=["nothing"])


def test_profile_names_every_op(session):
    times = session.profile(feeds())
    assert sorted(name for t in times for name in (t.name, *t.along)) == ["a", "positive", "s", "z"]
    assert all(t.seconds >= 0 for t in times) and times[0].nbytes == 24


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_weights_go_with_the_session_without_a_search_for_cycles(session, backend):
    """Who judges hundreds of codings runs hundreds of sessions, each with weights of its own."""
    mine = Session(session.graph, backend)
    mine.run(feeds())
    executor = weakref.ref(mine._executor)
    gc.disable()
    try:
        del mine
        assert executor() is None
    finally:
        gc.enable()


def test_a_failing_op_is_named():
    b = Builder(Graph())
    x, y = b.input("x", F32, ("n",)), b.input("y", F32, ("m",))
    b.output(b.add(Binary("ADD"), x, y, name="sum"))
    with pytest.raises(ConversionError) as caught:
        Session(b.graph).run({"x": np.ones(2, np.float32), "y": np.ones(3, np.float32)})
    problem = caught.value.diagnostics[0]
    assert problem.reference == "run-failed" and problem.context["node"] == "sum"


def test_unknown_ops_are_refused_before_a_run():
    b = Builder(Graph())
    b.output(b.add(Opaque(41, "NonMaxSuppression", None, 1), b.input("x", F32, (2,)), name="y"))
    with pytest.raises(ConversionError, match="NonMaxSuppression") as caught:
        Session(b.graph)
    assert caught.value.diagnostics[0].reference == "unsupported-op"
