"""Sample operands and attributes of an op, from which its tests are generated.

    samples = grid(x=[(), (7,), (2, 3, 5, 5)], alpha=[0.01, 0.3])

A name that is an attribute takes each value; any other name is an operand, in the order of the parameters of `infer`:
a tuple is a shape of float32 noise, anything else is an `Operand` or an array.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Operand:
    """A recipe for an array; drawn from a seeded generator when a test runs."""

    draw: Callable[[np.random.Generator], np.ndarray]


def floats(*shape: int, low: float = -2.0, high: float = 2.0) -> Operand:
    """Uniform float32."""
    return Operand(lambda rng: rng.uniform(low, high, shape).astype(np.float32))


def integers(*shape: int, low: int = -5, high: int = 6, dtype: str = "int32") -> Operand:
    """Integers in [low, high)."""
    return Operand(lambda rng: rng.integers(low, high, shape).astype(dtype))


def exactly(values: Any, dtype: str = "int32") -> Operand:
    """These values."""
    return Operand(lambda rng: np.asarray(values, dtype))


@dataclass(frozen=True)
class Sample:
    """Attributes and operands of one use of an op. `constant` names operands that stand as constants in a file."""

    attributes: dict[str, Any]
    operands: dict[str, Any]
    constant: tuple[str, ...] = ()

    def arrays(self, seed: int = 0) -> list[np.ndarray]:
        """The operands, the same for the same seed."""
        rng = np.random.default_rng(seed)
        return [_draw(o, rng) for o in self.operands.values()]

    def rounded(self, dtype: Any) -> Sample:
        """The same with floats that a narrower type of floats holds."""
        drawn = dict(zip(self.operands, self.arrays(), strict=True))
        with np.errstate(over="ignore"):
            narrow = {n: a.astype(dtype).astype(a.dtype) if a.dtype.kind == "f" else a for n, a in drawn.items()}
        return Sample(self.attributes, narrow, self.constant)


def _draw(operand: Any, rng: np.random.Generator) -> np.ndarray:
    if isinstance(operand, Operand):
        return operand.draw(rng)
    if isinstance(operand, tuple):
        return rng.standard_normal(operand).astype(np.float32)
    return np.asarray(operand)


@dataclass(frozen=True)
class Samples:
    """Sets of named choices; `for_op` multiplies them out."""

    sets: tuple[tuple[dict[str, list[Any]], tuple[str, ...]], ...]

    def __add__(self, other: Samples) -> Samples:
        return Samples(self.sets + other.sets)

    def for_op(self, attributes: Iterable[str]) -> Iterator[Sample]:
        """Every combination, split into attributes and operands."""
        names = set(attributes)
        for choices, constant in self.sets:
            for values in itertools.product(*choices.values()):
                pairs = dict(zip(choices, values, strict=True))
                yield Sample(
                    {k: v for k, v in pairs.items() if k in names},
                    {k: v for k, v in pairs.items() if k not in names},
                    constant,
                )


def grid(constant: tuple[str, ...] = (), **choices: list[Any]) -> Samples:
    """All combinations of the given choices; operands named in `constant` are constants of the graph."""
    return Samples(((choices, constant),))
