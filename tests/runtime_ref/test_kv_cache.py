"""Sessions that keep keys and values: steps give what one run over everything gives, whatever happens in between."""

from __future__ import annotations

import numpy as np
import pytest

from mnnconvert.errors import ConversionError, UsageError
from mnnconvert.ir import F32, Builder, Graph
from mnnconvert.ops.attention import Attention
from mnnconvert.ops.control import If
from mnnconvert.ops.elementwise import Binary
from mnnconvert.ops.matmul import MatMul
from mnnconvert.ops.shape import Reshape
from mnnconvert.runtime_ref.cpu import library
from mnnconvert.runtime_ref.session import Session

BACKENDS = ["reference", *library.runnable_levels()]
HEADS, KEY_HEADS, SIZE = 4, 2, 8
HIDDEN = HEADS * SIZE


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def split(b, x, heads):
    return b.add(Reshape(), x, b.ints(np.array([0, 0, heads, SIZE])))


def block(b, x, index, *rest, kv_cache=True):
    """x + attention(x) with weights of its own."""
    q, k, v = (
        split(b, b.add(MatMul(), x, b.constant(0.3 * numbers(HIDDEN, heads * SIZE, seed=3 * index + i))), heads)
        for i, heads in enumerate((HEADS, KEY_HEADS, KEY_HEADS))
    )
    return b.add(Binary("ADD"), x, b.add(Attention(kv_cache, index), q, k, v, *rest))


def decoder(masked=False, sinks=False, kv_cache=True) -> Graph:
    """Two blocks on x [n,s,32], with a mask [n,1,s,m]."""
    b = Builder(Graph())
    x = b.input("x", F32, ("n", "s", HIDDEN))
    rest = [b.input("mask", F32, ("n", 1, "s", "m"))] if masked else []
    rest += [b.constant(np.zeros((), np.float32))] if sinks and not masked else []
    rest += [b.constant(numbers(HEADS, seed=9))] if sinks else []
    for index in (0, 1):
        x = block(b, x, index, *rest, kv_cache=kv_cache)
    b.output(x, "y")
    return b.graph


@pytest.fixture(params=BACKENDS)
def session(request, monkeypatch):
    """A function that makes sessions on each backend and level."""
    if request.param != "reference":
        monkeypatch.setenv("MNNCONVERT_ISA", request.param)
    backend = "reference" if request.param == "reference" else "cpu"

    def make(graph, threads=1, kv_cache=True):
        return Session(graph, backend, threads, kv_cache=kv_cache)

    return make


def causal(length, batch=1):
    """Random numbers for a mask [n,1,s,s]; nothing behind a query is seen."""
    return np.where(np.tri(length, dtype=bool), numbers(batch, 1, length, length, seed=5), np.float32(-np.inf))


def in_steps(session, x, lengths, mask=None, columns=None):
    results, at = [], 0
    for length in lengths:
        feeds = {"x": x[:, at : at + length]}
        if mask is not None:
            first = at if columns == "new" else 0
            feeds["mask"] = mask[:, :, at : at + length, first : at + length]
        results.append(session.run(feeds)["y"])
        at += length
    return np.concatenate(results, 1)


def close(got, want):
    assert got.shape == want.shape
    assert np.abs(got - want).max(initial=0) <= 1e-5 * np.abs(want).max(initial=0)


@pytest.mark.parametrize("lengths", [(1,) * 5, (3, 1, 1), (40, 30, 1, 1), (150, 1), (0, 4, 0, 1)])
@pytest.mark.parametrize("batch, sinks", [(1, False), (2, True)])
def test_steps_give_what_one_run_gives(session, lengths, batch, sinks):
    x = numbers(batch, sum(lengths), HIDDEN)
    whole = Session(decoder(sinks=sinks), "reference").run({"x": x})["y"]
    close(in_steps(session(decoder(sinks=sinks)), x, lengths), whole)


@pytest.mark.parametrize("columns", ["all", "new"])
def test_masks_for_all_keys_or_the_new_ones(session, columns):
    x, lengths = numbers(2, 12, HIDDEN), (7, 4, 1)
    mask = causal(12, 2)
    if columns == "new":
        mask[:, :, 7:, :7] = mask[:, :, 11:, :11] = 0
    whole = Session(decoder(True), "reference").run({"x": x, "mask": mask})["y"]
    close(in_steps(session(decoder(True)), x, lengths, mask, columns), whole)


