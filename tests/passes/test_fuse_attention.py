"""Attention in the spellings of exporters, in both runtimes, and near misses with their reasons."""

from __future__ import annotations

import numpy as np
import pytest
from pass_cases import build, check_pass, feeds_for, kinds, noise

from mnnconvert.ir import Graph
from mnnconvert.ops.arrange import BroadcastTo, Concat
from mnnconvert.ops.attention import Attention
from mnnconvert.ops.elementwise import Binary, Select
from mnnconvert.ops.matmul import MatMul
from mnnconvert.ops.shape import Reshape
from mnnconvert.passes.algebra import CanonicalAlgebra
from mnnconvert.passes.fuse_attention import FuseAttention
from mnnconvert.passes.names import NameOutputs
from mnnconvert.passes.pipeline import run_pipeline
from mnnconvert.runtime_ref.session import Session
from mnnconvert.schema.writer import write_model
from mnnconvert.verify.mnn_engine import MnnEngine

SIZE = 8
LOW = np.finfo(np.float32).min
OUT = (0, 2, 1, 3)


def number(op, value):
    return op.constant(np.array(value, np.float32))


def split(op, x, heads, order=OUT):
    return op.Permute(op.add(Reshape((0, 0, heads, SIZE)), x), dims=order)


def merged(op, y):
    return op.add(Reshape((0, 0, -1)), op.Permute(y, dims=OUT))


def times(op, q, k):
    return op.add(MatMul(False, True), q, k)


def causal(size, low=-np.inf):
    return np.where(np.tri(size, dtype=bool), 0, low).astype(np.float32)[None, None]


def projected(op, x, *heads):
    """q, k, v [batch, queries, heads * 8] of x [batch, queries, 16]."""
    return [op.MatMul(x, op.constant(0.3 * noise(16, n * SIZE, seed=i), f"w{i}")) for i, n in enumerate(heads)]


def bert(op, x, mask):
    """The TorchScript exporter: a key transposed by one permutation, a division, a mask per sequence."""
    q, k, v = projected(op, x, 4, 4, 4)
    scores = op.Div(op.MatMul(split(op, q, 4), split(op, k, 4, (0, 2, 3, 1))), 8**0.5)
    return merged(op, op.MatMul(op.Softmax(op.Add(scores, mask)), split(op, v, 4)))


def dynamo(op, x, mask=None, guard=True):
    """torch.export's scaled_dot_product_attention: both sides scaled, rows of NaN become 0."""
    q, k, v = projected(op, x, 4, 4, 4)
    q, k = op.Mul(split(op, q, 4), 8**-0.25), op.Mul(op.Permute(split(op, k, 4), dims=(0, 1, 3, 2)), 8**-0.25)
    scores = op.MatMul(q, k)
    p = op.Softmax(scores if mask is None else op.Add(scores, mask))
    p = op.add(Select(), op.Notequal(p, p), number(op, 0), p) if guard else p
    return merged(op, op.MatMul(p, split(op, v, 4)))


def gpt2(op, x):
    """The TorchScript exporter of GPT-2: a table of what may be seen, and the lowest number elsewhere."""
    q, k, v = projected(op, x, 4, 4, 4)
    scores = op.Div(times(op, split(op, q, 4), split(op, k, 4)), 8**0.5)
    seen, low = op.constant(np.tri(5, dtype=np.int32)[None, None]), number(op, LOW)
    return merged(op, op.MatMul(op.Softmax(op.add(Select(), seen, scores, low)), split(op, v, 4)))


def llama(op, x, mask):
    """repeat_kv of Llama and its kin: keys and values broadcast along an axis of their own."""
    q, k, v = projected(op, x, 4, 2, 2)

    def repeated(x):
        wide = op.add(
            BroadcastTo(), op.Unsqueeze(split(op, x, 2), axes=(2,)), op.constant(np.array([1, 1, 2, 1, 1], np.int32))
        )
        return op.add(Reshape((0, 4, -1, SIZE)), wide)

    scores = op.Mul(op.MatMul(split(op, q, 4), op.Permute(repeated(k), dims=(0, 1, 3, 2))), 8**-0.5)
    return merged(op, op.MatMul(op.Softmax(op.Add(scores, mask)), repeated(v)))


