"""What Torch files are, how they are refused, modules in memory, names of outputs, and the engine."""

from __future__ import annotations

import subprocess
import sys
import zipfile

import numpy as np
import pytest
from torch_cases import check, refusal, save, torch

import mnnconvert
from mnnconvert.errors import UsageError
from mnnconvert.sources import guess_framework
from mnnconvert.verification import open_source
from mnnconvert.verify.torch_engine import TorchEngine

nn = torch.nn


class Touch:
    """Unpickling it would write a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def test_weights_by_name_are_refused(tmp_path):
    for name, more in (("m.pth", {}), ("m.pt", {"_use_new_zipfile_serialization": False})):
        torch.save({"model": nn.Linear(3, 4).state_dict(), "step": 3}, tmp_path / name, **more)
        (problem,) = refusal(tmp_path / name)
        assert problem.reference == "weights-without-network" and "2 tensors" in problem.message


@pytest.mark.parametrize("new", [True, False])
def test_a_pickle_is_never_executed(new, tmp_path):
    torch.save(Touch(str(tmp_path / "touched")), tmp_path / "m.pt", _use_new_zipfile_serialization=new)
    assert [p.reference for p in refusal(tmp_path / "m.pt")] == ["pickled-object"]
    assert not (tmp_path / "touched").exists()


def test_a_pickle_inside_of_a_program_is_not_executed_either(tmp_path):
    path = save(nn.ReLU(), (torch.ones(2),), "program", tmp_path)
    torch.save(Touch(str(tmp_path / "touched")), tmp_path / "inner.pt")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / "evil.pt2", "w") as new:
        for name in old.namelist():
            data = (tmp_path / "inner.pt").read_bytes() if "sample_inputs" in name else old.read(name)
            new.writestr(name, data)
    problems = refusal(tmp_path / "evil.pt2")
    assert problems[0].reference in ("pickled-object", "bad-torch-file")
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize("form", ["scripted", "program"])
@pytest.mark.parametrize("keep", [0.3, 0.9])
def test_a_damaged_file_is_refused(form, keep, tmp_path):
    path = save(nn.Linear(30, 40), (torch.ones(2, 30),), form, tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    assert [p.reference for p in refusal(path)] == ["bad-torch-file"]


def test_bytes_that_changed_do_not_crash(tmp_path):
    path = save(nn.Linear(3, 4), (torch.ones(2, 3),), "program", tmp_path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for name in [n for n in members if n.endswith(".json")]:
        with zipfile.ZipFile(tmp_path / "broken.pt2", "w") as new:
            for other, data in members.items():
                new.writestr(other, data[: len(data) // 2] if other == name else data)
        assert refusal(tmp_path / "broken.pt2")[0].reference in ("bad-torch-file", "pickled-object")


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04 no archive"])
def test_another_file_is_refused(content, tmp_path):
    (tmp_path / "m.pt").write_bytes(content)
    assert [p.reference for p in refusal(tmp_path / "m.pt")] == ["bad-torch-file"]
    assert [p.reference for p in refusal(tmp_path / "none.pt")] == ["missing-file"]


def test_without_torch_the_extra_is_named(tmp_path, monkeypatch):
    path = save(nn.ReLU(), (torch.ones(2),), "program", tmp_path)
    monkeypatch.setattr("mnnconvert.frontends.torch.files.find_spec", lambda name: None)
    (problem,) = refusal(path)
    assert problem.reference == "missing-extra" and "mnnconvert[torch]" in problem.hint


NMS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
DEFINE = f"""
import torch
library = torch.library.Library("torchvision", "FRAGMENT")
library.define("nms{NMS}")
torch.library.impl("torchvision::nms", "CPU", lambda d, s, t: torch.arange(len(s)), lib=library)
class Detector(torch.nn.Module):
    def forward(self, boxes, scores):
        return torch.ops.torchvision.nms(boxes * 2, scores, 0.5)
