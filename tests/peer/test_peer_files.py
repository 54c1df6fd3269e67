"""Files of the released converter: our reader reads them, and our executor computes what the released runtime does.

Both executors get the same file, so nothing here depends on what the released converter makes of a model.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx_cases import assert_equal, model

import mnnconvert
from mnnconvert.api import from_json, to_json
from mnnconvert.verify.mnn_engine import MnnEngine

pytestmark = [pytest.mark.mnn, pytest.mark.skipif(not MnnEngine.available(), reason="MNN is not installed")]

CONVERT = "import sys, _tools; sys.exit(not _tools.mnnconvert(['mnnconvert', *sys.argv[1:]]))"
OPTIONS = {
    "float": [],
    "half": ["--fp16"],
    "8 bit": ["--weightQuantBits", "8"],
    "8 bit symmetric": ["--weightQuantBits", "8", "--weightQuantAsymmetric", "0"],
    "4 bit blocks": ["--weightQuantBits", "4", "--weightQuantBlock", "32"],
    "3 bit": ["--weightQuantBits", "3"],
    "4 bit hqq": ["--weightQuantBits", "4", "--weightQuantBlock", "32", "--hqq"],
}


def rand(*shape: int, seed: int = 0, spread: float = 1.0) -> np.ndarray:
    return (spread * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def released(source: Path, target: Path, *options: str) -> Path:
    """The file that the released converter writes; in a process of its own, because it may crash."""
    files = ["--modelFile", str(source), "--MNNModel", str(target), "--bizCode", "test"]
    command = [sys.executable, "-c", CONVERT, "-f", "ONNX", *files, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0 and target.exists(), done.stdout + done.stderr
    return target


# Name -> graph, arrays. The released converter makes an open first size 1.
GRAPHS = {
    "elementwise": ("(float[n,5] x) => (float[n,5] y) { a = Exp(x) b = Sigmoid(a) c = Mul(a, b) y = Sub(c, x) }",
                    {"x": rand(1, 5)}),
    "reductions": ("""(float[n,4,6] x) => (float[n,4] m, float[n,1,6] s, int64[n,4] i) {
        m = ReduceMean<axes=[2], keepdims=0>(x) s = ReduceMax<axes=[1]>(x) i = ArgMax<axis=2, keepdims=0>(x) }""",
                   {"x": rand(1, 4, 6)}),
    "shapes": ("""(float[n,4,6] x) => (float[n,6,4] t, float[n,24] r, float[n,4,12] c) <int64[2] k = {0, -1}> {
        t = Transpose<perm=[0,2,1]>(x) r = Reshape(x, k) c = Concat<axis=2>(x, x) }""", {"x": rand(1, 4, 6)}),
    "slices": ("""(float[n,8,6] x) => (float[n,3,6] y, float[n,8,1] g)
        <int64[1] a = {1}, int64[1] b = {7}, int64[1] d = {1}, int64[1] s = {2}, int64[1] i = {4}> {
        y = Slice(x, a, b, d, s) g = Gather<axis=2>(x, i) }""", {"x": rand(1, 8, 6)}),
    "convolution": ("""(float[n,3,h,w] x) => (float[n,64,p,q] y) {
        c = Conv<pads=[1,1,1,1], strides=[2,2]>(x, k, b) y = Relu(c) }""",
                    {"x": rand(1, 3, 9, 8), "k": rand(64, 3, 3, 3, seed=1, spread=0.2), "b": rand(64, seed=2)}),
    "depthwise": ("""(float[1,32,9,9] x) => (float[1,32,9,9] y) <float low = {0}, float high = {6}> {
        c = Conv<group=32, pads=[1,1,1,1]>(x, k) y = Clip(c, low, high) }""",
                  {"x": rand(1, 32, 9, 9), "k": rand(32, 1, 3, 3, seed=1)}),
    "deconvolution": ("(float[1,32,5,6] x) => (float[1,16,q,r] y) { y = ConvTranspose<strides=[2,2]>(x, k, b) }",
                      {"x": rand(1, 32, 5, 6), "k": rand(32, 16, 3, 3, seed=1, spread=0.1), "b": rand(16, seed=2)}),
    "product": ("(float[n,64] x) => (float[n,96] y) { a = MatMul(x, w) y = Add(a, b) }",
                {"x": rand(1, 64), "w": rand(64, 96, seed=1, spread=0.1), "b": rand(96, seed=2)}),
    "two products": ("(float[n,64] x) => (float[n,64] y) { a = Gemm<transB=1>(x, w, b) r = Relu(a) y = MatMul(r, w) }",
                     {"x": rand(1, 64), "w": rand(64, 64, seed=1, spread=0.1), "b": rand(64, seed=2)}),
    "pools": ("""(float[1,4,9,8] x) => (float[1,4,5,4] m, float[1,4,4,4] a, float[1,4,1,1] g) {
        m = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,0]>(x)
        a = AveragePool<kernel_shape=[2,2], strides=[2,2]>(x) g = GlobalAveragePool(x) }""", {"x": rand(1, 4, 9, 8)}),
    "resize": ("""(float[1,2,5,6] x) => (float[1,2,10,12] y) <float[4] s = {1, 1, 2, 2}> {
        y = Resize<mode="linear", coordinate_transformation_mode="half_pixel">(x, "", s) }""", {"x": rand(1, 2, 5, 6)}),
    "softmax": ("(float[n,4,7] x) => (float[n,4,7] y) { a = Softmax<axis=-1>(x) y = Add(a, x) }", {"x": rand(1, 4, 7)}),
    "norm": ("(float[n,7,16] x) => (float[n,7,16] y) { y = LayerNormalization<axis=-1, epsilon=1e-5>(x, g, b) }",
             {"x": rand(1, 7, 16), "g": rand(16, seed=1), "b": rand(16, seed=2)}),
    "recurrence": ("""(float[6,2,8] x) => (float[6,1,2,16] y, float[1,2,16] h, float[1,2,16] c) {
        y, h, c = LSTM<hidden_size=16>(x, w, r, b) }""",
                   {"x": rand(6, 2, 8), "w": rand(1, 64, 8, seed=1, spread=0.3), "b": rand(1, 128, seed=3),
                    "r": rand(1, 64, 16, seed=2, spread=0.3)}),
    "branches": ("""(bool c, float[3] x) => (float[3] y) {
        y = If (c) <then_branch = t () => (float[3] u) { u = Neg(x) },
                    else_branch = e () => (float[3] v) { v = Exp(x) }> }""",
                 {"c": np.array(True), "x": rand(3)}),
}  # fmt: skip
LAYERS = ("convolution", "depthwise", "deconvolution", "product", "two products", "recurrence")


def both_agree(path: Path, feeds, rtol: float) -> None:
    session = mnnconvert.load(path)
    with MnnEngine(path) as engine:
        want = engine.run(feeds)
    got = session.run(feeds)
    assert got.keys() == want.keys()
    for name, array in want.items():
        assert_equal(np.asarray(got[name]).astype(array.dtype), array, rtol=rtol, atol=1e-6, name=name)


@pytest.fixture
def written(tmp_path):
    def write(name: str, kind: str) -> tuple[Path, dict[str, np.ndarray]]:
        proto, feeds = model(*GRAPHS[name])
        onnx.save(proto, tmp_path / "m.onnx")
        return released(tmp_path / "m.onnx", tmp_path / "peer.mnn", *OPTIONS[kind]), feeds

    return write


@pytest.mark.parametrize("name", GRAPHS)
def test_float_files(written, name):
    path, feeds = written(name, "float")
    both_agree(path, feeds, rtol=1e-4)


@pytest.mark.parametrize("kind", [kind for kind in OPTIONS if kind != "float"])
@pytest.mark.parametrize("name", LAYERS)
def test_compressed_files(written, name, kind):
    path, feeds = written(name, kind)
    both_agree(path, feeds, rtol=1e-3)


@pytest.mark.parametrize("name", ["convolution", "slices", "branches", "recurrence"])
def test_what_is_read_is_written_back_byte_for_byte_by_the_second_time(written, name, tmp_path):
    """Our writer orders a file in its own way; from then on nothing changes, and no number did before."""
    _, feeds = written(name, "float")
    for source, target in (("peer.mnn", "one.mnn"), ("one.mnn", "two.mnn")):
        to_json(tmp_path / source, tmp_path / "m.json")
        from_json(tmp_path / "m.json", tmp_path / target)
    assert (tmp_path / "one.mnn").read_bytes() == (tmp_path / "two.mnn").read_bytes()
    both_agree(tmp_path / "one.mnn", feeds, rtol=1e-4)


@pytest.mark.parametrize("kind", ["float", "8 bit"])
@pytest.mark.parametrize("name", ["convolution", "slices", "two products", "branches", "recurrence"])
def test_the_released_json_form_is_read(written, name, kind, tmp_path):
    path, feeds = written(name, kind)
    dump = ["-f", "MNN", "--modelFile", str(path), "--JsonFile", str(tmp_path / "peer.json")]
    subprocess.run([sys.executable, "-c", CONVERT, *dump], capture_output=True, timeout=60, check=False)
    again = tmp_path / "again.mnn"
    words = ["-f", "JSON", "--modelFile", tmp_path / "peer.json", "--MNNModel", again]
    command = [sys.executable, "-m", "mnnconvert", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    want, got = mnnconvert.load(path).run(feeds), mnnconvert.load(again).run(feeds)
    for output, array in want.items():
        # That form prints six digits behind the point, for scales of 0.005 too.
        assert_equal(got[output], array, rtol=1e-4 if kind == "float" else 5e-3, atol=0, name=output)
