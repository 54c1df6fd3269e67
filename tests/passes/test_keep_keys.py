"""Decoders that are handed the keys and values of earlier calls: Attention keeps them, and steps give the same."""

from __future__ import annotations

import numpy as np
import pytest
from pass_cases import F32, kinds, noise

from mnnconvert.ir import Builder, Graph, verify
from mnnconvert.ops.arrange import BroadcastTo, Concat
from mnnconvert.ops.elementwise import Binary, Cast, Select
from mnnconvert.ops.generators import Range
from mnnconvert.ops.matmul import MatMul
from mnnconvert.ops.normalization import Softmax
from mnnconvert.ops.shape import Permute, Reshape, ShapeOf, Unsqueeze
from mnnconvert.passes.fuse_attention import FuseAttention
from mnnconvert.passes.pipeline import run_pipeline
from mnnconvert.runtime_ref.session import Session
from mnnconvert.schema.writer import write_model
from mnnconvert.verify.mnn_engine import MnnEngine

HEADS, KEY_HEADS, SIZE, HIDDEN = 4, 2, 8, 32
I32 = np.dtype("int32")


def length(b, x, axis):
    return b.add(Reshape(()), b.add(ShapeOf(axis, axis + 1), x))


def split(b, x, weight, heads):
    y = b.add(MatMul(), x, b.constant(0.3 * noise(HIDDEN, heads * SIZE, seed=weight)))
    return b.add(Permute((0, 2, 1, 3)), b.add(Reshape((0, 0, heads, SIZE)), y))