inputs = (torch.ones(3, 4), torch.ones(3))
torch.jit.trace(Detector(), inputs).save("m.pt")
"""


def test_an_operator_that_nobody_knows_is_named(tmp_path):
    """D13: the file was made where torchvision is, and is read where it is not."""
    subprocess.run([sys.executable, "-c", DEFINE], cwd=tmp_path, check=True, capture_output=True)
    (problem,) = refusal(tmp_path / "m.pt")
    assert problem.reference == "unsupported-op" and problem.context["op"] == "torchvision::nms"


def test_operators_without_a_translation_are_all_named(tmp_path):
    class Model(nn.Module):
        def forward(self, x):
            return torch.linalg.eigvalsh(x), torch.linalg.svdvals(x), torch.special.bessel_j0(x)

    problems = refusal(save(Model(), (torch.eye(3),), "program", tmp_path))
    assert [p.reference for p in problems] == ["unsupported-op"] * len(problems) and len(problems) >= 3


class Results(nn.Module):
    """Outputs of every kind: nested, one value twice, an input, a number, nothing."""

    def forward(self, x, output):
        y = x + output
        return {"a": y, "b": (y, [x * 2, None]), "c": 3, "x": x}


def test_names_of_outputs(tmp_path):
    report = check(save(Results(), (torch.ones(2, 3), torch.ones(3)), "program", tmp_path))
    session = mnnconvert.load(report.target)
    assert [i.name for i in session.inputs] == ["x", "output"]
    assert [o.name for o in session.outputs] == ["a", "b_0", "b_1_0", "c", "x_1"]
    one = check(save(nn.ReLU(), (torch.ones(2),), "program", tmp_path))
    assert [o.name for o in mnnconvert.load(one.target).outputs] == ["output"]


def test_a_module_in_memory(tmp_path):
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.9)).train()
    report = mnnconvert.convert(module, tmp_path / "m.mnn", example_inputs=(torch.ones(2, 3),), verify="always")
    assert report.verification is not None and report.verification.passed and report.source == "Sequential"
    assert module.training
    axes = ({0: torch.export.Dim("batch")},)
    report = mnnconvert.convert(
        module, tmp_path / "m.mnn", example_inputs=(torch.ones(2, 3),), dynamic_shapes=axes, weight_bits=8
    )
    assert not isinstance(mnnconvert.load(tmp_path / "m.mnn").inputs[0].shape[0], int)


@pytest.mark.parametrize(
    ("source", "options", "reference"),
    [
        (nn.ReLU(), {}, "missing-option"),
        (3, {}, "bad-input"),
        ("m.pt", {"example_inputs": ()}, "option-without-effect"),
        ("m.onnx", {"input_type": "x:int64"}, "option-without-effect"),
    ],
)
def test_wrong_calls(source, options, reference, tmp_path):
    with pytest.raises(UsageError) as caught:
        mnnconvert.convert(source, tmp_path / "m.mnn", **options)
    assert caught.value.diagnostics[0].reference == reference


def test_sizes_of_a_program_can_be_fixed(tmp_path):
    path = save(nn.Linear(3, 4), (torch.ones(2, 3),), "program", tmp_path, ({0: torch.export.Dim("batch")},))
    for options in ({"batch": 5}, {"input_shape": {"input": (5, 3)}}):
        report = check(path, **options)
        assert mnnconvert.load(report.target).inputs[0].shape == (5, 3)
    (problem,) = refusal(path, input_shape={"input": (5, 4)})
    assert problem.reference == "unknown-input"


def test_the_engine_runs_what_is_in_the_file(tmp_path):
    path = save(Results(), (torch.ones(2, 3), torch.ones(3)), "program", tmp_path)
    engine = open_source(path)
    assert isinstance(engine, TorchEngine)
    assert [(i.name, i.dtype, i.shape) for i in engine.inputs] == [
        ("x", np.float32, (2, 3)),
        ("output", np.float32, (3,)),
    ]
    got = engine.run({"x": np.ones((2, 3), np.float32), "output": np.zeros(3, np.float32)})
    assert list(got) == ["a", "b_0", "b_1_0", "c", "x_1"] and got["c"] == 3
    with pytest.raises(mnnconvert.ConversionError) as caught:
        engine.run({"x": np.ones((5, 7), np.float32), "output": np.zeros(3, np.float32)})
    assert caught.value.diagnostics[0].reference == "source-engine-failed"


def test_suffixes():
    from pathlib import Path

    assert {guess_framework(Path(f"m{s}")) for s in (".pt", ".pt2", ".jit", ".pth")} == {"TORCH"}


@pytest.mark.parametrize("old", [False, True])
def test_what_torch_saves_is_known_by_its_first_bytes(old, tmp_path):
    torch.save({"w": torch.zeros(2)}, tmp_path / "m.ckpt", _use_new_zipfile_serialization=not old)
    assert guess_framework(tmp_path / "m.ckpt") == "TORCH"
