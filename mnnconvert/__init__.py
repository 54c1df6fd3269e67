"""Convert and compress models to MNN, and prove that the answer is still the same.

    report  = mnnconvert.convert("m.onnx", "m.mnn", weight_bits=4, weight_block=64)
    session = mnnconvert.load("m.mnn")
    outputs = session.run({"x": array})
    result  = mnnconvert.verify("m.onnx", "m.mnn")

Everything is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mnnconvert.api import compress, convert, diff, load, quantize, verify
    from mnnconvert.calibration.report import QuantizationReport
    from mnnconvert.compression import Compressed
    from mnnconvert.conversion import ConversionReport
    from mnnconvert.errors import ConversionError, Diagnostic, GateError, MnnConvertError, UsageError
    from mnnconvert.runtime_ref.session import Session
    from mnnconvert.verify.verification import VerificationResult

_HOMES = {
    "convert": "api", "compress": "api", "diff": "api", "load": "api", "quantize": "api", "Compressed": "compression",
    "ConversionReport": "conversion", "QuantizationReport": "calibration.report", "Session": "runtime_ref.session",
    "VerificationResult": "verify.verification", "ConversionError": "errors", "Diagnostic": "errors",
    "GateError": "errors", "MnnConvertError": "errors", "UsageError": "errors",
}  # fmt: skip

__all__ = [
    "Compressed", "ConversionError", "ConversionReport", "Diagnostic", "GateError", "MnnConvertError",
    "QuantizationReport", "Session", "UsageError", "VerificationResult", "compress", "convert", "diff", "load",
    "quantize", "verify",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "verify":  # the room of that name is callable: it stands for the function too
        return import_module("mnnconvert.verify")
    if name not in _HOMES:
        raise AttributeError(f"module 'mnnconvert' has no attribute {name!r}")
    value = getattr(import_module(f"mnnconvert.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
