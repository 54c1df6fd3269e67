"""Torch modules saved in every form, converted, and held to torch in our executor and in MNN's own runtime."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

import mnnconvert
from mnnconvert.conversion import ConversionReport
from mnnconvert.verify.mnn_engine import MnnEngine

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript", reason="torch's exporter needs it")

# The exporter looks through all operators of torch for every program, a third of a second, and finds the same.
_exporter = torch.export.exported_program
_exporter._collect_all_valid_cia_ops = functools.cache(_exporter._collect_all_valid_cia_ops)

TOLERANCE = 1e-3  # of the largest value


def save(module: Any, inputs: tuple[Any, ...], form: str, folder: Path, dynamic_shapes: Any = None) -> Path:
    """The file of a module: "traced" or "scripted" TorchScript, or a "program"."""
    module.eval()
    path = folder / ("m.pt2" if form == "program" else "m.pt")
    with torch.no_grad():
        if form == "program":
            torch.export.save(torch.export.export(module, inputs, dynamic_shapes=dynamic_shapes), str(path))
        elif form == "traced":
            torch.jit.trace(module, inputs).save(str(path))
        else:
            torch.jit.script(module).save(str(path))
    return path


def check(path: Path, *, mnn: bool = True, **keywords: Any) -> ConversionReport:
    """Convert a file, which proves our executor against torch, and have the released runtime agree as well."""
    target = path.with_suffix(".mnn")
    report = mnnconvert.convert(path, target, verify="always", tolerance=TOLERANCE, **keywords)
    assert report.verification is not None and report.verification.passed
    if mnn and MnnEngine.available():
        peer = mnnconvert.verify(path, target, engine="mnn", tolerance=TOLERANCE)
        assert peer.passed, "\n".join(peer.lines())
    return report


def refusal(path: Path, **keywords: Any) -> list[Any]:
    """The diagnostics with which a file is refused."""
    with pytest.raises(mnnconvert.ConversionError) as caught:
        mnnconvert.convert(path, path.with_suffix(".mnn"), **keywords)
    return caught.value.diagnostics
