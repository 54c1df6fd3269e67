"""Files and command line: whatever cannot work ends in a named error and leaves nothing behind."""

import os
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_cases import model

import mnnconvert
from mnnconvert.errors import MnnConvertError


def run(*words, cwd):
    command = [sys.executable, "-m", "mnnconvert", *map(str, words)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


def fails(result, code, *words):
    assert result.returncode == code, result.stderr
    for word in words:
        assert word in result.stderr
    assert "Traceback" not in result.stderr


@pytest.fixture
def simple(tmp_path):
    proto, _ = model("(float[n,4] x) => (float[n,4] y) { t = Abs(x) y = Add(t, t) }")
    onnx.save(proto, tmp_path / "m.onnx")
    return tmp_path


def external(folder, remove=False):
    """y = x + w with w in weights.bin."""
    w = np.arange(2000, dtype=np.float32)
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2000])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2000])], [numpy_helper.from_array(w, "w")],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(proto, folder / "m.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    if remove:
        (folder / "weights.bin").unlink()


FILES = {
    "missing": None,
    "empty": b"",
    "random": np.random.default_rng(0).bytes(4096),
    "text": b"hello, this is no model",
}


@pytest.mark.parametrize("kind", FILES)
def test_broken_sources(kind, tmp_path):
    if FILES[kind] is not None:
        (tmp_path / "m.onnx").write_bytes(FILES[kind])
    with pytest.raises(MnnConvertError, match=r"m\.onnx") as caught:
        mnnconvert.convert(tmp_path / "m.onnx", tmp_path / "out.mnn")
    assert caught.value.exit_code == 1
    assert kind in ("missing", "empty") or "byte" in str(caught.value)
    assert not (tmp_path / "out.mnn").exists()


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_truncated_sources(share, simple):
    data = (simple / "m.onnx").read_bytes()
    (simple / "t.onnx").write_bytes(data[: int(len(data) * share)])
    with pytest.raises(MnnConvertError, match=r"t\.onnx"):
        mnnconvert.convert(simple / "t.onnx", simple / "out.mnn")
    assert sorted(p.name for p in simple.iterdir()) == ["m.onnx", "t.onnx"]


def test_damaged_sources_never_crash(simple):
    """Bytes of a valid file are changed: a diagnostic or a model, never another exception."""
    data, rng = bytearray((simple / "m.onnx").read_bytes()), np.random.default_rng(0)
    for _ in range(150):
        damaged = bytearray(data)
        for at in rng.integers(0, len(data), rng.integers(1, 4)):
            damaged[at] = rng.integers(0, 256)
        (simple / "d.onnx").write_bytes(damaged)
        try:
            mnnconvert.convert(simple / "d.onnx", simple / "out.mnn", verify="never")
        except MnnConvertError as error:
            assert error.diagnostics


@pytest.mark.parametrize("target", ["no/such/folder/out.mnn", "."])
def test_unwritable_targets(target, simple):
    fails(run("--modelFile", "m.onnx", "--MNNModel", target, cwd=simple), 1, "unwritable-output")
    assert [p.name for p in simple.iterdir()] == ["m.onnx"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_folder(simple):
    (simple / "ro").mkdir(mode=0o500)
    fails(run("--modelFile", "m.onnx", "--MNNModel", "ro/out.mnn", cwd=simple), 1, "unwritable-output", "ro/out.mnn")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_full_disk_is_named(simple, monkeypatch):
    from mnnconvert.schema import writer

    def full(net, stream):
        with open("/dev/full", "wb", buffering=0) as device:
            device.write(b"x")

    monkeypatch.setattr(writer.flatbuffer, "write", full)
    (simple / "out.mnn").write_bytes(b"precious")
    with pytest.raises(MnnConvertError, match=rf"unwritable-output: cannot write '{simple / 'out.mnn'}': No space"):
        mnnconvert.convert(simple / "m.onnx", simple / "out.mnn", verify="never")
    assert (simple / "out.mnn").read_bytes() == b"precious"
    assert sorted(p.name for p in simple.iterdir()) == ["m.onnx", "out.mnn"]


def test_missing_external_data_is_named(tmp_path):
    external(tmp_path, remove=True)
    fails(
        run("--modelFile", "m.onnx", "--MNNModel", "o.mnn", cwd=tmp_path),
        1,
        "missing-external-data",
        "weights.bin",
        "'w'",
    )
    assert not (tmp_path / "o.mnn").exists()


def test_external_data_is_beside_the_model(tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "other").mkdir()
    external(tmp_path / "m")
    result = run("--modelFile", "../m/m.onnx", "--MNNModel", "../m/out.mnn", cwd=tmp_path / "other")
    assert result.returncode == 0, result.stderr
    x = np.ones(2000, np.float32)
    out = mnnconvert.load(tmp_path / "m" / "out.mnn").run({"x": x})["y"]
    np.testing.assert_array_equal(out, x + np.arange(2000, dtype=np.float32))


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/passwd"])
def test_external_data_may_not_leave_the_folder(location, tmp_path):
    external(tmp_path)
    proto = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    proto.graph.initializer[0].external_data[0].value = location
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(MnnConvertError, match="unsafe-path"):
        mnnconvert.convert(tmp_path / "m.onnx", tmp_path / "o.mnn")


@pytest.mark.parametrize(
    ("words", "mentions"),
    [
        (["--weigthQuantBits", "4"], ["--weightQuantBits"]),
        (["--fp16", "--weightQuantBits", "4"], ["--fp16", "--weightQuantBits"]),
        (["--weightQuantBits", "9"], ["--weightQuantBits", "2 to 8"]),
        (["--weightQuantBits", "1"], ["--weightQuantBits"]),
        (["--weightQuantBits", "4", "--weightQuantBlock", "4"], ["--weightQuantBlock", "8"]),
        (["--weightQuantBlock", "32"], ["--weightQuantBlock", "--weightQuantBits"]),
        (["--hqq", "--weightQuantBits", "4", "--weightQuantAsymmetric=0"], ["--hqq", "--weightQuantAsymmetric"]),
        (["--disablePass", "fuse-everything"], ["unknown-pass", "fuse-everything"]),
    ],
)
def test_wrong_usage_is_exit_code_2(words, mentions, simple):
    fails(run("--modelFile", "m.onnx", "--MNNModel", "out.mnn", *words, cwd=simple), 2, *mentions)
    assert [p.name for p in simple.iterdir()] == ["m.onnx"]


def test_open_sizes_of_a_static_model_are_named(simple):
    fails(
        run("--modelFile", "m.onnx", "--MNNModel", "o.mnn", "--saveStaticModel", cwd=simple), 1, "open-size", "'x'", "n"
    )
    assert (
        run(
            "--modelFile", "m.onnx", "--MNNModel", "o.mnn", "--saveStaticModel", "--input-shape", "x:3x4", cwd=simple
        ).returncode
        == 0
    )


def test_input_configuration_file(simple):
    (simple / "shapes.txt").write_text("input_names = x\ninput_dims = 3x4\n")
    words = ["--modelFile", "m.onnx", "--MNNModel", "o.mnn", "--saveStaticModel", "--inputConfigFile", "shapes.txt"]
    assert run(*words, cwd=simple).returncode == 0
    assert mnnconvert.load(simple / "o.mnn").inputs[0].shape == (3, 4)


def test_two_runs_give_the_same_bytes(simple):
    for name in ("a.mnn", "b.mnn"):
        assert run("--modelFile", "m.onnx", "--MNNModel", name, cwd=simple).returncode == 0
    assert (simple / "a.mnn").read_bytes() == (simple / "b.mnn").read_bytes()


def test_json_form_round_trip_is_exact(simple):
    assert run("--modelFile", "m.onnx", "--MNNModel", "a.mnn", cwd=simple).returncode == 0
    assert run("-f", "MNN", "--modelFile", "a.mnn", "--JsonFile", "a.json", cwd=simple).returncode == 0
    assert run("-f", "JSON", "--modelFile", "a.json", "--MNNModel", "b.mnn", cwd=simple).returncode == 0
    assert (simple / "a.mnn").read_bytes() == (simple / "b.mnn").read_bytes()


def test_the_source_is_never_overwritten(simple):
    before = (simple / "m.onnx").read_bytes()
    fails(run("--modelFile", "m.onnx", "--MNNModel", "m.onnx", cwd=simple), 2, "m.onnx")
    assert (simple / "m.onnx").read_bytes() == before


def test_unsupported_ops_are_reported_together(tmp_path):
    text = "(float[2] x) => (float[2] y) { t = acme.Wobble(x) u = acme.Wobble(t) y = acme.Wiggle(u) }"
    proto, _ = model(text, domains=("acme",))
    onnx.save(proto, tmp_path / "m.onnx")
    result = run("--modelFile", "m.onnx", "--MNNModel", "o.mnn", cwd=tmp_path)
    fails(result, 1, "acme.Wobble", "acme.Wiggle", "unsupported-op")
    assert not (tmp_path / "o.mnn").exists()


PRODUCTS, SIZE = 40, 512


@pytest.fixture
def shared(tmp_path):
    """A chain of products that all use one square weight."""
    weight = np.random.default_rng(0).standard_normal((SIZE, SIZE)).astype(np.float32) / np.sqrt(np.float32(SIZE))
    chain = [f"t{i} = MatMul({'x' if i == 0 else f't{i - 1}'}, w)" for i in range(PRODUCTS)]
    text = f"(float[n,{SIZE}] x) => (float[n,{SIZE}] y) {{ {' '.join(chain)} y = Neg(t{PRODUCTS - 1}) }}"
    proto, _ = model(text, {"w": weight})
    onnx.save(proto, tmp_path / "m.onnx")
    return tmp_path


@pytest.mark.parametrize("words", [[], ["--saveExternalData"]])
@pytest.mark.parametrize(
    ("options", "bits"),
    [([], 32), (["--fp16"], 16), (["--weightQuantBits", "8"], 8),
     (["--weightQuantBits", "4", "--weightQuantBlock", "64"], 4 + 64 / 64)],  # codes, and two numbers per block
)  # fmt: skip
def test_a_weight_with_many_readers_is_stored_once(options, bits, words, shared):
    result = run("--modelFile", "m.onnx", "--MNNModel", "o.mnn", *options, *words, cwd=shared)
    assert result.returncode == 0, result.stderr
    needed = SIZE * SIZE * bits / 8
    rest = 500 * PRODUCTS  # tables, codebooks, one bias for all
    assert needed <= sum(path.stat().st_size for path in shared.glob("o.mnn*")) < needed + rest


def test_a_long_chain(tmp_path):
    """As many nodes as few models have, each with a constant of its own."""
    count, rng = 3000, np.random.default_rng(0)
    names = ["x", *(f"t{i}" for i in range(count - 1)), "y"]
    nodes = [helper.make_node("Add", [names[i], f"c{i}"], [names[i + 1]]) for i in range(count)]
    constants = [numpy_helper.from_array(rng.standard_normal(3).astype(np.float32), f"c{i}") for i in range(count)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "m.onnx")
    report = mnnconvert.convert(tmp_path / "m.onnx", tmp_path / "o.mnn")
    assert report.verification is not None and report.verification.passed
    want = x = np.ones((2, 3), np.float32)
    for constant in constants:
        want = want + numpy_helper.to_array(constant)
    got = mnnconvert.load(tmp_path / "o.mnn").run({"x": x})["y"]
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-4)  # constants may be added up in another order


def test_info_tells_what_a_weight_has_become(tmp_path):
    proto, _ = model(
        "(float[n,64] tokens) => (float[n,32] logits) { a = MatMul(tokens, w) logits = Relu(a) }",
        {"w": np.linspace(-2, 3, 64 * 32, dtype=np.float32).reshape(64, 32)},
    )
    onnx.save(proto, tmp_path / "m.onnx")
    words = ["--weightQuantBits", "8", "--weightQuantBlock", "32", "--saveExternalData"]
    assert run("--modelFile", "m.onnx", "--MNNModel", "o.mnn", *words, cwd=tmp_path).returncode == 0
    shown = run("-f", "MNN", "--modelFile", "o.mnn", "--info", cwd=tmp_path).stdout
    for word in ("tokens", "nx64", "logits", "nx32", "float32", "Convolution", "asymmetric", "external weights"):
        assert word in shown, word
    (weight,) = mnnconvert.api.info(tmp_path / "o.mnn").weights
    assert (weight["bits"], weight["block"], weight["symmetric"]) == (8, 32, False)
    assert weight["bytes"] == pytest.approx(64 * 32 + 32 * 2 * 8, abs=300)  # codes, two numbers per block; codebook
    assert (weight["minimum"], weight["maximum"]) == pytest.approx((-2, 3), abs=5 / 255)


NEEDS_A_SHAPE = """(float[a,b] x, int64[r] shape, int64[n,m] i) => (float[n,m] y) {
    t = Reshape(x, shape)
    y = GatherElements <axis=1> (t, i)
}"""


def test_inputs_that_cannot_be_made_up_leave_the_proof_to_the_user(tmp_path):
    proto, _ = model(NEEDS_A_SHAPE, opset=13)
    onnx.save(proto, tmp_path / "m.onnx")
    report = mnnconvert.convert(tmp_path / "m.onnx", tmp_path / "o.mnn")
    assert [d.reference for d in report.diagnostics] == ["not-verified"] and report.verification is None
    feeds = {"x": np.eye(4, 3, dtype=np.float32), "shape": np.array([2, 6]), "i": np.array([[5, 0], [1, -1]])}
    np.savez(tmp_path / "in.npz", **feeds)
    assert mnnconvert.convert(
        tmp_path / "m.onnx", tmp_path / "o.mnn", inputs=str(tmp_path / "in.npz")
    ).verification.passed
    with pytest.raises(MnnConvertError, match="source-engine-failed"):
        mnnconvert.convert(tmp_path / "m.onnx", tmp_path / "o.mnn", verify="always")
