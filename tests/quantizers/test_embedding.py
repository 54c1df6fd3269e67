"""Tables that are looked up: stored as codes, decoded alike by our executors and the released runtime."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_cases import model

import mnnconvert
from mnnconvert.cli.main import main
from mnnconvert.schema.reader import read_model
from mnnconvert.verify.engines import OnnxRuntimeEngine
from mnnconvert.verify.mnn_engine import MnnEngine

RNG = np.random.default_rng(7)
ROWS, COLUMNS = 1200, 96  # 460 kB of float32: large enough to be coded without being asked for by name


def noise(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def write(tmp_path, text, arrays, opset=17):
    proto, feeds = model(text, arrays, opset)
    onnx.save(proto, tmp_path / "m.onnx")
    return feeds


def lookup(tmp_path, indices, columns=COLUMNS):
    text = f"""(int64[{",".join(map(str, indices.shape))}] i) => (float[{",".join("abc"[: indices.ndim] + "d")}] y) {{
        g = Gather (t, i)
        y = Mul (g, two)
    }}"""
    table = noise(ROWS, columns)
    return write(tmp_path, text, {"i": indices, "t": table, "two": np.float32(2)}), 2 * table[indices]


def outputs(path, feeds, want):
    """The outputs of both our executors and, where it is installed, of the released runtime; they must agree."""
    y = mnnconvert.load(path).run(feeds)["y"]
    close = {"rtol": 1e-6, "atol": 1e-6 * max(1, np.abs(y).max())}
    np.testing.assert_allclose(mnnconvert.load(path, backend="reference").run(feeds)["y"], y, **close)
    if MnnEngine.available():
        with MnnEngine(path) as engine:
            np.testing.assert_allclose(engine.run(feeds)["y"], y, **close)
    assert y.shape == want.shape
    return y


def error(y, want):
    return np.linalg.norm(y - want) / np.linalg.norm(want)


@pytest.mark.parametrize("indices", [np.array(3), np.array([0, -1, 1199]), RNG.integers(-ROWS, ROWS, (2, 5))], ids=str)
@pytest.mark.parametrize(
    ("options", "worst"),
    [
        ({"weight_bits": 8}, 0.008),
        ({"weight_bits": 4, "weight_block": 32}, 0.12),
        ({"weight_bits": 2, "weight_block": 16}, 0.12),
        ({"weight_bits": 4}, 0.15),
        ({"weight_bits": 4, "quant_embedding": 8}, 0.008),
        ({"weight_bits": 8, "quant_embedding": 4, "weight_block": 32}, 0.12),
    ],
    ids=str,
)
def test_all_executors_decode_the_rows_that_are_picked(indices, options, worst, tmp_path):
    feeds, want = lookup(tmp_path, indices)
    report = mnnconvert.convert(tmp_path / "m.onnx", tmp_path / "m.mnn", **options)
    assert 0 < error(outputs(tmp_path / "m.mnn", feeds, want), want) < worst
    assert report.verification.passed
    (layer,) = report.layers
    bits = options.get("quant_embedding") or (8 if options["weight_bits"] > 4 else 4)
    assert (layer.op, layer.precision) == ("Gather", f"{bits} bit") and 0 < layer.error < worst
    assert 0 < report.target_bytes - layer.bytes_after < 4000  # the sizes of the report are those of the file


@pytest.mark.parametrize("columns", [95, 94, 67, 90])
def test_any_number_of_columns(columns, tmp_path):
    feeds, want = lookup(tmp_path, np.array([[5, 7]]), columns)
    mnnconvert.convert(tmp_path / "m.onnx", tmp_path / "m.mnn", weight_bits=4, weight_block=32)
    assert error(outputs(tmp_path / "m.mnn", feeds, want), want) < 0.15


@pytest.mark.parametrize(
    "options",
    [{}, {"weight_bits": 4, "quant_embedding": 0}, {"weight_bits": 4, "quant_rule": ["name=t,skip"]}],
    ids=str,
)
def test_tables_stay_as_they_are_where_asked(options, tmp_path):
    feeds, want = lookup(tmp_path, np.array([1, 2]))
    report = mnnconvert.convert(tmp_path / "m.onnx", tmp_path / "m.mnn", **options)
    np.testing.assert_array_equal(outputs(tmp_path / "m.mnn", feeds, want), want)
    assert report.target_bytes > ROWS * COLUMNS * 4
    assert all(x.reason for x in report.layers)


def test_small_tables_are_coded_when_a_rule_names_them(tmp_path):
    text = "(int64[3] i) => (float[3,64] y) { y = Gather (t, i) }"
    feeds = write(tmp_path, text, {"i": np.array([4, 0, 2]), "t": noise(10, 64)})
    report = mnnconvert.convert(tmp_path / "m.onnx", tmp_path / "m.mnn", weight_bits=8)
    assert [x.reason for x in report.layers] == ["a small table"]
    want = outputs(tmp_path / "m.mnn", feeds, np.empty((3, 64)))
    for rule, bits in (("op=Gather,bits=3", 4), ("name=t,bits=6", 8)):
        report = mnnconvert.convert(tmp_path / "m.onnx", tmp_path / "m.mnn", quant_rule=[rule])
        assert [x.precision for x in report.layers] == [f"{bits} bit"]
        assert 0 < error(outputs(tmp_path / "m.mnn", feeds, want), want) < 0.15


def test_a_table_that_two_lookups_read_is_stored_once(tmp_path):
    text = "(int64[3] i) => (float[3,96] y) { a = Gather (t, i) k = Add (i, one) b = Gather (t, k) y = Add (a, b) }"
    table = noise(ROWS, COLUMNS)
    feeds = write(tmp_path, text, {"i": np.array([4, 0, 2]), "t": table, "one": np.array(1)})
    report = mnnconvert.convert(tmp_path / "m.onnx", tmp_path / "m.mnn", weight_bits=8)
    assert report.target_bytes < 1.1 * ROWS * COLUMNS
    want = table[feeds["i"]] + table[feeds["i"] + 1]
    assert error(outputs(tmp_path / "m.mnn", feeds, want), want) < 0.01


def test_a_product_with_the_same_table_is_noted(tmp_path, capsys):
    text = """(int64[3] i) => (float[3,4000] y) {
        a = Gather (t, i)
        u = Transpose <perm=[1,0]> (t)
        y = MatMul (a, u)
    }"""
    table = noise(4000, COLUMNS)
    feeds = write(tmp_path, text, {"i": np.array([4, 0, 2]), "t": table})
    words = ["--modelFile", str(tmp_path / "m.onnx"), "--MNNModel", str(tmp_path / "m.mnn"), "--weightQuantBits", "8"]
    assert main(words) == 0
    assert "MNN has no form that serves both" in capsys.readouterr().out
    want = table[feeds["i"]] @ table.T
    assert error(outputs(tmp_path / "m.mnn", feeds, want), want) < 0.02
    assert (tmp_path / "m.mnn").stat().st_size < 2.2 * 4000 * COLUMNS


def test_codes_of_the_source_are_kept(tmp_path):
    codes = RNG.integers(0, 256, (ROWS, COLUMNS)).astype(np.uint8)
    arrays = {"i": np.array([4, 0, 1199]), "q": codes, "s": RNG.uniform(0.01, 0.02, ROWS).astype(np.float32),
              "z": np.full(ROWS, 120, np.uint8)}  # fmt: skip
    text = "(int64[3] i) => (float[3,96] y) { t = DequantizeLinear <axis=0> (q, s, z) y = Gather (t, i) }"
    feeds = write(tmp_path, text, arrays)
    report = mnnconvert.convert(tmp_path / "m.onnx", tmp_path / "m.mnn")
    want = ((codes.astype(np.float32) - 120) * arrays["s"][:, None])[feeds["i"]]
    np.testing.assert_allclose(outputs(tmp_path / "m.mnn", feeds, want), want, rtol=1e-5, atol=1e-5)
    assert report.target_bytes < 1.2 * ROWS * COLUMNS
    stored = [v.tensor.numpy() for v in read_model(tmp_path / "m.mnn").constants() if v.dtype == np.uint8]
    np.testing.assert_array_equal(stored[0], codes)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(
    ("kind", "bits", "columns"),
    [("UINT8", 4, 96), ("UINT8", 8, 96), ("UINT4", 4, 96), ("INT4", 4, 96), ("UINT8", 4, 88)],
)
def test_tables_in_blocks_of_codes(kind, bits, columns, zeros, tmp_path):
    """The contrib operator that quantized language models use; a last block that is not full becomes floats."""
    blocks, pack = -(-columns // 32), 2 if kind == "UINT8" and bits == 4 else 1
    low, high = (-8, 8) if kind == "INT4" else (0, 16) if kind == "UINT4" else (0, 256)
    data = RNG.integers(low, high, (ROWS, columns // pack))
    zero = RNG.integers(low, high, (ROWS, -(-blocks // pack)))
    parts = [("t", data), ("z", zero)][: 1 + zeros]
    tensors = [helper.make_tensor(n, getattr(TensorProto, kind), a.shape, a.reshape(-1).tolist()) for n, a in parts]
    scale = RNG.uniform(0.01, 0.02, (ROWS, blocks)).astype(np.float32)
    node = helper.make_node(
        "GatherBlockQuantized", ["t", "i", "s", "z"][: 3 + zeros], ["y"], "look up", domain="com.microsoft",
        bits=bits, block_size=32, quantize_axis=1,
    )  # fmt: skip
    i, y = (helper.make_tensor_value_info(*x) for x in (("i", TensorProto.INT64, [4]), ("y", TensorProto.FLOAT, None)))
    graph = helper.make_graph([node], "g", [i], [y], [*tensors, numpy_helper.from_array(scale, "s")])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / "m.onnx")
    feeds = {"i": np.array([4, 0, 1199, -1])}
    want = OnnxRuntimeEngine(tmp_path / "m.onnx").run(feeds)["y"]
    report = mnnconvert.convert(tmp_path / "m.onnx", tmp_path / "m.mnn", verify="always")
    np.testing.assert_allclose(outputs(tmp_path / "m.mnn", feeds, want), want, rtol=1e-5, atol=1e-5)
    kept = columns % 32 == 0
    assert (report.target_bytes < 1.1 * ROWS * columns * bits / 8 + ROWS * blocks * 8 + 4000) == kept
    again = mnnconvert.convert(tmp_path / "m.onnx", tmp_path / "m.mnn", weight_bits=bits, weight_block=32)
    assert (again.layers[0].reason == "coded in the source already") == kept
