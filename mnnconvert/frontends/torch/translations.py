"""Our own translations of operators of torch into ONNX, for those that torch's exporter lacks or gets wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Translation:
    """Overloads by name, such as "aten::add.Tensor", what makes the function that writes their ONNX nodes, limits."""

    names: tuple[str, ...]
    build: Callable[[], Any]
    limits: str = ""


TRANSLATIONS: list[Translation] = []
