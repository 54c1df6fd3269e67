"""Several element-wise functions that are computed in one pass over memory.

    chain = Chain(shape)
    x, b = chain.operand(x_view), chain.operand(b_view)
    chain.result(chain.apply("MUL", x, chain.apply("SIGMOID", chain.apply("ADD", x, b))))

Operands are numpy views (possibly of memory that is not there yet, see strided.py) that broadcast to `shape`. The names
of the functions are those of `Unary` and `Binary`; on int32 they end in ".i".
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

MOST_OPERANDS, MOST_RESULTS = 12, 4


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
    views: list[np.ndarray] = field(default_factory=list)
    types: list[np.dtype] = field(default_factory=list)
    constants: dict[bytes, tuple[Register, np.ndarray]] = field(default_factory=dict)

    def operand(self, view: np.ndarray) -> Register:
        """The next operand: x0, x1 ..."""
        self.views.append(np.broadcast_to(view, self.shape))
        self.operands.append(Register())
        return self.operands[-1]

    def constant(self, value: np.ndarray | np.generic | float) -> Register:
        """A float32 or int32 number; Python numbers are float32."""
        number = np.asarray(value, value.dtype if isinstance(value, (np.ndarray, np.generic)) else np.float32)
        key = number.dtype.char.encode() + number.reshape(()).tobytes()
        return self.constants.setdefault(key, (Register(), number.reshape(1)))[0]

    def apply(self, function: str, *x: Register) -> Register:
        """The result of a function."""
        self.instructions.append(Instruction(function, Register(), x))
        return self.instructions[-1].y

    def result(self, register: Register, dtype: np.dtype | type = np.float32) -> None:
        """The next result: y0, y1 ...; bytes are the low ones of int32 numbers."""
        if register in self.results or not any(i.y is register for i in self.instructions):
            register = self.apply("COPY", register)
        self.results.append(register)
        self.types.append(np.dtype(dtype))
