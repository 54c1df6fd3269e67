"""Weights that torchao has quantized: their codes and scales reach the file, without a second rounding."""

from __future__ import annotations

import numpy as np
import pytest
from torch_cases import torch

import mnnconvert
from mnnconvert.ir import CodedTensor
from mnnconvert.schema.reader import read_model
from mnnconvert.verify.mnn_engine import MnnEngine

torchao = pytest.importorskip("torchao")

from torchao.quantization import Int8WeightOnlyConfig, IntxWeightOnlyConfig, quantize_  # noqa: E402
from torchao.quantization.granularity import PerAxis, PerGroup  # noqa: E402

nn = torch.nn
CONFIGS = {
    "int8": (Int8WeightOnlyConfig(), 8),
    "int8, rows": (IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=PerAxis(0)), 8),
    "int4, rows": (IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerAxis(0)), 4),
    "int4, blocks": (IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)), 4),
}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("sizes", [(2, 64), pytest.param((2, 5, 64), marks=pytest.mark.slow)], ids=["matrix", "batch"])
@pytest.mark.filterwarnings("ignore")
def test_codes_stay(name, sizes, tmp_path):
    torch.manual_seed(0)
    config, bits = CONFIGS[name]
    module = nn.Sequential(
        nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 32, bias=False) if "blocks" not in name else nn.ReLU()
    )
    module.eval()
    quantize_(module, config)
    want_codes = module[0].weight.qdata.numpy()
    report = mnnconvert.convert(module, tmp_path / "m.mnn", example_inputs=(torch.ones(sizes),), verify="always")
    assert report.verification is not None and report.verification.passed
    coded = [
        v.tensor for g in read_model(tmp_path / "m.mnn").graphs() for v in g.constants()
        if isinstance(v.tensor, CodedTensor)
    ]  # fmt: skip
    assert len(coded) == (1 if "blocks" in name else 2) and {c.coded.bits for c in coded} == {bits}
    np.testing.assert_array_equal(coded[0].coded.codes.reshape(48, 64), want_codes)
    if MnnEngine.available():
        x = np.random.default_rng(0).standard_normal(sizes, np.float32)
        want = module(torch.from_numpy(x)).detach().numpy()
        np.testing.assert_allclose(
            MnnEngine(tmp_path / "m.mnn").run({"input": x})["output"], want, atol=1e-3 * np.abs(want).max()
        )
