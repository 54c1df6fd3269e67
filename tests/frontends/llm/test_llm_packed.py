"""GPTQ and AWQ layers: packed by the published rules, read back exactly, and whole models of them."""

import numpy as np
import pytest
from llm_cases import CONFIG, llama_weights, write_folder, write_safetensors

from mnnconvert.errors import ConversionError
from mnnconvert.frontends.llm.packed import PackedLinear, Packing
from mnnconvert.frontends.llm.safetensors import read_safetensors
from mnnconvert.llm import LlmOptions, convert_llm
from mnnconvert.llm_session import LlmSession

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}


def joined(values, bits):
    """Numbers [..., 32 / bits] as int32, the first in the lowest bits."""
    shifts = np.arange(0, 32, bits, dtype=np.uint64)
    return (values.astype(np.uint64) << shifts).sum(-1).astype(np.uint32).view(np.int32)


def gptq(codes, zeros, bits, offset=1):
    """qweight and qzeros of codes [out, in] and zeros [out, groups]."""
    per = 32 // bits
    qweight = joined(codes.T.reshape(-1, per, len(codes)).swapaxes(1, 2), bits)
    stored = (zeros.T - offset) % (1 << bits)
    return qweight, joined(stored.reshape(len(stored), -1, per), bits)


def awq(codes, zeros):
    def pack(values):
        return joined(values.reshape(len(values), -1, 8)[:, :, AWQ_ORDER], 4)

    return pack(codes.T), pack(zeros.T)


def layer(rng, outputs, inputs, group, bits=4, zero=None):
    codes = rng.integers(0, 1 << bits, (outputs, inputs))
    zeros = rng.integers(1, 1 << bits, (outputs, inputs // group)) if zero is None else None
    zeros = np.full((outputs, inputs // group), zero) if zeros is None else zeros
    scales = (rng.random((inputs // group, outputs)) * 0.02 + 0.01).astype(np.float16)
    spread = [np.repeat(x, group, axis=1) for x in (zeros, scales.T.astype(np.float64))]
    return codes, zeros, scales, (codes - spread[0]) * spread[1]


def read_layer(path, parts, packing):
    write_safetensors(path, parts)
    found = read_safetensors(path)
    return PackedLinear("layer", packing, *(found.get(n) for n in ("qweight", "qzeros", "scales", "g_idx"))).tensor()


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("form", ["gptq", "gptq_v2"])
def test_gptq_layers_keep_their_integers(tmp_path, rng, bits, form):
    codes, zeros, scales, weight = layer(rng, 32, 96, 32, bits)
    qweight, qzeros = gptq(codes, zeros, bits, int(form == "gptq"))
    packing = Packing.of({**GPTQ, "bits": bits, "checkpoint_format": form})
    g_idx = (np.arange(96) // 32).astype(np.int32)
    parts = {"qweight": qweight, "qzeros": qzeros, "scales": scales, "g_idx": g_idx}
    tensor = read_layer(tmp_path / "m.safetensors", parts, packing)
    made = tensor.make()
    assert made.form == tensor.form and made.bits == bits
    np.testing.assert_array_equal(made.codes, codes - (1 << (bits - 1)))
    np.testing.assert_array_equal(made.scale, scales.T.astype(np.float32))
    np.testing.assert_allclose(tensor.numpy(), weight, rtol=1e-6, atol=1e-7)


def test_awq_layers_keep_their_integers(tmp_path, rng):
    codes, zeros, scales, weight = layer(rng, 32, 96, 32)
    qweight, qzeros = awq(codes, zeros)
    parts = {"qweight": qweight, "qzeros": qzeros, "scales": scales}
    tensor = read_layer(tmp_path / "m.safetensors", parts, Packing.of(AWQ))
    np.testing.assert_array_equal(tensor.make().codes, codes - 8)
    np.testing.assert_allclose(tensor.numpy(), weight, rtol=1e-6, atol=1e-7)


def test_zeros_in_the_middle_need_no_offsets(tmp_path, rng):
    codes, zeros, scales, weight = layer(rng, 32, 64, 64, zero=8)
    qweight, qzeros = gptq(codes, zeros, 4)
    tensor = read_layer(
        tmp_path / "m.safetensors", {"qweight": qweight, "qzeros": qzeros, "scales": scales}, Packing.of(GPTQ)
    )
    assert tensor.form.symmetric and tensor.make().minimum is None
    np.testing.assert_array_equal(tensor.numpy(), weight.astype(np.float32))


def test_other_methods_and_orders_are_refused_by_name(tmp_path, rng):
    for settings in ({"quant_method": "fp8"}, {**GPTQ, "bits": 3}, {**AWQ, "version": "gemv"}, {}):
        with pytest.raises(ConversionError) as caught:
            Packing.of(settings)
        assert caught.value.diagnostics[0].reference == "llm-unsupported"
    codes, zeros, scales, _ = layer(rng, 32, 64, 32)
    qweight, qzeros = gptq(codes, zeros, 4)
    shuffled = rng.permutation(np.arange(64) // 32).astype(np.int32)
    parts = {"qweight": qweight, "qzeros": qzeros, "scales": scales, "g_idx": shuffled}
    with pytest.raises(ConversionError, match="desc_act"):
        read_layer(tmp_path / "m.safetensors", parts, Packing.of(GPTQ))


@pytest.mark.parametrize("settings", [GPTQ, AWQ], ids=["gptq", "awq"])
def test_a_packed_model_is_that_of_its_decoded_weights(tmp_path, rng, settings):
    weights = llama_weights(CONFIG)
    packed, decoded = {}, {}
    for name, weight in weights.items():
        if not name.endswith("_proj.weight"):
            packed[name] = decoded[name] = weight
            continue
        codes, zeros, scales, exact = layer(rng, *weight.shape, 32)
        parts = gptq(codes, zeros, 4) if settings is GPTQ else awq(codes, zeros)
        stem = name.removesuffix(".weight")
        packed |= dict(zip((f"{stem}.qweight", f"{stem}.qzeros", f"{stem}.scales"), (*parts, scales), strict=True))
        decoded[name] = exact.astype(np.float32)
    write_folder(tmp_path / "packed", packed, quantization_config=settings)
    write_folder(tmp_path / "floats", decoded)
    report = convert_llm(tmp_path / "packed", tmp_path / "made", LlmOptions(quant_bit=32))
    convert_llm(tmp_path / "floats", tmp_path / "expected", LlmOptions(quant_bit=32))
    assert (report.kept, report.floats) == (14, 1)
    ours, expected = (LlmSession(tmp_path / n, threads=1).logits([5, 9, 7, 33], rows=0) for n in ("made", "expected"))
    np.testing.assert_allclose(ours, expected, atol=1e-4)