def test_any_number_of_threads_gives_the_same_bits(session):
    x = numbers(1, 80, HIDDEN)
    one, two = (in_steps(session(decoder(), threads), x, (70, 1, 9)) for threads in (1, 2))
    assert one.tobytes() == two.tobytes()


def test_without_a_cache_each_run_begins_afresh(session):
    x = numbers(1, 5, HIDDEN)
    fresh = session(decoder(), kv_cache=False)
    assert fresh.run({"x": x})["y"].tobytes() == fresh.run({"x": x})["y"].tobytes()
    fresh.reset()
    stateless = session(decoder(kv_cache=False))
    assert stateless.run({"x": x})["y"].tobytes() == stateless.run({"x": x})["y"].tobytes()


def test_reset_forgets(session):
    x = numbers(1, 5, HIDDEN)
    kept = session(decoder())
    first = kept.run({"x": x})["y"]
    assert np.abs(kept.run({"x": x})["y"] - first).max() > 1e-3
    kept.reset()
    assert kept.run({"x": x})["y"].tobytes() == first.tobytes()
    kept.reset()
    assert kept.run({"x": numbers(3, 2, HIDDEN)})["y"].shape == (3, 2, HIDDEN)


def test_another_batch_is_refused_until_reset(session):
    kept = session(decoder())
    kept.run({"x": numbers(1, 5, HIDDEN)})
    with pytest.raises(UsageError) as caught:
        kept.run({"x": numbers(2, 1, HIDDEN)})
    assert caught.value.diagnostics[0].reference == "bad-input"


def test_profiles_and_failed_runs_leave_no_trace(session):
    x, mask = numbers(1, 6, HIDDEN), causal(6)
    kept = session(decoder(True))
    first = kept.run({"x": x[:, :5], "mask": mask[:, :, :5, :5]})["y"]
    kept.profile({"x": x[:, 5:], "mask": mask[:, :, 5:]})
    with pytest.raises(ConversionError) as caught:
        kept.run({"x": x[:, 5:], "mask": np.zeros((1, 1, 1, 9), np.float32)})
    assert caught.value.diagnostics[0].reference == "run-failed"
    last = kept.run({"x": x[:, 5:], "mask": mask[:, :, 5:]})["y"]
    whole = Session(decoder(True), "reference").run({"x": x, "mask": mask})["y"]
    close(np.concatenate([first, last], 1), whole)


def test_attention_in_a_branch_that_is_chosen_at_run_time(session):
    b = Builder(Graph())
    x, c = b.input("x", F32, ("n", "s", HIDDEN)), b.input("c", np.dtype("int32"), ())
    for name, index in (("then", 0), ("else", 1)):
        inner = Builder(Graph())
        value = inner.input(f"{name}_x", F32, ("n", "s", HIDDEN))
        inner.output(block(inner, value, index), f"{name}_y")
        b.graph.subgraphs[name] = inner.graph
    b.output(b.add(If("then", "else", 1), c, x), "y")
    kept, data = session(b.graph), numbers(1, 6, HIDDEN)
    got = [kept.run({"x": data[:, i : i + 1], "c": np.int32(i % 2)})["y"] for i in range(6)]
    for start in (0, 1):
        single = Builder(Graph())
        single.output(block(single, single.input("x", F32, (1, 3, HIDDEN)), 1 - start), "y")
        want = Session(single.graph, "reference").run({"x": data[:, start::2]})["y"]
        close(np.concatenate(got[start::2], 1), want)


def test_masks_that_do_not_fit(session):
    b = Builder(Graph())
    x, mask = b.input("x", F32, (1, "s", HIDDEN)), b.input("mask", F32, ("a", "b", "c", "d"))
    b.output(block(b, x, 0, mask), "y")
    kept, data, whole = session(b.graph), numbers(1, 6, HIDDEN), causal(6)
    got = [kept.run({"x": data[:, :5], "mask": whole[:, :, :5, :5]})["y"]]
    for shape in ((1, 1, 3, 6), (1, 3, 1, 6), (2, 1, 1, 6), (1, 1, 1, 7)):
        with pytest.raises(ConversionError) as caught:
            kept.run({"x": data[:, 5:], "mask": np.zeros(shape, np.float32)})
        assert caught.value.diagnostics[0].reference == "run-failed"
    got.append(kept.run({"x": data[:, 5:], "mask": whole[:, :, 5:]})["y"])
    afresh = session(b.graph, kv_cache=False).run({"x": data, "mask": whole})["y"]
    close(np.concatenate(got, 1), afresh)
