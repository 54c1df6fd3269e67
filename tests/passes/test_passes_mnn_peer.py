"""The released runtime computes what the passes make, and agrees with the graph before them."""

from __future__ import annotations

import numpy as np
import pytest
from pass_cases import build, feeds_for, noise
from test_fuse_affine import AFTER, conv, deconv
from test_fuse_norm import affine, torch_norm
from test_pipeline import MODELS

from mnnconvert.passes.pipeline import run_pipeline
from mnnconvert.runtime_ref.session import Session
from mnnconvert.schema.writer import write_model
from mnnconvert.verify.mnn_engine import MnnEngine

pytestmark = [pytest.mark.mnn, pytest.mark.skipif(not MnnEngine.available(), reason="MNN is not installed")]


def activations(op, x):
    return (
        op.Mul(x, op.Sigmoid(x)),
        op.Div(op.Mul(x, op.ReLU6(op.Add(x, 3.0))), 6.0),
        op.Mul(op.Mul(x, op.Add(op.Erf(op.Div(x, 2**0.5)), 1.0)), 0.5),
        op.Div(1.0, op.Sqrt(op.Add(op.Pow(x, 2.0), 1.0))),
        op.ReLU(op.Sub(x, op.Exp(x))),
        affine(op, torch_norm(op, x)),
        op.Mul(torch_norm(op, x, (1,)), op.constant(noise(4, 1))),
    )


def convolutions(op, x):
    made = [op.ReLU(AFTER["mul, add"](op, make(op, x, group=g))) for make in (conv, deconv) for g in (1, 2, 4)]
    return tuple(made)


CASES = {"activations": (activations, (2, 4, 6)), "convolutions": (convolutions, ("n", 4, 6, 5)), **MODELS}


@pytest.mark.parametrize("name", CASES)
def test_the_runtime_agrees(name, tmp_path):
    make, shape = CASES[name]
    graph = build(make, x=shape)
    cases = [feeds_for(graph, 3), feeds_for(graph, 4)]
    wanted = [Session(graph).run(f) for f in cases]
    run_pipeline(graph)
    write_model(graph, tmp_path / "m.mnn")
    with MnnEngine(tmp_path / "m.mnn") as engine:
        for feeds, want in zip(cases, wanted, strict=True):
            got = engine.run(feeds)
            for output, value in want.items():
                np.testing.assert_allclose(got[output], value, rtol=1e-5, atol=1e-5)  # sums are reordered
