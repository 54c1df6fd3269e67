"""Programs for the kernel `chain`: several element-wise functions computed in one pass over memory.

    chain = Chain(shape)
    x, b = chain.operand(x_view), chain.operand(b_view)
    chain.result(chain.apply("MUL", x, chain.apply("SIGMOID", chain.apply("ADD", x, b))))
    code, constants = chain.encode(library)

Operands are numpy views (possibly of memory that is not there yet, see strided.py) that broadcast to `shape`. The names
of the functions are those of `Unary` and `Binary`; on int32 they end in ".i".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from mnnconvert.runtime_ref.cpu.library import Library

MOST_OPERANDS, MOST_RESULTS, MOST_AXES, MOST_REGISTERS = 12, 4, 6, 64  # as in elementwise.cpp
KINDS = {np.dtype("float32"): 0, np.dtype("int32"): 0, np.dtype("uint8"): 1, np.dtype("int8"): 2}


@dataclass(eq=False)
class Register:
    """A number per element: an operand, a constant, or what an instruction computes."""


@dataclass(eq=False)
class Instruction:
    function: str
    y: Register
    x: tuple[Register, ...]


@dataclass
class Chain:
    """A program of element-wise functions whose results have `shape`."""

    shape: tuple[int, ...]
    operands: list[Register] = field(default_factory=list)
    results: list[Register] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    _views: list[list[int]] = field(default_factory=list)
    _kinds: list[int] = field(default_factory=list)
    _constants: dict[bytes, tuple[Register, np.ndarray]] = field(default_factory=dict)

    def operand(self, view: np.ndarray) -> Register:
        """The next operand: x0, x1 ... Raises ValueError when its strides do not fit the kernel."""
        axes = _merged_axes(view, self.shape)
        if len(axes) > MOST_AXES:
            raise ValueError(f"an operand with {len(axes)} axes")
        axes = [(1, 0)] * (MOST_AXES - len(axes)) + axes
        self._views.append([KINDS[view.dtype], *(size for size, _ in axes), *(stride for _, stride in axes)])
        self.operands.append(Register())
        return self.operands[-1]

    def constant(self, value: np.ndarray | np.generic | float) -> Register:
        """A float32 or int32 number; Python numbers are float32."""
        number = np.asarray(value, value.dtype if isinstance(value, (np.ndarray, np.generic)) else np.float32)
        key = number.reshape(()).tobytes()
        return self._constants.setdefault(key, (Register(), number.reshape(1).view(np.float32)))[0]

    def apply(self, function: str, *x: Register) -> Register:
        """The result of a function."""
        self.instructions.append(Instruction(function, Register(), x))
        return self.instructions[-1].y

    def result(self, register: Register, dtype: np.dtype | type = np.float32) -> None:
        """The next result: y0, y1 ...; bytes are the low ones of int32 numbers."""
        if register in self.results or not any(i.y is register for i in self.instructions):
            register = self.apply("COPY", register)
        self.results.append(register)
        self._kinds.append(KINDS[np.dtype(dtype)])

    def encode(self, library: Library) -> tuple[np.ndarray, np.ndarray]:
        """The arguments `code` and `constants` of the kernel; ValueError when the program is too large for it."""
        constants = [array for _, array in self._constants.values()]
        places, temporaries = self._places()
        if (
            max(places.values()) >= MOST_REGISTERS
            or len(self.operands) > MOST_OPERANDS
            or len(self.results) > MOST_RESULTS
        ):
            raise ValueError("a chain with too many registers")
        numbers = function_numbers(library)
        sizes = [len(self.operands), len(constants), temporaries, len(self.results), len(self.instructions)]
        code = [*sizes, *(n for view in self._views for n in view), *self._kinds]
        for each in self.instructions:
            x = [places[r] for r in each.x]
            code += [numbers[each.function], places[each.y], *x, *[0] * (3 - len(x))]
        return np.array(code, np.int64), np.concatenate([*constants, np.zeros(1, np.float32)])

    def _places(self) -> tuple[dict[Register, int], int]:
        """The number of each register, and how many are temporary: those are used again after the last reader."""
        fixed = [*self.operands, *(register for register, _ in self._constants.values())]
        places = {register: i for i, register in enumerate(fixed)}
        last = {register: i for i, each in enumerate(self.instructions) for register in each.x}
        free: list[int] = []
        used = 0
        for i, each in enumerate(self.instructions):
            free += [
                places[r] for r in dict.fromkeys(each.x) if last[r] == i and r not in fixed and r not in self.results
            ]
            if each.y in self.results:
                continue
            if not free:
                free.append(len(fixed) + used)
                used += 1
            places[each.y] = free.pop()
        places |= {register: len(fixed) + used + i for i, register in enumerate(self.results)}
        return places, used


def _merged_axes(view: np.ndarray, shape: Sequence[int]) -> list[tuple[int, int]]:
    """(size, stride in elements) of the axes of a view after it is broadcast, where they cannot be walked as one."""
    wide = np.broadcast_to(view, shape)
    axes: list[tuple[int, int]] = []
    for size, step in zip(wide.shape, wide.strides, strict=True):
        stride = step // wide.itemsize
        if size == 1:
            continue
        if axes and axes[-1][1] == stride * size:
            axes[-1] = (axes[-1][0] * size, stride)
        else:
            axes.append((size, stride))
    return axes if math.prod(shape) else []


@cache
def function_numbers(library: Library) -> dict[str, int]:
    """The functions of the kernel `chain` by name."""
    names = np.zeros(1 << 14, np.uint8)
    library.call("chain_ops", names=names, size=names.size)
    return {name: i for i, name in enumerate(names.tobytes().decode().split())}