def repeated(b, x):
    wide = b.add(BroadcastTo(), b.add(Unsqueeze((2,)), x), b.ints(np.array([1, 1, HEADS // KEY_HEADS, 1, 1])))
    return b.add(Reshape((0, HEADS, -1, SIZE)), wide)


def layer(b, x, index, bias, batch, past="past"):
    """One block as exporters of Llama write it, and its longer keys and values."""
    q, k, v = (split(b, x, 3 * index + i, n) for i, n in enumerate((HEADS, KEY_HEADS, KEY_HEADS)))
    lengths = {"key": past, "value": f"{past} of values" if past == "p" else past}
    pasts = [b.input(f"past.{index}.{n}", F32, (batch, KEY_HEADS, size, SIZE)) for n, size in lengths.items()]
    k, v = (b.add(Concat(-2), old, new) for old, new in zip(pasts, (k, v), strict=True))
    scores = b.add(MatMul(), q, b.add(Permute((0, 1, 3, 2)), repeated(b, k)))
    scores = b.add(Binary("MUL"), scores, b.floats(SIZE**-0.5))
    p = b.add(Softmax(-1), b.add(Binary("ADD"), scores, bias))
    y = b.add(Permute((0, 2, 1, 3)), b.add(MatMul(), p, repeated(b, v)))
    return b.add(Binary("ADD"), x, b.add(Reshape((0, 0, HIDDEN)), y)), k, v


def decoder(batch=1, mask="(past+s)", past="past", extra=None, slopes=False) -> Graph:
    """Two layers on x [batch,s,32] and a mask [batch, past + s]: positions follow from the size of the first past."""
    b = Builder(Graph())
    x = b.input("x", F32, (batch, "s", HIDDEN))
    seen = b.input("attention_mask" if past == "p" else "mask", I32, (batch, mask))
    size = b.input("past.size", F32, (batch, KEY_HEADS, past, SIZE)) if extra == "size" else None
    rows = b.add(Range(), b.ints(0), length(b, x, 1), b.ints(1))
    before = b.add(Binary("SUB"), length(b, seen, 1), length(b, x, 1)) if size is None else length(b, size, 2)
    at = b.add(Reshape((-1, 1)), b.add(Binary("ADD"), rows, before))
    count = length(b, seen, 1) if size is None else b.add(Binary("ADD"), before, length(b, x, 1))
    columns = b.add(Range(), b.ints(0), count, b.ints(1))
    allowed = b.add(Binary("GREATER_EQUAL"), at, columns)
    if mask != "m":
        allowed = b.add(Binary("MUL"), allowed, b.add(Reshape((0, 1, 1, -1)), seen))
    bias = b.add(Select(), allowed, b.floats(0.0), b.floats(-1e30))
    if slopes:  # how far back a key is, times a number per head
        behind = b.add(Cast("DT_FLOAT"), b.add(Binary("SUB"), columns, at))
        slope = b.constant(np.array([0.5, 0.25, 0.125, 0.0625], F32).reshape(4, 1, 1))
        bias = b.add(Binary("ADD"), b.add(Binary("MUL"), b.add(Unsqueeze((0,)), behind), slope), bias)
    angles = b.add(Unsqueeze((0,)), b.add(Cast("DT_FLOAT"), at))
    y = b.add(Binary("ADD"), x, b.add(Binary("MUL"), angles, b.floats(0.1)))
    outputs = []
    for index in (0, 1):
        y, k, v = layer(b, y, index, bias, batch, past)
        outputs += [(k, f"present.{index}.key"), (v, f"present.{index}.value")]
    b.output(y, "y")
    for value, name in outputs:
        b.output(value, name)
    if extra == "output":
        b.output(b.add(Binary("MUL"), outputs[0][0], b.floats(2.0)), "twice")
    verify(b.graph)
    return b.graph


def sized(graph: Graph) -> Graph:
    """The same with the length of the past asked of an input that holds one."""
    old = next(v for v in graph.inputs if v.name == "past.size")
    new = next(v for v in graph.inputs if v.name == "past.0.key")
    graph.replace_value(old, new)
    graph.inputs.remove(old)
    return graph


def by_hand(graph, x, lengths):
    """What the graph gives when its longer keys and values are handed back to it."""
    session, results, at = Session(graph), [], 0
    state = {v.name: np.zeros((len(x), KEY_HEADS, 0, SIZE), F32) for v in graph.inputs if v.name.startswith("past")}
    for n in lengths:
        mask = np.ones((len(x), at + n), I32)
        got = session.run({"x": x[:, at : at + n], graph.inputs[1].name: mask, **state})
        state = {name: got[name.replace("past", "present")] for name in state}
        results.append(got["y"])
        at += n
    return np.concatenate(results, 1)


def in_steps(session, x, lengths):
    results, at = [], 0
    for n in lengths:
        mask = np.ones((len(x), at + n), I32)
        results.append(session.run({"x": x[:, at : at + n], session.inputs[1].name: mask})["y"])
        at += n
    return np.concatenate(results, 1)


def fused(graph, target="mnn-3.6.1"):
    reports = run_pipeline(graph, options={"transformer_fuse": True}, target=target)
    return next(r for r in reports if r.name == "fuse-attention")


@pytest.mark.parametrize("asked", ["of the mask", "of the past"])
def test_steps_give_what_the_past_as_inputs_gives(asked, tmp_path):
    x, lengths = noise(1, 9, HIDDEN), (4, 1, 1, 3)

    def make():
        return sized(decoder(extra="size")) if asked == "of the past" else decoder()

    want = by_hand(make(), x, lengths)
    g = make()
    report = fused(g)
    assert (report.changes, report.misses) == (2, [])
    assert [v.name for v in g.inputs] == ["x", "mask"]
    assert [name for name, _ in g.outputs] == ["y"]
    assert [n.op.kv_cache for n in g.nodes if n.op.kind == "Attention"] == [True, True]
    for backend in ("cpu", "reference"):
        got = in_steps(Session(g, backend, kv_cache=True), x, lengths)
        assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
    write_model(g, tmp_path / "m.mnn")
    feeds = {"x": x, "mask": np.ones((1, 9), I32)}
    with MnnEngine(tmp_path / "m.mnn") as engine:
        assert np.abs(engine.run(feeds)["y"] - want).max() <= 1e-4 * np.abs(want).max()


def test_an_op_for_each_head_keeps_its_keys():
    x, lengths = noise(1, 9, HIDDEN), (4, 1, 1, 3)
    want = by_hand(decoder(slopes=True), x, lengths)
    g = decoder(slopes=True)
    report = fused(g)
    assert (report.changes, report.misses) == (2, [])
    assert [n.op.layer_index for n in g.nodes if n.op.kind == "Attention"] == list(range(2 * HEADS))
    got = in_steps(Session(g, kv_cache=True), x, lengths)
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


def test_another_runtime_keeps_the_keys_of_several_sequences():
    x, lengths = noise(2, 6, HIDDEN), (3, 1, 2)
    want = by_hand(decoder(batch="n"), x, lengths)
    g = decoder(batch="n")
    assert fused(g, target="none").changes == 2
    got = in_steps(Session(g, kv_cache=True), x, lengths)
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


def test_the_mask_of_an_exporter_that_names_no_sums_is_taken_to_have_a_column_for_each_key():
    x, lengths = noise(1, 6, HIDDEN), (3, 1, 2)
    want = by_hand(sized(decoder(mask="m", past="p", extra="size")), x, lengths)
    g = sized(decoder(mask="m", past="p", extra="size"))
    report = fused(g)
    assert report.changes == 2
    assert "'attention_mask' is taken to be that of past and new" in report.notes[1]
    got = in_steps(Session(g, kv_cache=True), x, lengths)
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


STAYS = {
    "several sequences": ({"batch": "n"}, "--batch 1"),
    "a mask of another size": ({"mask": "m"}, "follows from no other input"),
    "a past of fixed length": ({"past": 4, "mask": "(s+4)"}, "not known to have one length"),
    "another reader": ({"extra": "output"}, "'twice' depends on the past"),
}


@pytest.mark.parametrize("reason", STAYS)
def test_what_cannot_be_kept_stays_an_input_and_says_why(reason):
    options, words = STAYS[reason]
    g = decoder(**{"extra": "size", **options}) if reason == "a mask of another size" else decoder(**options)
    g = sized(g) if reason == "a mask of another size" else g
    before = [v.name for v in g.inputs]
    report = fused(g)
    assert report.changes == 0
    assert words in report.misses[0]
    assert all("queries on" in miss for miss in report.misses[1:])
    assert [v.name for v in g.inputs] == before
    assert "Attention" not in kinds(g)


def test_inputs_of_an_inner_graph_stay():
    inner, b = decoder(), Builder(Graph())
    b.graph.subgraphs["body"] = inner
    b.output(b.input("x", F32, (1,)), "y")
    before = [v.name for v in inner.inputs]
    assert FuseAttention().run(b.graph).changes == 0
    assert [v.name for v in inner.inputs] == before
