"""A stand-in for `mnnconvert.api`, so that commands are tested without converting anything."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

import mnnconvert
from mnnconvert.options import ConversionOptions

INFO: dict[str, Any] = {
    "inputs": [{"name": "x", "dtype": "float32", "shape": [1, 3, -1, 224], "format": "NCHW"}],
    "outputs": [{"name": "probabilities", "dtype": "float32", "shape": [1, 1000], "format": "NCHW"}],
    "version": "3.6.1",
    "framework": "ONNX",
    "metadata": {"bizCode": "demo"},
    "op_counts": {"Convolution": 2, "Input": 1},
    "weights": [
        {"name": "conv1", "op": "Convolution", "bits": 4, "block": 64, "symmetric": False, "bytes": 1_234_567,
         "minimum": -0.51234, "maximum": 0.5},
        {"name": "head/fc", "op": "Convolution", "bits": 32, "block": 0, "symmetric": None, "bytes": 4096,
         "minimum": None, "maximum": None},
    ],
    "file_bytes": 1_300_000,
    "external_bytes": 0,
}  # fmt: skip


def layer(index: int, precision: str = "int4") -> dict[str, Any]:
    return {
        "name": f"encoder.layer.{index}.attention.query",
        "op": "Convolution",
        "precision": precision,
        "block": 64,
        "method": "hqq",
        "bytes_before": 589_824,
        "bytes_after": 82_944,
        "error": 0.0123456,
    }


def report(**changes: Any) -> dict[str, Any]:
    base = {
        "source": "m.onnx",
        "target": "m.mnn",
        "framework": "ONNX",
        "diagnostics": [
            {
                "reference": "int64-range",
                "message": "Indices became int32.",
                "context": {"node": "n3"},
                "hint": "",
            }
        ],
        "passes": [
            {"name": "fold-constants", "changes": 12, "seconds": 0.0213},
            {"name": "fuse-gelu", "changes": 0, "seconds": 0.001},
        ],
        "layers": [],
        "weights": {"bytes_before": 589_824, "bytes_after": 82_944},
        "source_bytes": 4_100_000,
        "target_bytes": 1_200_000,
        "external_bytes": 0,
        "nodes_before": 96,
        "nodes_after": 41,
        "verification": None,
        "seconds": 1.234,
    }
    return base | changes


@dataclass
class FakeVerification:
    passed: bool = True
    repro: dict[str, str] = field(default_factory=dict)
    layers: None = None

    def lines(self) -> list[str]:
        return ["2 outputs agree with onnxruntime", "probabilities: max abs 1.2e-07"] if self.passed else ["miss"]

    def to_dict(self) -> dict[str, Any]:
        return {"passed": self.passed, "worst": float("nan")}


class FakeSession:
    inputs = (SimpleNamespace(name="x", dtype=np.dtype(np.float32), shape=(2, "n")),)
    outputs = (SimpleNamespace(name="y", dtype=np.dtype(np.float32), shape=(2, "n")),)
    fallbacks: ClassVar[dict[str, int]] = {}

    def run(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"scope/y:0": feeds["x"] * 2}


@dataclass
class FakeApi:
    """What was asked (`calls`) and what is to be answered."""

    calls: list[tuple[Any, ...]] = field(default_factory=list)
    report: dict[str, Any] = field(default_factory=report)
    verification: FakeVerification | None = field(default_factory=FakeVerification)
    error: BaseException | None = None

    def convert_with(self, options: ConversionOptions, progress: Any) -> Any:
        self.calls.append(("convert_with", options))
        progress("reading", 0.5)
        if self.error is not None:
            raise self.error
        return SimpleNamespace(to_dict=lambda: self.report, verification=self.verification)

    def info(self, path: str) -> Any:
        self.calls.append(("info", path))
        return SimpleNamespace(to_dict=lambda: INFO)

    def to_json(self, mnn_path: str, json_path: str) -> None:
        self.calls.append(("to_json", mnn_path, json_path))

    def from_json(self, json_path: str, mnn_path: str) -> None:
        self.calls.append(("from_json", json_path, mnn_path))

    def load(self, path: str, backend: str = "cpu", **options: Any) -> FakeSession:
        self.calls.append(("load", path, backend, options))
        return FakeSession()

    def verify(self, source: str, mnn: str, **keywords: Any) -> FakeVerification:
        self.calls.append(("verify", source, mnn, keywords))
        assert self.verification is not None
        return self.verification

    def supported_ops(self, framework: str) -> list[dict[str, Any]]:
        self.calls.append(("supported_ops", framework))
        return [{"name": "Relu", "since": 1, "limits": ""}, {"name": "Conv", "since": 1, "limits": "2-D | 3-D"}]


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    """Commands that import `mnnconvert.api` get this instead."""
    fake = FakeApi()
    module = ModuleType("mnnconvert.api")
    for name in ("convert_with", "info", "to_json", "from_json", "load", "verify", "supported_ops"):
        setattr(module, name, getattr(fake, name))
    monkeypatch.setitem(sys.modules, "mnnconvert.api", module)
    monkeypatch.setattr(mnnconvert, "api", module, raising=False)
    return fake