def gemma(op, x, mask):
    """One key head for all, which products broadcast themselves."""
    q, k, v = projected(op, x, 4, 1, 1)
    scores = op.Mul(times(op, split(op, q, 4), split(op, k, 1)), 0.5)
    return merged(op, op.MatMul(op.Softmax(op.Add(scores, mask)), split(op, v, 1)))


def optimum_gather(op, x, mask):
    """Heads repeated by indices, as onnxruntime's own grouped attention is imported."""
    q, k, v = projected(op, x, 4, 2, 2)
    k, v = (op.GatherV2(split(op, t, 2), op.constant(np.array([0, 0, 1, 1], np.int32)), axis=1) for t in (k, v))
    scores = op.Mul(times(op, split(op, q, 4), k), 8**-0.5)
    seen = op.add(Binary("GREATER"), mask, number(op, -1))
    scores = op.add(Select(), seen, scores, number(op, -np.inf))
    p = op.add(Select(), seen, op.Softmax(scores), number(op, 0))
    return merged(op, op.MatMul(p, v))


def with_sinks(op, scores, sinks=(1, 4, 1, 1), end=-1, best="MAXIMUM"):
    """Probabilities beside one more score per head, as GPT-OSS has them."""
    wide = op.add(BroadcastTo(), op.constant(noise(*sinks), "sinks"), op.constant(np.array([1, 1, 5, 1], np.int32)))
    joined = op.add(Concat(-1), scores, wide)
    less = op.Sub(joined, op.Reduction(joined, operation=best, dims=(-1,), keep_dims=True))
    bounds = [op.constant(np.array([n], np.int32)) for n in (0, end, -1, 1)]
    return op.StridedSlice(op.Softmax(less), *bounds)


def gpt_oss(op, x, mask):
    """A sink beside the scores of each head, whose probability is cut off."""
    q, k, v = projected(op, x, 4, 4, 4)
    scores = op.Add(op.Mul(times(op, split(op, q, 4), split(op, k, 4)), 8**-0.5), mask)
    return merged(op, op.MatMul(with_sinks(op, scores), split(op, v, 4)))


def opt(op, x):
    """OPT, BART and nn.MultiheadAttention: heads of one sequence as a batch of matrices."""
    q, k, v = (op.add(Reshape((-1, 0, SIZE)), op.Permute(op.add(Reshape((-1, 0, 4, SIZE)), t), dims=(0, 2, 1, 3)))
               for t in projected(op, x, 4, 4, 4))  # fmt: skip
    q, k, v = (op.add(Reshape((4, 5, SIZE)), t) for t in (q, k, v))
    p = op.Softmax(op.Add(times(op, op.Mul(q, 8**-0.5), k), op.constant(causal(5)[0], "mask")))
    y = op.Permute(op.MatMul(p, v), dims=(1, 0, 2))
    return op.add(Reshape((1, 5, 32)), y)


def keras(op, x):
    """keras.layers.MultiHeadAttention: einsums whose results keep positions in front, no mask."""
    q, k, v = (op.add(Reshape((0, 0, 4, SIZE)), t) for t in projected(op, x, 4, 4, 4))
    q, k, v = op.Permute(op.Mul(q, 8**-0.5), dims=OUT), op.Permute(k, dims=(0, 2, 3, 1)), op.Permute(v, dims=OUT)
    return merged(op, op.MatMul(op.Softmax(op.MatMul(q, k)), v))


def keras_attention(op, x):
    """keras.layers.Attention: one head, and no axis for it, so that sequences stand in its place."""
    q, k, v = projected(op, x, 1, 1, 1)
    return op.MatMul(op.Softmax(op.Mul(times(op, q, k), 0.25)), v)


def keras_causal(op, x):
    """keras.layers.MultiHeadAttention: a mask times ones in the shape of the scores."""
    q, k, v = (split(op, t, 4) for t in projected(op, x, 4, 4, 4))
    scores = times(op, op.Mul(q, 8**-0.5), k)
    ones = op.Fill(op.ShapeOf(scores), op.constant(np.array(1, np.int32)))
    seen = op.Mul(ones, op.constant(np.tri(5, dtype=np.int32)[None, None]))
    return merged(op, op.MatMul(op.Softmax(op.add(Select(), seen, scores, number(op, -1e30))), v))


