"""One-node models, and the dice that draw their parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import helper, numpy_helper


@dataclass(frozen=True)
class Operand:
    """An array that is fed, or stored in the model."""

    array: np.ndarray
    stored: bool = False


@dataclass(frozen=True)
class Case:
    """One node, its operands (None: left out), and whether the sizes of what is fed are open in the model."""

    op: str
    opset: int
    operands: tuple[Operand | None, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    open_sizes: bool = False

    @property
    def feeds(self) -> dict[str, np.ndarray]:
        return {f"x{i}": o.array for i, o in enumerate(self.operands) if o is not None and not o.stored}

    def model(self) -> onnx.ModelProto:
        given = [(f"x{i}", o) for i, o in enumerate(self.operands) if o is not None]
        names = [f"x{i}" if o is not None else "" for i, o in enumerate(self.operands)]
        outputs = [f"y{i}" for i in range(self.outputs)]
        node = helper.make_node(self.op, names, outputs, **self.attributes)
        inputs = [self._declared(name, o.array) for name, o in given if not o.stored]
        stored = [numpy_helper.from_array(o.array, name) for name, o in given if o.stored]
        graph = helper.make_graph([node], "g", inputs, [onnx.ValueInfoProto(name=n) for n in outputs], stored)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10)

    def _declared(self, name: str, array: np.ndarray) -> onnx.ValueInfoProto:
        sizes = [f"{name}_{i}" for i in range(array.ndim)] if self.open_sizes else array.shape
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), sizes)

    def __repr__(self) -> str:
        operands = ", ".join("-" if o is None else _described(o) for o in self.operands)
        opened = ", open sizes" if self.open_sizes else ""
        return f"{self.op}-{self.opset}({operands}) {self.attributes} -> {self.outputs}{opened}"


def _described(operand: Operand) -> str:
    array = operand.array
    content = f"={array.tolist()}" if array.size <= 12 else ""
    return f"{'stored ' if operand.stored else ''}{array.dtype}{list(array.shape)}{content}"


class Dice:
    """Draws what a case needs; the simplest value of each is the one that failing cases shrink to."""

    def __init__(self, draw: Callable[[Any], Any]):
        self._draw = draw

    def pick(self, *choices: Any) -> Any:
        return self._draw(st.sampled_from(choices))

    def kind(self, names: str) -> np.dtype:
        return np.dtype(self.pick(*names.split()))

    def number(self, low: int, high: int) -> int:
        return self._draw(st.integers(low, high))

    def numbers(self, count: int, low: int, high: int) -> list[int]:
        return [self.number(low, high) for _ in range(count)]

    def chance(self, one_in: int) -> bool:
        return self.number(0, one_in - 1) == one_in - 1

    def sizes(self, rank: int, low: int = 1, high: int = 5) -> list[int]:
        """Sizes of a tensor; one in 24 tensors has no elements."""
        sizes = self.numbers(rank, low, high)
        if rank and self.chance(24):
            sizes[self.number(0, rank - 1)] = 0
        return sizes

    def subset(self, count: int, least: int = 0) -> list[int]:
        """Some of the numbers below `count`, in any order."""
        order = self._draw(st.permutations(range(count)))
        return list(order[: self.number(least, count)])

    def signed(self, axis: int, rank: int) -> int:
        """The axis counted from the start or from the end."""
        return axis - rank if self.chance(3) else axis

    def array(self, shape: Sequence[int], kind: Any = "float32", low: int = -50, high: int = 50) -> np.ndarray:
        """Quarters if float, and integers; none is negative where the type has no sign."""
        kind, random = np.dtype(kind), np.random.default_rng(self.number(0, 999))
        if kind.kind == "b":
            return random.integers(0, 2, shape).astype(bool)
        numbers = random.integers(max(low, 0) if kind.kind == "u" else low, high + 1, shape)
        return np.asarray(numbers / 4 if kind.kind == "f" else numbers).astype(kind)

    def distinct(self, shape: Sequence[int], kind: Any = "float32") -> np.ndarray:
        """Numbers of which no two are equal."""
        random, count = np.random.default_rng(self.number(0, 999)), math.prod(shape)
        return (random.permutation(count).reshape(shape) - count // 2).astype(kind)

    def parameter(self, values: Any, kind: Any = np.int64) -> Operand:
        """An operand that models usually store."""
        return Operand(np.asarray(values, kind), stored=not self.chance(10))

    def opened(self) -> bool:
        return self.chance(10)
