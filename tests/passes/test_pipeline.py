"""The order of passes, how they are switched, and that each alone and all together keep what a model computes."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
from pass_cases import build, check_pass, feeds_for, kinds, noise

from mnnconvert.errors import UsageError
from mnnconvert.ir import verify
from mnnconvert.ops.shape import Reshape
from mnnconvert.passes import pipeline
from mnnconvert.passes.pipeline import PHASES, entries, pass_names, planned, run_pipeline
from mnnconvert.runtime_ref.session import Session


def test_every_pass_comes_after_what_it_needs():
    seen = set()
    for phase, entry in entries():
        cls = entry.load()
        for needed in cls.after:
            assert needed in seen, f"{cls.name} in {phase.name} comes before {needed}"
        seen.add(cls.name)


def test_every_phase_says_what_it_is_for():
    assert all(p.purpose.endswith(".") for p in PHASES)
    assert len({p.name for p in PHASES}) == len(PHASES)


def test_every_pass_of_the_folder_is_in_the_pipeline():
    folder = Path(pipeline.__file__).parent
    written = set()
    for path in folder.glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                written |= {s.value.value for s in node.body if isinstance(s, ast.Assign) and s.targets[0].id == "name"}
    assert written == set(pass_names())


def test_the_documentation_has_the_present_table():
    text = (Path(pipeline.__file__).parents[2] / "docs" / "passes.md").read_text()
    assert pipeline.table() in text, "paste the output of mnnconvert.passes.pipeline.table() into docs/passes.md"


def test_levels_and_options_choose():
    names = {level: [p.name for p in planned(level=level)] for level in (0, 1)}
    assert names[0] == ["legalize", "layout", "steps", "name-outputs"]
    assert "convert-matmul" in names[1]
    assert "approximate-gelu" not in names[1]
    changed = [p.name for p in planned(options={"convert_matmul_to_conv": False, "use_gelu_approximation": True})]
    assert "convert-matmul" not in changed
    assert "approximate-gelu" in changed
    assert "fuse-gelu" not in [p.name for p in planned(disabled=["fuse-gelu"])]


def test_settings_reach_the_fields_of_a_pass():
    legalize = next(p for p in planned(level=2, target="none") if p.name == "legalize")
    assert (legalize.target, legalize.level) == ("none", 2)


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(UsageError) as error:
        planned(disabled=["fuse-gellu"])
    assert error.value.diagnostics[0].reference == "unknown-pass"
    assert "fuse-gelu" in error.value.diagnostics[0].hint


def convolution_block(op, x):
    y = op.Convolution(x, op.constant(noise(8, 4, 3, 3), "w"), op.constant(noise(8), "b"), pads=(1, 1, 1, 1))
    y = op.ReLU6(op.Scale(y, op.constant(noise(8, seed=2)), op.constant(noise(8, seed=3))))
    y = op.Pooling(y, kernel=(2, 2), strides=(2, 2))
    y = op.Div(op.Mul(y, op.ReLU6(op.Add(y, 3.0))), 6.0)
    return op.Softmax(op.MatMul(op.add(Reshape((0, -1)), y), op.constant(noise(48, 10), "fc")), axis=-1)


def transformer_block(op, x):
    d = op.Sub(x, op.Reduction(x, operation="MEAN", dims=(-1,), keep_dims=True))
    power = op.Reduction(op.Pow(d, 2.0), operation="MEAN", dims=(-1,), keep_dims=True)
    n = op.Add(op.Mul(op.Div(d, op.Sqrt(op.Add(power, 1e-5))), op.constant(noise(8))), op.constant(noise(8, seed=1)))
    heads = op.Permute(op.add(Reshape((0, 0, 2, 4)), op.MatMul(n, op.constant(noise(8, 8)))), dims=(0, 2, 1, 3))
    scores = op.Softmax(op.MatMul(op.Mul(heads, 0.5), op.Permute(heads, dims=(0, 1, 3, 2))), axis=-1)
    mixed = op.add(Reshape((0, 0, 8)), op.Permute(op.MatMul(scores, heads), dims=(0, 2, 1, 3)))
    h = op.Add(op.MatMul(op.Add(x, mixed), op.constant(noise(8, 16))), op.constant(noise(16)))
    h = op.Mul(op.Mul(h, op.Add(op.Erf(op.Div(h, 2**0.5)), 1.0)), 0.5)
    return op.MatMul(h, op.constant(noise(16, 8)))


def shape_block(op, x):
    size = op.Reduction(op.ShapeOf(x), operation="PROD", dims=(0,), keep_dims=True)
    flat = op.add(Reshape(), op.Identity(x), op.Concat(size, op.constant(np.array([1], np.int32)), axis=0))
    twice = op.Add(op.Mul(flat, 1.0), op.Exp(op.constant(noise(1))))
    return op.Squeeze(op.Unsqueeze(twice, axes=(0,)), axes=(0,)), op.Neg(op.Neg(x)), x


MODELS = {
    "convolution": (convolution_block, ("n", 4, 4, 6)),
    "transformer": (transformer_block, ("n", "s", 8)),
    "fixed transformer": (transformer_block, (2, 5, 8)),
    "shapes": (shape_block, ("n", 3, 2)),
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", pass_names())
def test_each_pass_alone_keeps_the_values(model, name):
    make, shape = MODELS[model]
    loose = 5e-4 if name == "approximate-gelu" else 1e-5  # rounding of reordered sums; what that pass promises
    options = {"use_gelu_approximation": True, "block": 2, "transformer_fuse": True}
    run = next(p for p in planned(options=options) if p.name == name)
    check_pass(run, build(make, x=shape), rtol=loose, atol=loose)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("level", [0, 1, 2])
def test_all_passes_together_keep_the_values(model, level):
    make, shape = MODELS[model]
    g = build(make, x=shape)
    cases = [feeds_for(g, 3), feeds_for(g, 4)]
    wanted = [Session(g).run(f) for f in cases]
    reports = run_pipeline(g, level=level, hook=lambda graph, run, report: verify(graph, run.name))
    assert [r.name for r in reports] == [p.name for p in planned(level=level)]
    for case, want in zip(cases, wanted, strict=True):
        got = Session(g).run(case)
        for name, value in want.items():
            np.testing.assert_allclose(got[name], value, rtol=1e-4, atol=1e-5)  # sums are reordered


def test_the_blocks_become_what_mnn_has():
    g = build(convolution_block, x=("n", 4, 4, 6))
    run_pipeline(g, disabled=["layout"])
    assert kinds(g) == ["Convolution", "Pooling", "HARDSWISH", "Reshape", "Convolution", "Reshape", "Softmax"]
    g = build(transformer_block, x=(2, 5, 8))
    run_pipeline(g, disabled=["layout"])
    assert kinds(g).count("LayerNorm") == 1
    assert "GELU_STANDARD" in kinds(g)
    assert kinds(g).count("MatMul") == 2


def test_a_second_run_changes_nothing():
    at_the_end = ["layout", "legalize", "name-outputs"]  # these undo what the clean-up would do again
    for make, shape in MODELS.values():
        g = build(make, x=shape)
        run_pipeline(g, disabled=at_the_end)
        again = run_pipeline(g, disabled=at_the_end)
        assert [(r.name, r.changes) for r in again if r.changes] == []