def t5(op, x, bias, mask):
    """Relative positions, of which each head has its own, and padding."""
    q, k, v = projected(op, x, 4, 4, 4)
    scores = op.Add(times(op, split(op, q, 4), split(op, k, 4)), op.Add(bias, mask))
    return merged(op, op.MatMul(op.Softmax(scores), split(op, v, 4)))


def swin(op, x):
    """A table of relative positions for windows, whose keys are shared here as well."""
    q, k, v = projected(op, x, 4, 2, 2)
    k, v = (op.GatherV2(split(op, t, 2), op.constant(np.array([0, 0, 1, 1], np.int32)), axis=1) for t in (k, v))
    scores = op.Add(op.Mul(times(op, split(op, q, 4), k), 8**-0.5), op.constant(noise(1, 4, 5, 5, seed=7), "table"))
    return merged(op, op.MatMul(op.Softmax(scores), v))


def flat(op, x, mask):
    """Matrices of one sequence, each with its mask."""
    q, k, v = (op.Permute(op.add(Reshape((-1, 4, SIZE)), t), dims=(1, 0, 2)) for t in projected(op, x, 4, 4, 4))
    return op.MatMul(op.Softmax(op.Add(times(op, q, k), mask)), v)


def bloom(op, x, slopes, mask):
    """Slopes per head are added to matrices, a mask to a view of them that has an axis for sequences."""
    q, k, v = (op.Permute(op.add(Reshape((-1, 4, SIZE)), t), dims=(1, 0, 2)) for t in projected(op, x, 4, 4, 4))
    scores = op.Unsqueeze(op.Add(times(op, q, k), slopes), axes=(0,))
    return op.MatMul(op.Squeeze(op.Softmax(op.Add(scores, mask)), axes=(0,)), v)


PER_HEAD = {
    "T5": (t5, {"x": ("n", "s", 16), "bias": (1, 4, "s", "s"), "mask": ("n", 1, 1, "s")}),
    "T5, one sequence": (t5, {"x": (1, "s", 16), "bias": (1, 4, "s", "s"), "mask": (1, 1, 1, "s")}),
    "Swin": (swin, {"x": ("n", 5, 16)}),
    "Swin, one window": (swin, {"x": (1, 5, 16)}),
    "flat": (flat, {"x": (1, "s", 16), "mask": (4, "s", "s")}),
    "Bloom": (bloom, {"x": (1, "s", 16), "slopes": (4, 1, "s"), "mask": (1, 1, "s", "s")}),
    "rows without a key": (dynamo, {"x": ("n", "s", 16), "mask": (1, 4, "s", "s")}),
    "sinks": (gpt_oss, {"x": (1, 5, 16), "mask": (1, 4, 5, 5)}),
}
SPELLINGS = {
    "BERT, TorchScript": (bert, {"x": ("n", "s", 16), "mask": ("n", 1, 1, "s")}),
    "BERT, one sequence": (bert, {"x": (1, "s", 16), "mask": (1, 1, 1, "s")}),
    "BERT, fixed": (bert, {"x": (2, 5, 16), "mask": (2, 1, 1, 5)}),
    "a mask for all sequences": (bert, {"x": ("n", "s", 16), "mask": (1, 1, "s", "s")}),
    "ViT, torch.export": (dynamo, {"x": ("n", 5, 16)}),
    "ViT, torch.export, one picture": (dynamo, {"x": (1, 5, 16)}),
    "torch.export with a mask": (dynamo, {"x": ("n", "s", 16), "mask": ("n", 1, "s", "s")}),
    "GPT-2, TorchScript": (gpt2, {"x": ("n", 5, 16)}),
    "Llama": (llama, {"x": (1, "s", 16), "mask": (1, 1, "s", "s")}),
    "Gemma": (gemma, {"x": ("n", "s", 16), "mask": ("n", 1, "s", "s")}),
    "grouped by indices": (optimum_gather, {"x": (1, "s", 16), "mask": (1, 1, "s", "s")}),
    "GPT-OSS": (gpt_oss, {"x": (1, 5, 16), "mask": (1, 1, 5, 5)}),
    "OPT": (opt, {"x": (1, 5, 16)}),
    "keras": (keras, {"x": ("n", "s", 16)}),
    "keras, one head": (keras_attention, {"x": ("n", "s", 16)}),
    "keras, causal": (keras_causal, {"x": ("n", 5, 16)}),
}  # fmt: skip


