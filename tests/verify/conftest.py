"""Builders that the tests of this room share: small ONNX files from text, and MNN's own conversion of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

OnnxFile = Callable[..., Path]
PeerConvert = Callable[..., None]


@pytest.fixture
def onnx_file(tmp_path: Path) -> OnnxFile:
    """`onnx_file("(float[n] x) => (float[n] y) { y = Neg(x) }", w=array)`: arrays become initializers."""

    def build(text: str, opset: int = 17, **arrays: np.ndarray) -> Path:
        model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> g {text}')
        model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
        path = tmp_path / "model.onnx"
        onnx.save(model, path)
        return path

    return build


@pytest.fixture
def peer_convert() -> PeerConvert:
    """MNN's converter on its own command line, in a process of its own because it may crash."""
    return _peer_convert


def _peer_convert(*arguments: str | Path) -> None:
    script = "import sys, _tools; sys.exit(not _tools.mnnconvert(['mnnconvert', *sys.argv[1:]]))"
    command = [sys.executable, "-c", script, *map(str, arguments), "--bizCode", "test"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def mnn_file(tmp_path: Path, peer_convert: PeerConvert) -> Callable[[Path], Path]:
    def convert(source: Path) -> Path:
        target = tmp_path / "peer.mnn"
        peer_convert("-f", "ONNX", "--modelFile", source, "--MNNModel", target)
        return target

    return convert
