"""What the released runtime computes wrong is written in a form that both executors compute alike, or refused."""

from __future__ import annotations

import numpy as np
import pytest
from pass_cases import build, kinds, noise

from mnnconvert.errors import ConversionError
from mnnconvert.ir import verify
from mnnconvert.passes.layout import PlaceLayout
from mnnconvert.passes.legalize import DEFECTS, Legalize
from mnnconvert.passes.names import NameOutputs
from mnnconvert.runtime_ref.session import Session
from mnnconvert.schema.writer import write_model
from mnnconvert.verify.mnn_engine import MnnEngine


def ints(values) -> np.ndarray:
    return np.array(values, np.int32)


def _tied(rows: int, size: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, size // 3, (rows, size)).astype(np.float32)


def _top(count, axis=None, **attributes):
    def make(op, x):
        rest = () if axis is None else (op.constant(ints(axis)),)
        return op.TopKV2(x, op.constant(ints(count)), *rest, **attributes)

    return make


def _binary(function):
    return lambda op, x, other: getattr(op, function)(x, other)


WIDE = ints([2**24 + 1, -(2**24) - 3, 123456789, -987654321, 2**31 - 1, -(2**31), 65537])
BOXES = np.random.default_rng(1).random((30, 4)).astype(np.float32)


SIGNED = np.array([-3, -1, -2, 0, 2, -1], np.float32)
ZEROS = np.array([0, -0.0, np.nan, 2, np.inf], np.float32)
TRUTH = ints([[4, 0, 0, -3], [0, 0, -5, 1]])

# what is computed, and its inputs
CASES = {
    "less": (lambda op, x, other: op.LESS(x, other), {"x": SIGNED, "other": SIGNED[::-1].copy()}),
    "equal": (
        lambda op, x, other: (op.EQUAL(x, other), op.EQUAL(x, op.constant(ZEROS[:1]))),
        {"x": ZEROS, "other": -ZEROS},
    ),
    "outer-equal": (
        lambda op, x, other: (op.EQUAL(x, other), op.NOTEQUAL(x, other)),
        {"x": SIGNED.reshape(2, 3, 1), "other": -SIGNED[:4]},
    ),
    "equal-rows": (
        lambda op, x, other: op.EQUAL(x, other),
        {"x": SIGNED.reshape(2, 3), "other": -SIGNED[[3, 0]].reshape(2, 1)},
    ),
    "top-of-both-zeros": (
        _top(3),
        {"x": np.array([[-1, 0, -0.0, 0, -0.0, -2], [0, -0.0, 1, 0, -1, -0.0]], np.float32)},
    ),
    "outer-greater": (
        lambda op, x, other: (op.GREATER(x, other), op.GREATEREQUAL(other, x), op.LESSEQUAL(x, other)),
        {"x": SIGNED.reshape(2, 3, 1), "other": noise(1, 5) - 1},
    ),
    "codes-of-a-vector": (
        lambda op, x: op.Int8ToFloat(op.FloatToInt8(x, scale=(10.0,), zero=(3.0,)), scale=(0.1,), zero=(3.0,)),
        {"x": noise(64)},
    ),
    "outer-less": (lambda op, x, other: op.LESS(x, other), {"x": noise(5, 1), "other": noise(7)}),
    "float-modulo": (
        lambda op, x, other: op.FLOORMOD(x, other),
        {
            "x": np.array([-7, 7, -7, 7, 3, -3, 3, -3, 0, np.inf, 1.5], np.float32),
            "other": np.array([3, -3, -3, 3, np.inf, np.inf, -np.inf, -np.inf, np.inf, 2, np.nan], np.float32),
        },
    ),
    "pooling-of-batch": (
        lambda op, x: op.Pooling3D(x, kernel=(2, 2, 1), strides=(2, 1, 1)),
        {"x": noise(3, 5, 4, 3, 2)},
    ),
    "padded-average-of-batch": (
        lambda op, x: op.Pooling3D(x, function="AVEPOOL", kernel=(2, 3, 3), pads=(1, 1, 1)),
        {"x": noise(2, 3, 4, 3, 3)},
    ),
    "xor": (lambda op, x, other: op.LOGICALXOR(x, other), {"x": TRUTH, "other": TRUTH[::-1].copy()}),
    "integer-maximum": (
        lambda op, x, other: op.MAXIMUM(x, other),
        {"x": ints([2**24 + 1, -5]), "other": ints([7, -(2**24) - 1])},
    ),
    "integer-minimum": (
        lambda op, x, other: op.MINIMUM(x, other),
        {"x": ints([2**24 + 1, -5]), "other": ints([2**25 + 1, 4])},
    ),
    "integer-product": (lambda op, x, other: op.MUL(x, other), {"x": WIDE, "other": WIDE[::-1].copy()}),
    "integer-product-spread": (lambda op, x, other: op.MUL(x, other), {"x": WIDE.reshape(7, 1), "other": WIDE}),
    "integer-product-scalar": (lambda op, x, other: op.MUL(x, other), {"x": WIDE, "other": ints(65539)}),
    "power-of-two": (lambda op, x: op.MUL(op.constant(ints([1024])), x), {"x": WIDE}),
    "integer-distance": (lambda op, x, other: op.SquaredDifference(x, other), {"x": WIDE, "other": WIDE[::-1].copy()}),
    "integer-absolute": (lambda op, x: op.ABS(x), {"x": WIDE}),
    "integer-relu": (lambda op, x: op.ReLU(x), {"x": WIDE}),
    "integer-round": (lambda op, x: op.ROUND(x), {"x": WIDE}),
    **{
        f"by-zero-{name}": (_binary(name), {"x": ints([[7], [-7]]), "other": ints([0, 2, -3])})
        for name in ("REALDIV", "FLOORDIV", "MOD", "FLOORMOD")
    },
    "two-vectors": (lambda op, x, other: op.MatMul(x, other), {"x": noise(9), "other": noise(9, seed=1)}),
    "boxes-of-equal-score": (
        lambda op, x, s: op.NonMaxSuppressionV2(
            x, s, op.constant(ints(9)), op.constant(np.array(0.3, np.float32)), op.constant(np.array(0.25, np.float32))
        ),
        {"x": BOXES, "s": np.arange(30, dtype=np.float32) % 3 / 4},
    ),
    "one-of-ties": (_top(1, axis=1), {"x": _tied(3, 9)}),
    "padded-positions": (
        lambda op, x: op.Pooling(x, kernel=(3, 2), strides=(2, 1), pads=(1, 1, 0, 1), indices=True),
        {"x": noise(2, 3, 5, 6)},
    ),
    "cubic": (
        lambda op, x: op.Interp(x, resize_type=3, rule="HalfPixels", out_height=7, out_width=3),
        {"x": noise(2, 5, 4, 6)},
    ),
    "integer-sqrt": (lambda op, x: op.SQRT(x), {"x": ints([4, 9, 16])}),
    "select": (lambda op, c, x, other: op.Select(c, x, other), {"c": TRUTH, "x": noise(2, 4), "other": noise(2, 1)}),
    "any": (lambda op, x: op.Reduction(x, operation="ANY", dims=(0,)), {"x": TRUTH}),
    "all": (lambda op, x: op.Reduction(x, operation="ALL", dims=(0,)), {"x": TRUTH}),
    "sum-of-squares": (lambda op, x: op.Reduction(x, operation="SUMSQ", dims=(1,)), {"x": noise(2, 3)}),
    "largest-scalar": (lambda op, x: op.Reduction(x, operation="MAXIMUM"), {"x": np.array(-2, np.float32)}),
    "argmax-of-integers": (lambda op, x: op.ArgMax(x, axis=1), {"x": ints([[-3, -1, -2], [2**24, 2**24 + 1, 0]])}),
    "ties": (_top(20), {"x": _tied(3, 50)}),
    "ties-smallest": (_top(7, largest=False), {"x": _tied(2, 9)}),
    "ties-all": (_top(12), {"x": _tied(2, 12)}),
    "ties-first-axis": (_top(5, axis=0), {"x": np.ascontiguousarray(_tied(3, 12).T)}),
    "gather": (lambda op, x, i: op.GatherV2(x, i, op.constant(ints(1))), {"x": noise(2, 4), "i": ints([-1, 0, -4])}),
    "gather-axis": (lambda op, x, i: op.Gather(x, i, axis=1), {"x": noise(2, 4), "i": ints([-1, 0])}),
    "gather-elements": (
        lambda op, x, i: op.GatherElements(x, i, op.constant(ints(-1))),
        {"x": noise(2, 4), "i": ints([[-1, 0], [3, -4]])},
    ),
    "gather-vectors": (lambda op, x, i: op.GatherND(x, i), {"x": noise(3, 4), "i": ints([[-1, 0], [0, -2]])}),
    "gather-batch": (
        lambda op, x, i: op.GatherND(x, i, batch_dims=1),
        {"x": noise(2, 4, 3), "i": ints([[[-1]], [[1]]])},
    ),
    "scatter-maximum": (
        lambda op, x, i, u: op.ScatterElements(x, i, u, op.constant(ints(0)), reduction="MAXIMUM"),
        {"x": noise(4), "i": ints([1, -1, 1, 1]), "u": noise(4, seed=2)},
    ),
    "scatter-vectors-minimum": (
        lambda op, x, i, u: op.ScatterNd(i, u, op.constant(ints([4, 2])), x, reduction="MINIMUM"),
        {"x": noise(4, 2), "i": ints([[1], [-1], [1]]), "u": noise(3, 2, seed=2)},
    ),
    "crop": (
        lambda op, x: op.Padding(x, op.constant(ints([0, 0, -1, 2])), op.constant(np.array(3, np.float32))),
        {"x": noise(2, 5)},
    ),
    "uneven-split": (lambda op, x: op.Slice(x, axis=1, sizes=(4,)), {"x": noise(2, 6)}),
    "empty-part": (lambda op, x: op.Slice(x, axis=0, sizes=(2, 0)), {"x": noise(2, 6)}),
    "flatten": (lambda op, x: op.Flatten(x, axis=1, end_axis=2), {"x": noise(2, 3, 4, 5)}),
    "groups": (
        lambda op, x: op.Deconvolution(
            x, op.constant(noise(4, 3, 2, 2)), op.constant(noise(6)), group=2, strides=(2, 2)
        ),
        {"x": noise(1, 4, 3, 3)},
    ),
    "padded-average": (
        lambda op, x: op.Pooling3D(x, function="AVEPOOL", kernel=(2, 3, 3), pads=(1, 1, 1)),
        {"x": noise(1, 2, 4, 5, 5)},
    ),
    "determinant": (lambda op, x: op.Det(x), {"x": np.array([[[0, 1, 0], [1, 0, 0], [0, 0, 2]]], np.float32)}),
    "nhwc": (lambda op, x: op.ConvertTensor(x, source="NHWC", dest="NCHW"), {"x": noise(2, 3, 4, 5)}),
    "norm-of-axes-apart": (
        lambda op, x: op.LayerNorm(x, op.constant(noise(16)), op.constant(noise(16)), axes=(-4, -1), epsilon=0.1),
        {"x": noise(4, 3, 2, 4)},
    ),
    "product-with-silu": (lambda op, x, other: op.MULSILU(x, other), {"x": noise(2, 3), "other": noise(2, 3, seed=1)}),
}


def _legal(make, arrays):
    """The graph after legalization, and the results of the graph before it."""
    graph = build(make, **arrays)
    wanted = Session(graph).run(arrays)
    Legalize().run(graph)
    verify(graph, "legalize")
    return graph, wanted


def _agree(got, wanted):
    for name, want in wanted.items():
        assert got[name].shape == want.shape
        assert got[name].dtype == want.dtype
        largest = float(np.nanmax(np.abs(want), initial=0)) if want.dtype.kind == "f" else 0
        np.testing.assert_allclose(got[name], want, rtol=0, atol=1e-5 * largest, err_msg=name)


@pytest.mark.parametrize("name", CASES)
def test_the_form_computes_the_same(name):
    make, arrays = CASES[name]
    graph, wanted = _legal(make, arrays)
    _agree(Session(graph).run(arrays), wanted)


@pytest.mark.parametrize("name", CASES)
def test_legalizing_does_something_once(name):
    make, arrays = CASES[name]
    graph = build(make, **arrays)
    before = repr([(n.op, [v.name for v in n.inputs]) for n in graph.nodes])
    assert Legalize().run(graph).changes
    assert repr([(n.op, [v.name for v in n.inputs]) for n in graph.nodes]) != before


@pytest.mark.mnn
@pytest.mark.parametrize("name", CASES)
def test_released_runtime_agrees(name, tmp_path):
    make, arrays = CASES[name]
    graph, wanted = _legal(make, arrays)
    PlaceLayout().run(graph)
    NameOutputs().run(graph)
    write_model(graph, tmp_path / "m.mnn")
    with MnnEngine(tmp_path / "m.mnn", timeout=20) as engine:
        _agree(engine.run(arrays), wanted)


UNTOUCHED = {
    "float-greater": (lambda op, x, other: op.GREATER(x, other), {"x": SIGNED, "other": SIGNED}),
    "greater of one that broadcasts": (
        lambda op, x, other: (op.GREATER(x, other), op.GREATER(other, x)),
        {"x": noise(2, 3, 4), "other": noise(3, 1)},
    ),
    "integer-less": (lambda op, x, other: op.LESS(x, other), {"x": TRUTH, "other": TRUTH}),
    "known-indices": (
        lambda op, x: op.GatherV2(x, op.constant(ints([1, 0])), op.constant(ints(0))),
        {"x": noise(2, 3)},
    ),
    "found-indices": (
        lambda op, x: op.GatherElements(x, op.Unsqueeze(op.ArgMax(x, axis=1), axes=(1,)), op.constant(ints(1))),
        {"x": noise(2, 3)},
    ),
    "values-of-top": (lambda op, x: _top(3)(op, x)[0], {"x": noise(2, 6)}),
    "truth-xor": (
        lambda op, x, other: op.LOGICALXOR(op.GREATER(x, other), op.GREATER(other, x)),
        {"x": noise(3), "other": noise(3)},
    ),
    "scalar-choice": (
        lambda op, c, x: op.Select(c, x, op.constant(np.array(-np.inf, np.float32))),
        {"c": TRUTH, "x": noise(2, 4)},
    ),
    "product-of-truths": (
        lambda op, x, other: op.MUL(op.GREATER(x, other), op.constant(ints(1000))),
        {"x": noise(3), "other": noise(3)},
    ),
    "product-of-places": (
        lambda op, x: op.MUL(op.ArgMax(x, axis=1), op.constant(ints([9]))),
        {"x": noise(2, 3)},
    ),
    "equal-to-one": (lambda op, x: op.EQUAL(x, op.constant(np.array([1, np.inf], np.float32))), {"x": noise(3, 2)}),
    "half-of-whole": (lambda op, x: op.REALDIV(x, op.constant(ints(2))), {"x": TRUTH}),
    "run-time-axes": (lambda op, x, a: op.Unsqueeze(x, a), {"x": noise(2, 3), "a": ints([0, -1])}),
    "cubic-aligned": (
        lambda op, x: op.Interp(x, resize_type=3, rule="AlignCorners", out_height=7, out_width=7),
        {"x": noise(1, 1, 4, 4)},
    ),
    "depthwise": (
        lambda op, x: op.Deconvolution(x, op.constant(noise(4, 1, 2, 2)), op.constant(noise(4)), group=4),
        {"x": noise(1, 4, 3, 3)},
    ),
}


@pytest.mark.parametrize("name", UNTOUCHED)
def test_what_is_right_is_left_alone(name):
    make, arrays = UNTOUCHED[name]
    graph = build(make, **arrays)
    before = kinds(graph)
    assert Legalize().run(graph).changes == 0
    assert kinds(graph) == before


REFUSED = {
    "weight or bias that is computed": (
        lambda op, x, w: op.Convolution3D(x, w, op.constant(noise(3))),
        {"x": noise(1, 2, 3, 3, 3), "w": noise(3, 2, 2, 2, 2)},
    ),
    "multiplies integers": (
        lambda op, x, i, u: op.ScatterElements(x, i, u, op.constant(ints(0)), reduction="MUL"),
        {"x": ints([1, 2, 3]), "i": ints([1, 1]), "u": ints([4, 5])},
    ),
    "cubic interpolation": (
        lambda op, x, s: op.Interp(x, s, resize_type=3, rule="HalfPixels"),
        {"x": noise(1, 1, 4, 4), "s": ints([1, 1, 7, 7])},
    ),
    "wholly in the padding": (
        lambda op, x: op.Pooling(x, kernel=(1, 1), strides=(2, 2), pads=(1, 1, 0, 0)),
        {"x": noise(1, 1, 4, 4)},
    ),
    "attention of 2 sequences": (
        lambda op, q, k: op.Attention(q, k, k),
        {"q": noise(2, 3, 4, 8), "k": noise(2, 3, 2, 8)},
    ),
    "attention of 3 queries on 5 keys": (
        lambda op, q, k: op.Attention(q, k, k),
        {"q": noise(1, 3, 4, 8), "k": noise(1, 5, 2, 8)},
    ),
    "keys of 8 and values of 6 elements": (
        lambda op, q, k, v: op.Attention(q, k, v),
        {"q": noise(1, 3, 4, 8), "k": noise(1, 3, 2, 8), "v": noise(1, 3, 2, 6)},
    ),
    "differs from head to head": (
        lambda op, q, k, m: op.Attention(q, k, k, m),
        {"q": noise(1, 3, 4, 8), "k": noise(1, 3, 2, 8), "m": noise(1, 4, 3, 3)},
    ),
    "a mask of 2 columns on 3 keys": (
        lambda op, q, k, m: op.Attention(q, k, k, m),
        {"q": noise(1, 3, 4, 8), "k": noise(1, 3, 2, 8), "m": noise(3, 2)},
    ),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_has_no_form_is_refused_by_name(words):
    make, arrays = REFUSED[words]
    graph = build(make, **arrays)
    with pytest.raises(ConversionError, match=words) as caught:
        Legalize().run(graph)
    assert caught.value.diagnostics[0].reference == "runtime-defect"
    assert caught.value.diagnostics[0].context["node"] == "source"
    assert Legalize(target="none").run(build(make, **arrays)).changes == 0


@pytest.mark.parametrize("axis", [1, -1])
def test_negative_indices_into_a_tensor_of_unknown_rank(axis, tmp_path):
    arrays = {"x": noise(2, 4), "i": ints([-1, 0, -4])}
    graph = build(lambda op, x, i: op.GatherV2(x, i, op.constant(ints(axis))), **arrays)
    graph.inputs[0].spec.shape = None
    wanted = Session(graph).run(arrays)
    Legalize().run(graph)
    _agree(Session(graph).run(arrays), wanted)
    NameOutputs().run(graph)
    write_model(graph, tmp_path / "m.mnn")
    with MnnEngine(tmp_path / "m.mnn", timeout=20) as engine:
        _agree(engine.run(arrays), wanted)


def test_shape_arithmetic_stays_as_it_is():
    def make(op, x):
        rows, columns = (op.GatherV2(op.ShapeOf(x), op.constant(ints(i)), op.constant(ints(0))) for i in (0, 1))
        return op.FLOORDIV(op.MUL(op.MUL(rows, columns), op.constant(ints(64))), columns)

    graph = build(make, x=("n", "m"))
    assert Legalize().run(graph).changes == 0


def test_small_integers_do_not_leave_as_they_are_stored():
    graph = build(lambda op, x: op.Cast(x, to="DT_INT8"), x=TRUTH)
    with pytest.raises(ConversionError, match="adds 128"):
        Legalize().run(graph)


def test_level_two_trusts_indices():
    make, arrays = CASES["gather"]
    graph = build(make, **arrays)
    report = Legalize(level=2).run(graph)
    assert report.changes == 0
    assert any("non-negative" in note for note in report.notes)


def test_names_and_origins_survive():
    make, arrays = CASES["ties"]
    graph, wanted = _legal(make, arrays)
    assert [name for name, _ in graph.outputs] == list(wanted)
    assert all(n.origin == ("source",) for n in graph.nodes)


def test_every_entry_says_what_is_wrong_with_an_op_that_exists():
    from mnnconvert.ops.base import OPS

    entries = DEFECTS["mnn-3.6.1"]
    assert all(d.kind in OPS and d.what for d in entries)
    assert len({(d.kind, d.what) for d in entries}) == len(entries)
