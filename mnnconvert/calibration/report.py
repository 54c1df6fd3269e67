"""What a quantization did: layer by layer, and how the outputs agree with those of the float model."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from mnnconvert.ir.types import Steps


@dataclass
class Agreement:
    """How quantized arrays agree with float ones, over all samples together.

    `sqnr` = 10 log10(sum want^2 / sum (got - want)^2) in dB, `cosine` of the two as one long vector each, `top1` the
    share of rows with the same largest entry (None for results that do not look like classes: rank 2 and two columns
    or more).
    """

    signal: float = 0.0
    noise: float = 0.0
    power: float = 0.0
    product: float = 0.0
    rows: int = 0
    same: int = 0

    def add(self, got: np.ndarray, want: np.ndarray) -> None:
        """Take in one pair of arrays of the same shape."""
        g, w = got.astype(np.float64).reshape(-1), want.astype(np.float64).reshape(-1)
        self.signal += float(w @ w)
        self.power += float(g @ g)
        self.product += float(g @ w)
        self.noise += float(np.square(g - w).sum())
        if want.ndim == 2 and want.shape[1] > 1:
            self.rows += len(want)
            self.same += int((got.argmax(axis=1) == want.argmax(axis=1)).sum())

    @property
    def sqnr(self) -> float:
        return decibels(self.signal, self.noise)

    @property
    def cosine(self) -> float:
        if not self.noise:
            return 1.0
        return self.product / math.sqrt(self.signal * self.power) if self.signal and self.power else 0.0

    @property
    def top1(self) -> float | None:
        return self.same / self.rows if self.rows else None

    def to_dict(self) -> dict[str, Any]:
        return {"sqnr": self.sqnr, "cosine": self.cosine, "top1": self.top1}


def decibels(signal: float, noise: float) -> float:
    """10 log10(signal / noise); infinite for no noise, minus infinity for noise alone."""
    if not noise:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf


@dataclass
class LayerReport:
    """One layer: how its weight was coded, in which steps its operand and its result are held, and what that costs.

    `weight_sqnr` is that of the weight alone, `output_sqnr` and `output_cosine` compare the layer's result in the
    quantized model with the float one, so that they hold the errors of all layers before, too. `clipped` is the share
    of the float results outside the steps.
    """

    name: str
    op: str
    output_name: str
    weight_method: str
    weight_sqnr: float
    input: Steps
    output: Steps
    bias_moved: bool = False
    agreement: Agreement = field(default_factory=Agreement)
    beyond: int = 0
    seen: int = 0

    def add(self, got: np.ndarray, want: np.ndarray) -> None:
        """Take in the layer's result in the quantized and in the float model."""
        self.agreement.add(got, want)
        low, high = ((code - self.output.zero) * self.output.scale for code in (self.output.low, self.output.high))
        half = self.output.scale / 2
        self.beyond += int(((want < low - half) | (want > high + half)).sum())
        self.seen += want.size

    @property
    def clipped(self) -> float:
        return self.beyond / self.seen if self.seen else 0.0

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "op": self.op,
            "weight_method": self.weight_method,
            "weight_sqnr": self.weight_sqnr,
            "output_sqnr": self.agreement.sqnr,
            "output_cosine": self.agreement.cosine,
            "clipped": self.clipped,
            "bias_moved": self.bias_moved,
            "input": _steps(self.input),
            "output": _steps(self.output),
        }


def _steps(steps: Steps) -> dict[str, Any]:
    return {**asdict(steps), "dtype": str(steps.dtype)}


@dataclass
class QuantizationReport:
    """What went in, what was done, and how the written file agrees with the float one on (some of) the samples.

    `min_sqnr` (dB) is what the configuration asks of the outputs.
    """

    source: str
    target: str
    method: str
    min_sqnr: float = 0.0
    samples: int = 0
    verified: int = 0
    smoothed: int = 0
    pairs: int = 0
    layers: list[LayerReport] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    outputs: dict[str, Agreement] = field(default_factory=dict)
    source_bytes: int = 0
    target_bytes: int = 0
    seconds: float = 0.0

    @property
    def poor(self) -> list[str]:
        """The outputs that are worse than was asked for."""
        return [name for name, agreement in self.outputs.items() if self.verified and agreement.sqnr < self.min_sqnr]

    def to_dict(self) -> dict[str, Any]:
        plain = {
            name: getattr(self, name)
            for name in ("source", "target", "method", "samples", "verified", "source_bytes", "target_bytes", "seconds")
        }
        return plain | {
            "smoothed_groups": self.smoothed,
            "equalized_pairs": self.pairs,
            "below_min_sqnr": self.poor,
            "layers": [layer.to_dict() for layer in self.layers],
            "skipped": [{"name": name, "reason": reason} for name, reason in self.skipped],
            "outputs": {name: agreement.to_dict() for name, agreement in self.outputs.items()},
        }
