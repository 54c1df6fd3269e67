"""Second moments of what layers see: against plain sums, in any order, with the windows of convolutions."""

import numpy as np
import onnx
import pytest
from onnx_cases import model

from mnnconvert.frontends.onnx.reader import read_onnx
from mnnconvert.quantizers.activations import ActivationStore
from mnnconvert.quantizers.statistics import Moments, layer_rows
from mnnconvert.runtime_ref.session import Session

RNG = np.random.default_rng(7)


def noise(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def moments(parts, **options):
    total = Moments(parts[0][0].shape[1], **options)
    for rows, exact in parts:
        total.add(rows, exact)
    return total.statistics()


def test_moments_are_means_of_products():
    x, f = noise(1300, 24), noise(1300, 24)
    seen = moments([(x[:7], f[:7]), (x[7:], f[7:])], cross=True)
    assert seen.samples == 1300
    wide, exact = x.astype(float), f.astype(float)
    np.testing.assert_allclose(seen.gram, wide.T @ wide / 1300, atol=1e-6)
    np.testing.assert_allclose(seen.correction, exact.T @ wide / 1300, atol=1e-6)
    np.testing.assert_allclose(seen.importance, np.square(wide).mean(0), rtol=1e-12)


def test_the_order_of_samples_does_not_matter():
    parts = [(x, x) for x in (10 ** float(i % 5) * noise(40 + i, 16) for i in range(12))]
    first, second = moments(parts), moments(parts[::-1])
    np.testing.assert_allclose(first.gram, second.gram, rtol=0, atol=1e-12 * first.gram.max())
    np.testing.assert_allclose(first.importance, second.importance, rtol=1e-12)


def test_without_a_gram_only_mean_squares_are_kept():
    seen = moments([(noise(5, 8), None)], gram=False)
    assert seen.gram is None and seen.correction is None and seen.importance.shape == (8,)


CASES = [
    ("kernel_shape=[1,1]", (2, 6, 5, 7), (4, 6, 1, 1)),
    ("kernel_shape=[3,3], pads=[1,0,2,1], strides=[2,1]", (2, 6, 9, 7), (4, 6, 3, 3)),
    ("kernel_shape=[3,2], dilations=[2,1], auto_pad=\"SAME_UPPER\"", (1, 3, 8, 8), (5, 3, 3, 2)),
    ("kernel_shape=[3,3]", (2, 16, 140, 150), (2, 16, 3, 3)),  # more rows than are cut at a time
    ("kernel_shape=[3,3]", (40, 8, 12, 12), (2, 8, 3, 3)),
]  # fmt: skip


@pytest.mark.parametrize(("attributes", "image", "kernel"), CASES)
def test_rows_times_the_weight_are_the_convolution(attributes, image, kernel, tmp_path):
    text = f"(float[{','.join(map(str, image))}] x) => (float[n,c,h,w] y) {{ y = Conv <{attributes}> (x, w) }}"
    x, w = noise(*image), noise(*kernel)
    proto, _ = model(text, {"x": x, "w": w})
    onnx.save(proto, tmp_path / "m.onnx")
    graph = read_onnx(tmp_path / "m.onnx", {}, 0)
    want = Session(graph, "reference").run({"x": x})["y"]
    node = next(n for n in graph.nodes if n.op.kind == "Convolution")
    pieces = list(layer_rows(node, x))
    rows = np.concatenate(pieces)
    got = (rows @ w.reshape(kernel[0], -1).T).reshape(image[0], *want.shape[2:], kernel[0]).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(got, want, atol=1e-4)


def test_activations_beyond_the_limit_lie_in_files(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    arrays = {i: noise(100, 10) for i in range(6)}
    with ActivationStore(limit=9000) as store:
        for key, array in arrays.items():
            store.put(key, array)
        assert store.nbytes <= 9000 and len(list(tmp_path.rglob("*.npy"))) == 4
        for key, array in arrays.items():
            np.testing.assert_array_equal(store.get(key), array)
            store.drop(key)
            assert key not in store
        assert store.nbytes == 0
    assert not list(tmp_path.iterdir())
