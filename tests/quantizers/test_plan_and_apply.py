"""What is planned for each weight, and that it is done: coverage, blocks, sharing, halves, refusals, the report."""

import numpy as np
import onnx
import pytest
from onnx_cases import model

import mnnconvert
from mnnconvert.errors import MnnConvertError
from mnnconvert.ir import CodedTensor, HalfTensor
from mnnconvert.quantizers.apply import ahead
from mnnconvert.schema.reader import read_model

RNG = np.random.default_rng(3)


def noise(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def converted(tmp_path, text, arrays, name="o.mnn", **options):
    proto, feeds = model(text, arrays)
    onnx.save(proto, tmp_path / "m.onnx")
    report = mnnconvert.convert(tmp_path / "m.onnx", tmp_path / name, **options)
    return report, read_model(tmp_path / name), feeds


def product(rows, columns):
    text = f"(float[2,{rows}] x) => (float[2,{columns}] y) {{ y = MatMul(x, w) }}"
    return text, {"x": noise(2, rows), "w": noise(rows, columns)}


def weights(graph):
    return [n.inputs[1].tensor for n in graph.nodes if n.op.kind in ("Convolution", "Deconvolution")]


@pytest.mark.parametrize(
    ("rows", "block", "want"), [(128, 64, 64), (96, 64, 48), (48, 64, None), (72, 32, 24), (64, 32, 32), (120, 64, 60)]
)
def test_blocks_are_never_coarser_than_asked(rows, block, want, tmp_path):
    report, graph, _ = converted(tmp_path, *product(rows, 16), weight_bits=4, weight_block=block)
    (layer,) = report.layers
    assert layer.to_dict()["block"] == want
    (weight,) = weights(graph)
    assert weight.coded.block == (want or rows)
    assert weight.coded.half_scales == (want not in (None, block))
    assert any(d.reference == "smaller-block" for d in report.diagnostics) == (want not in (None, block))


def test_channels_that_no_block_divides_are_cut_in_two(tmp_path):
    report, graph, _ = converted(tmp_path, *product(67, 8), weight_bits=4, weight_block=64)
    assert [w.shape[1] for w in weights(graph)] == [64, 3]
    assert report.verification.passed


def test_grouped_channels_that_no_block_divides_are_refused(tmp_path):
    text = "(float[1,134,4,4] x) => (float[1,4,4,4] y) { y = Conv <group=2> (x, w) }"
    with pytest.raises(MnnConvertError, match=r"67.*32") as caught:
        converted(tmp_path, text, {"x": noise(1, 134, 4, 4), "w": noise(4, 67, 1, 1)}, weight_bits=4, weight_block=32)
    assert caught.value.diagnostics[0].reference == "block-does-not-fit"
    assert not (tmp_path / "o.mnn").exists()


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("asymmetric", [True, False])
def test_every_kind_of_layer_is_coded(bits, asymmetric, tmp_path):
    text = """(float[1,16,6,6] x) => (float[1,4,11,11] y, float[1,16,6,6] d, float[16,5] g) {
        a = Conv <kernel_shape=[3,3], pads=[1,1,1,1]> (x, w1)
        d = Conv <kernel_shape=[3,3], pads=[1,1,1,1], group=16> (x, w2)
        y = ConvTranspose <strides=[2,2], kernel_shape=[3,3], pads=[1,1,1,1]> (a, w3)
        f = Reshape(x, to)
        g = Gemm <transB=1> (f, w4, b4)
    }"""
    arrays = {"x": noise(1, 16, 6, 6), "w1": noise(8, 16, 3, 3), "w2": noise(16, 1, 3, 3), "w3": noise(8, 4, 3, 3),
              "w4": noise(5, 36), "b4": noise(5), "to": np.array([16, 36])}  # fmt: skip
    report, graph, _ = converted(tmp_path, text, arrays, weight_bits=bits, weight_asymmetric=asymmetric)
    stored = weights(graph)
    assert len(stored) == 4 and all(isinstance(w, CodedTensor) and w.coded.bits == bits for w in stored)
    assert all((w.coded.minimum is None) == (not asymmetric) for w in stored)
    assert report.quantized is not None and report.verification.passed
    assert {x.precision for x in report.layers} == {f"{bits} bit"} and all(x.error > 0 for x in report.layers)


def test_a_shared_weight_is_coded_once(tmp_path):
    text = "(float[2,256] x) => (float[2,256] y) { a = MatMul(x, w) b = Relu(a) y = MatMul(b, w) }"
    arrays = {"x": noise(2, 256), "w": noise(256, 256) * np.float32(0.1)}
    for options, limit in (
        ({}, 270_000),
        ({"weight_bits": 8}, 75_000),
        ({"weight_bits": 4, "weight_block": 64}, 45_000),
    ):
        report, graph, _ = converted(tmp_path, text, arrays, **options)
        first, second = weights(graph)
        np.testing.assert_array_equal(first.numpy(), second.numpy())
        assert report.target_bytes < limit


def test_halves(tmp_path):
    report, graph, feeds = converted(tmp_path, *product(64, 32), fp16=True)
    (weight,) = weights(graph)
    assert isinstance(weight, HalfTensor) and report.layers[0].precision == "float16"
    assert report.target_bytes < 64 * 32 * 2 + 1200
    assert not any(np.isnan(v).any() for v in mnnconvert.load(tmp_path / "o.mnn").run(feeds).values())


def test_masks_of_the_lowest_float_survive_halves(tmp_path):
    mask = np.full((4, 4), np.finfo(np.float32).min, np.float32)
    text = "(float[4,4] x) => (float[4,4] y) { t = Add(x, m) y = Softmax <axis=-1> (t) }"
    _, _, feeds = converted(tmp_path, text, {"x": noise(4, 4), "m": mask}, fp16=True)
    y = mnnconvert.load(tmp_path / "o.mnn").run(feeds)["y"]
    np.testing.assert_allclose(y, 0.25, rtol=1e-3)


def test_degenerate_columns(tmp_path):
    w = np.zeros((64, 4), np.float32)
    w[:, 1], w[32:, 2], w[:, 3] = 0.25, 0.5, 1e-30
    text, arrays = product(64, 4)
    for bits in (4, 8):
        _, graph, _ = converted(tmp_path, text, {**arrays, "w": w}, weight_bits=bits, weight_block=32)
        (weight,) = weights(graph)
        read = weight.numpy().reshape(4, 64)
        assert np.isfinite(read).all() and not read[0].any()
        np.testing.assert_allclose(read[1], 0.25, rtol=1e-7)
        np.testing.assert_allclose(read[2], w[:, 2], rtol=1e-6)


def test_weights_that_are_not_finite_are_named(tmp_path):
    text, arrays = product(16, 4)
    with pytest.raises(MnnConvertError, match="non-finite-weight"):
        converted(tmp_path, text, {**arrays, "w": np.full((16, 4), np.nan, np.float32)}, weight_bits=8, verify="never")


def test_requantizing_a_file_says_so(tmp_path):
    converted(tmp_path, *product(64, 32), fp16=True)
    report = mnnconvert.convert(tmp_path / "o.mnn", tmp_path / "q.mnn", weight_bits=4, weight_block=32)
    assert any(d.reference == "rounded-twice" for d in report.diagnostics)
    (weight,) = weights(read_model(tmp_path / "q.mnn"))
    assert weight.coded.bits == 4 and weight.coded.block == 32


def test_denormals_can_be_flushed(tmp_path):
    text, arrays = product(16, 4)
    arrays["w"][0, 0] = 1e-40
    for flag in (False, True):
        _, graph, _ = converted(tmp_path, text, arrays, align_denormalized_value=flag)
        (weight,) = weights(graph)
        assert (weight.numpy().reshape(4, 16)[0, 0] == 0) == flag


def test_plan_says_it_and_writes_nothing(tmp_path):
    proto, _ = model(*product(64, 32))
    onnx.save(proto, tmp_path / "m.onnx")
    report = mnnconvert.convert(tmp_path / "m.onnx", tmp_path / "o.mnn", weight_bits=4, plan=True)
    (layer,) = report.layers
    assert (layer.bytes_before, layer.bytes_after) == (64 * 32 * 4, 64 * 32 // 2 + 32 * 8)
    assert not (tmp_path / "o.mnn").exists()


def test_layers_without_a_coded_form_say_so(tmp_path):
    text = """(float[5,2,16] x) => (float[5,1,2,8] y) { y, h, c = LSTM <hidden_size=8> (x, w, r) }"""
    arrays = {"x": noise(5, 2, 16), "w": noise(1, 32, 16), "r": noise(1, 32, 8)}
    report, _, _ = converted(tmp_path, text, arrays, weight_bits=8)
    assert all(layer.reason or layer.precision == "8 bit" for layer in report.layers) and report.layers


def test_blocks_that_are_read_ahead_keep_their_order_and_errors():
    def blocks():
        yield from (np.full(2, i) for i in range(5))
        raise OSError("the file ends")

    seen = []
    with pytest.raises(OSError, match="the file ends"):
        for block in ahead(blocks()):
            seen.append(int(block[0]))
    assert seen == [0, 1, 2, 3, 4]
    assert list(ahead(iter(()))) == []
