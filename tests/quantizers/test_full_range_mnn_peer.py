"""Symmetric codes that use -2^(bits-1), with scales of both signs, in the released runtime and in our own."""

import numpy as np
import pytest

from mnnconvert.ir import Builder, CodedTensor
from mnnconvert.ops.convolution import Convolution
from mnnconvert.passes.layout import PlaceLayout
from mnnconvert.passes.legalize import Legalize
from mnnconvert.passes.names import NameOutputs
from mnnconvert.quantizers import lsq
from mnnconvert.runtime_ref.session import load
from mnnconvert.schema.writer import write_model
from mnnconvert.verify.mnn_engine import MnnEngine

F = np.float32
FORMS = [(bits, block, half) for bits in range(2, 9) for block in (16, 32, 0) for half in (False, True)]
KERNELS = {"1x1": (24, 64, 1, 1), "3x3": (8, 32, 3, 3)}


def network(kernel, path):
    """One input, and a convolution for every form of its weights. Returns the decoded weights, by output."""
    rng = np.random.default_rng(0)
    rows, channels, *window = KERNELS[kernel]
    area = int(np.prod(window))
    builder, decoded = Builder(), {}
    x = builder.input("x", F, (channels, channels, *window))
    for bits, block, half in FORMS:
        coded = lsq.quantize(rng.standard_normal((rows, channels * area)).astype(F), bits, block * area, True, half)
        codes = coded.codes.reshape(rows, coded.blocks, -1)
        assert (codes.min(axis=2) == coded.lowest).any(), "nothing to prove: the lowest code is not used"
        assert (coded.scale < 0).any() and (coded.scale > 0).any()
        name = f"{bits}-{block}-{half}"
        builder.output(builder.add(Convolution(), x, builder.constant(CodedTensor(coded, KERNELS[kernel]))), name)
        decoded[name] = coded.decode()
    for each in (Legalize(), PlaceLayout(), NameOutputs()):
        each.run(builder.graph)
    write_model(builder.graph, path)
    return decoded


@pytest.mark.mnn
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_released_runtime_decodes_them_right(kernel, tmp_path):
    decoded = network(kernel, tmp_path / "m.mnn")
    channels, *window = KERNELS[kernel][1:]
    area = int(np.prod(window))
    x = np.zeros((channels, channels, area), F)  # picture c: its channel c holds 1, 2 .. area
    x[np.arange(channels), np.arange(channels)] = np.arange(1, area + 1)
    feeds = {"x": x.reshape(channels, channels, *window)}
    with MnnEngine(tmp_path / "m.mnn") as engine:
        peer = engine.run(feeds)
    ours = load(tmp_path / "m.mnn").run(feeds)
    for name, weights in decoded.items():
        wanted = (weights.reshape(-1, channels, area) * np.arange(1, area + 1)).sum(axis=2).T
        for results in (peer, ours):
            np.testing.assert_allclose(results[name].reshape(wanted.shape), wanted, rtol=0, atol=2e-5, err_msg=name)
