"""Ops from other packages: found by entry point, converted when that is allowed, run by our executor."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx_cases import model

EXAMPLE = Path(__file__).parents[1] / "examples" / "plugin"
TEXT = """(float[n,3] x) => (float[n,3] y) {
    t = Abs(x)
    y = acme.Wobble <gain=0.5, rate=2.0, label="a b", axes=[0, 1]> (t)
}"""

# Stands for `pip install examples/plugin`: the module on the path and the metadata with its entry point.
PRELUDE = """
import sys, importlib.metadata as metadata
sys.path.insert(0, {folder!r})
known = metadata.entry_points
entry = metadata.EntryPoint("wobble", {module!r}, "mnnconvert.ops")
metadata.entry_points = lambda **q: [entry] if q.get("group") == "mnnconvert.ops" else known(**q)
import numpy as np, mnnconvert
"""


def run(folder, body, module="mnnconvert_wobble"):
    code = PRELUDE.format(folder=str(EXAMPLE), module=module) + body
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.fixture
def folder(tmp_path):
    proto, _ = model(TEXT, domains=("acme",))
    onnx.save(proto, tmp_path / "m.onnx")
    return tmp_path


def test_a_plug_in_converts_and_runs(folder):
    body = """
report = mnnconvert.convert("m.onnx", "m.mnn", allow_custom_op=True)
assert [d.reference for d in report.diagnostics] == ["not-verified"]
session = mnnconvert.load("m.mnn")
op = session.graph.nodes[-1].op
assert (op.gain, op.rate, op.label, op.axes) == (0.5, 2.0, "a b", (0, 1)), op
x = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
np.testing.assert_allclose(session.run({"x": x})["y"], np.abs(x) + 0.5 * np.sin(2 * np.abs(x)), rtol=1e-6)
"""
    result = run(folder, body)
    assert result.returncode == 0, result.stderr


def test_it_has_to_be_allowed(folder):
    result = run(folder, 'mnnconvert.convert("m.onnx", "m.mnn")')
    assert "custom-op" in result.stderr and "--allowCustomOp" in result.stderr
    assert not (folder / "m.mnn").exists()


def test_a_broken_plug_in_is_named(folder):
    result = run(folder, 'mnnconvert.convert("m.onnx", "m.mnn")', module="no_such_module")
    assert "broken-plugin" in result.stderr and "no_such_module" in result.stderr


def test_without_the_plug_in_the_op_is_unsupported(folder):
    import mnnconvert
    from mnnconvert.errors import ConversionError

    with pytest.raises(ConversionError, match=r"acme\.Wobble"):
        mnnconvert.convert(folder / "m.onnx", folder / "m.mnn")


def test_a_file_of_the_plug_in_can_be_described_without_it(folder):
    from mnnconvert.api import info, load
    from mnnconvert.errors import ConversionError

    result = run(folder, 'mnnconvert.convert("m.onnx", "m.mnn", allow_custom_op=True)')
    assert result.returncode == 0, result.stderr
    assert info(folder / "m.mnn").op_counts["Plugin"] == 1
    with pytest.raises(ConversionError, match="unsupported-op"):
        load(folder / "m.mnn").run({"x": np.ones((1, 3), np.float32)})
