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


def targets(translation: Translation) -> list[Any]:
    """The overloads of a translation that this torch knows."""
    import torch

    found = []
    for name in translation.names:
        namespace, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        operator = getattr(getattr(torch.ops, namespace), packet, None)
        if operator is not None and (overload or "default") in operator.overloads():
            found.append(getattr(operator, overload or "default"))
    return found