def fused(graph: Graph) -> list[str]:
    """What the nodes are when all passes have run."""
    run_pipeline(graph, options={"transformer_fuse": True})
    return kinds(graph)


@pytest.mark.parametrize("target", ["mnn-3.6.1", "none"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_spellings_of_exporters(spelling, target):
    make, inputs = SPELLINGS[spelling]
    g = build(make, **inputs)
    CanonicalAlgebra().run(g)
    report = check_pass(FuseAttention(target), g, rtol=1e-5, atol=1e-6)
    assert (report.changes, report.misses) == (1, [])
    assert kinds(g).count("Attention") == 1
    assert "Softmax" not in kinds(g)


@pytest.mark.parametrize("spelling", PER_HEAD)
def test_masks_per_head_make_an_op_for_each(spelling):
    make, inputs = PER_HEAD[spelling]
    for target, count in (("mnn-3.6.1", 4), ("none", 1)):
        g = build(make, **inputs)
        CanonicalAlgebra().run(g)
        report = check_pass(FuseAttention(target), g, rtol=1e-5, atol=1e-6)
        elsewhere = target == "none" and spelling == "rows without a key"
        assert (report.changes, len(report.misses)) == ((0, 1) if elsewhere else (1, 0))
        assert kinds(g).count("Attention") == (0 if elsewhere else count)


def test_layers_share_the_parts_of_a_mask(tmp_path):
    def twice(op, x, bias, mask):
        return t5(op, op.MatMul(t5(op, x, bias, mask), op.constant(noise(32, 16), "back")), bias, mask)

    g = build(twice, x=(1, "s", 16), bias=(1, 4, "s", "s"), mask=(1, 1, 1, "s"))
    made = fused(g)
    assert (made.count("Attention"), made.count("Slice")) == (8, 7)


@pytest.mark.parametrize(("spellings", "count"), [(SPELLINGS, 1), (PER_HEAD, 4)], ids=["one", "per head"])
def test_both_runtimes_agree_with_the_pieces(spellings, count, tmp_path):
    for number, (make, inputs) in enumerate(spellings.values()):
        g, path = build(make, **inputs), tmp_path / f"{number}.mnn"
        cases = [feeds_for(g, 3), feeds_for(g, 6)]
        wanted = [Session(g, "reference").run(feeds)["y"] for feeds in cases]
        assert fused(g).count("Attention") == count
        write_model(g, path)
        with MnnEngine(path) as engine:
            for feeds, want in zip(cases, wanted, strict=True):
                for got in (engine.run(feeds)["y"], Session(g).run(feeds)["y"]):
                    assert got.shape == want.shape
                    assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()


WRONG = {  # in MNN 3.6.1: queries, keys, values, mask
    "a mask per head": ((1, 6, 4, SIZE), (1, 6, 4, SIZE), (1, 6, 4, SIZE), (1, 4, 6, 6)),
    "heads as sequences": ((4, 6, 1, SIZE), (4, 6, 1, SIZE), (4, 6, 1, SIZE), (4, 1, 6, 6)),
    "sequences": ((2, 6, 4, SIZE), (2, 6, 4, SIZE), (2, 6, 4, SIZE), (1, 1, 6, 6)),
    "more keys": ((1, 6, 4, SIZE), (1, 9, 4, SIZE), (1, 9, 4, SIZE), (1, 1, 6, 9)),
    "a query and more keys": ((1, 1, 4, SIZE), (1, 9, 4, SIZE), (1, 9, 4, SIZE), (1, 1, 1, 9)),
    "narrow values": ((1, 6, 4, SIZE), (1, 6, 4, SIZE), (1, 6, 4, 6), (1, 1, 6, 6)),
}


@pytest.mark.mnn
@pytest.mark.parametrize("what", [*WRONG, "one mask"])
def test_what_the_released_runtime_gets_wrong(what, tmp_path):
    """Why heads, sequences and keys are arranged as they are."""
    shapes = WRONG.get(what, (*[(1, 6, 4, SIZE)] * 3, (1, 1, 6, 6)))
    feeds = {name: noise(*shape, seed=i) for i, (name, shape) in enumerate(zip("qkvm", shapes, strict=True))}

    def run(engine_of, **given):
        g = build(lambda op, **x: op.add(Attention(False), *x.values()), **{n: x.shape for n, x in given.items()})
        return engine_of(g).run(given)["y"]

    def released(g):
        NameOutputs().run(g)
        write_model(g, tmp_path / "m.mnn")
        return MnnEngine(tmp_path / "m.mnn")

    got, want = run(released, **feeds), run(Session, **feeds)
    assert (got.shape == want.shape and np.allclose(got, want, rtol=0, atol=1e-5)) == (what not in WRONG)
    if what == "a mask per head":
        first = run(Session, **{**feeds, "m": feeds["m"][:, :1]})
        np.testing.assert_allclose(got, first, rtol=0, atol=1e-5)


def test_a_known_causal_mask_needs_no_operand():
    g = build(gpt2, x=("n", 5, 16))
    FuseAttention().run(g)
    assert next(len(n.inputs) for n in g.nodes if n.op.kind == "Attention") == 3


def test_one_sequence_is_not_moved_about():
    g = build(bert, x=(1, "s", 16), mask=(1, 1, "s", "s"))
    assert "Permute" not in fused(g)


def test_attentions_are_numbered():
    g = build(lambda op, x: gpt2(op, op.MatMul(gpt2(op, x), op.constant(noise(32, 16), "back"))), x=("n", 5, 16))
    assert FuseAttention().run(g).changes == 2
    assert [n.op.layer_index for n in g.nodes if n.op.kind == "Attention"] == [0, 1]


@pytest.mark.parametrize("target", ["mnn-3.6.1", "none"])
def test_rows_that_see_no_key_are_zero(target, tmp_path):
    inputs = {"x": ("n", "s", 16), "mask": ("n", 1, "s", "s")}
    mask = np.where(np.tri(5, dtype=bool), 0, -np.inf).astype(np.float32) * np.ones((2, 1, 1, 1), np.float32)
    mask[1, 0, 2:4] = -np.inf
    feeds = {"x": noise(2, 5, 16), "mask": np.nan_to_num(mask, nan=0.0, neginf=-np.inf)}
    g = build(dynamo, **inputs)
    want = Session(g, "reference").run(feeds)["y"]
    assert not want[1, 2:4].any()
    assert not np.isnan(want).any()
    run_pipeline(g, options={"transformer_fuse": True}, target=target)
    assert kinds(g).count("Attention") == 1
    write_model(g, tmp_path / "m.mnn")
    results = [Session(g).run(feeds)["y"], Session(g, "reference").run(feeds)["y"]]
    if target != "none":
        with MnnEngine(tmp_path / "m.mnn") as engine:
            results.append(engine.run(feeds)["y"])
    for got in results:
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)


def one(op, q, k, v, mask=None, change=lambda op, s: s, last=lambda op, p, v: op.MatMul(p, v), axis=-1, sinks=None):
    scores = change(op, op.Mul(times(op, q, k), 8**-0.5))
    if sinks is not None:
        return last(op, with_sinks(op, scores, **sinks), v)
    return last(op, op.Softmax(scores if mask is None else op.Add(scores, mask), axis=axis), v)


def capped(op, s):
    return op.Mul(op.Tanh(op.Div(s, 30.0)), 30.0)


def filled(filler):
    return lambda op, s: op.add(Select(), op.constant(np.tri(5, dtype=np.int32)), s, number(op, filler))


HEADS = {"q": (1, 4, 5, SIZE), "k": (1, 4, 5, SIZE), "v": (1, 4, 5, SIZE)}
SEVEN = {"k": (1, 4, 7, SIZE), "v": (1, 4, 7, SIZE)}
NEAR = {  # how it differs, other sizes, the reason, and whether another runtime could do it
    "a soft cap": ({"change": capped}, {}, "capped softly at 30", False),
    "an activation": ({"change": lambda op, s: op.Sigmoid(s)}, {}, "(SIGMOID) is neither", False),
    "another term": ({"change": lambda op, s: op.Sub(s, op.constant(noise(5)))}, {}, "(SUB) is neither", False),
    "a term for rows": ({"change": lambda op, s: op.Add(s, op.constant(noise(5, 1)))}, {}, "(ADD) is neither", False),
    "a mask that does not hide": ({"change": filled(-1e4)}, {}, "(Select) is neither", False),
    "a softmax over queries": ({"axis": 2}, {}, "is not over the keys", False),
    "another softmax": ({"last": lambda op, p, v: op.MatMul(op.Mul(p, 2.0), v)}, {}, "no product of the prob", False),
    "shown probabilities": ({"last": lambda op, p, v: (op.MatMul(p, v), p)}, {}, "have other readers", False),
    "values first": (
        {"last": lambda op, p, v: op.MatMul(op.Permute(v, dims=(0, 1, 3, 2)), p)},
        {},
        "same heads",
        False,
    ),
    "a sink per row": ({"sinks": {"sinks": (1, 4, 5, 1)}}, {}, "one sink per head", False),
    "another shift than the largest": ({"sinks": {"best": "MINIMUM"}}, {}, "is not the difference from", False),
    "more cut off than the sink": ({"sinks": {"end": -2}}, {"v": (1, 4, 4, SIZE)}, "does not cut the sink", False),
    "more keys": ({}, SEVEN, "5 queries on 7 keys", True),
    "fewer keys": ({}, {"k": (1, 4, 3, SIZE), "v": (1, 4, 3, SIZE)}, "5 queries on 3 keys", False),
    "keys of open number": ({}, {"k": (1, 4, "t", SIZE), "v": (1, 4, "t", SIZE)}, "5 queries on t keys", False),
    "other values": ({}, {"v": (1, 4, 5, 6)}, "keys of 8 and values of 6", True),
    "a mask per head of windows": (
        {},
        {**dict.fromkeys("qkv", (6, 4, 5, SIZE)), "mask": (6, 4, 5, 5)},
        "from head to head, and between 6 sequences",
        True,
    ),
    "very many heads": (
        {},
        {**dict.fromkeys("qkv", (1, 65, 5, SIZE)), "mask": (1, 65, 5, 5)},
        "differs between 65 heads",
        True,
    ),
    "sequences and masks, flat": (
        {},
        {**dict.fromkeys("qkv", ("h", 5, SIZE)), "mask": ("h", 5, 5)},
        "from head to head",
        True,
    ),
    "five axes": ({}, dict.fromkeys("qkv", (1, 2, 2, 5, SIZE)), "three or four axes", False),
    "heads of open number": ({}, dict.fromkeys("qkv", (1, "h", 5, SIZE)), "is not known", False),
}


@pytest.mark.parametrize("miss", NEAR)
def test_near_misses_stay_and_say_why(miss):
    how, sizes, words, elsewhere = NEAR[miss]
    g = build(lambda op, **x: one(op, **x, **how), **{**HEADS, **sizes})
    before = kinds(g)
    report = check_pass(FuseAttention(), g, rtol=0, atol=0)
    assert report.changes == 0
    assert kinds(g) == before
    assert len(report.misses) == 1
    assert words in report.misses[0]
    assert FuseAttention("none").run(g).changes == elsewhere


def test_what_does_not_look_like_attention_is_not_spoken_of():
    g = build(lambda op, x: op.Softmax(op.MatMul(x, op.constant(noise(8, 8), "w"))), x=(1, 4, 5, 8))
    assert FuseAttention().run(g).misses == []
    g = build(lambda op, a, b: op.Add(op.MatMul(a, b), 1.0), a=(2, 3, 4), b=(2, 4, 3))
    assert FuseAttention().run(g).misses == []


@pytest.mark.parametrize(("value", "sizes", "changes"), [(1, (2, 5, 5), 1), (0, (2, 5, 5), 0), (1, (3, 2, 5, 5), 0)])
def test_conditions_times_ones(value, sizes, changes):
    def choice(op, x):
        filled = op.Fill(op.constant(np.array(sizes, np.int32)), op.constant(np.array(value, np.int32)))
        seen = op.Mul(filled, op.constant(np.tri(5, dtype=np.int32)))
        return op.add(Select(), seen, x, number(op, -1.0))

    g = build(choice, x=(2, 5, 5))
    assert check_pass(CanonicalAlgebra(), g, rtol=0, atol=0).changes == changes
    assert ("Fill" in kinds(g)) == (not changes)
