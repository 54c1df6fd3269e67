"""Weights as integer codes: the form that quantizers produce, the file stores and executors read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

ROWS_AT_ONCE_ELEMENTS = 1 << 20
SMALLEST_BLOCK = 8  # input channels; smaller blocks would cost more for scales than they save on codes


@dataclass(frozen=True)
class CodedForm:
    """How weights [rows, columns] are coded, before anybody has computed a code: see `CodedWeights`."""

    shape: tuple[int, int]
    bits: int
    blocks: int
    symmetric: bool
    half_scales: bool = False

    @property
    def block(self) -> int:
        """Columns per block."""
        return self.shape[1] // self.blocks

    @property
    def grids(self) -> int:
        """Blocks of all rows: how many scales there are."""
        return self.shape[0] * self.blocks

    @property
    def lowest(self) -> int:
        """The lowest code, -2^(bits-1)."""
        return -(1 << (self.bits - 1))

    @property
    def wide(self) -> bool:
        """Whether a dimension of the file's header needs more than 16 bits."""
        return max(self.grids, self.block) > 0xFFFF

    @property
    def nbytes_codes(self) -> int:
        """Bytes of dimensions, codebook and packed codes in a file."""
        return self.nbytes_head + (math.prod(self.shape) * self.bits + 7) // 8

    @property
    def nbytes_head(self) -> int:
        """Bytes in front of the packed codes."""
        return 2 + 2 * (4 if self.wide else 2) + (1 << self.bits)

    @property
    def nbytes_numbers(self) -> int:
        """Bytes of scales and minima in a file."""
        return self.grids * (1 if self.symmetric else 2) * (2 if self.half_scales else 4)


@dataclass(frozen=True, eq=False)
class CodedWeights:
    """Integer codes with one scale (and optionally one minimum) per row and block of consecutive columns.

    `codes` is int8 [rows, columns] in -2^(bits-1) .. 2^(bits-1)-1; `scale` is float32 [rows, blocks]; `minimum`, of the
    same shape, is the value of the lowest code, and None means symmetric: code 0 is the value 0. With `half_scales`
    the numbers are stored as float16, to which they are already rounded. Compared by identity.
    Raises ValueError when the parts do not fit together.

    Codes of a file need not stay in memory: `let_go` drops them where `again` is set, and who asks for them makes them
    again, from several threads as well. `shape` is that of the codes.
    """

    codes: NDArray[np.int8]
    scale: NDArray[np.float32]
    minimum: NDArray[np.float32] | None
    bits: int
    half_scales: bool = False
    shape: tuple[int, int] = field(init=False)
    again: Callable[[], NDArray[np.int8]] | None = field(init=False, default=None, repr=False)

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 8:
            raise ValueError(f"codes have 2..8 bits, not {self.bits}")
        if self.codes.ndim != 2 or self.codes.dtype != np.int8 or 0 in self.codes.shape:
            raise ValueError(f"codes must be a non-empty int8 matrix, not {self.codes.dtype} {self.codes.shape}")
        object.__setattr__(self, "shape", self.codes.shape)
        for name, numbers in (("scale", self.scale), ("minimum", self.minimum)):
            if numbers is not None and (numbers.dtype != np.float32 or numbers.shape != self.scale.shape):
                raise ValueError(f"{name} must be float32 {self.scale.shape}, not {numbers.dtype} {numbers.shape}")
        if self.scale.ndim != 2 or len(self.scale) != self.shape[0] or not self.blocks:
            raise ValueError(f"scale {self.scale.shape} does not fit codes {self.shape}")
        if self.shape[1] % self.blocks:
            raise ValueError(f"{self.blocks} blocks do not divide {self.shape[1]} columns")

    if not TYPE_CHECKING:  # the attribute is there for whoever asks

        def __getattr__(self, name: str) -> Any:
            """The codes, which were let go; they stay until that happens again."""
            if name != "codes" or self.again is None:
                raise AttributeError(name)
            codes = self.again()
            object.__setattr__(self, "codes", codes)
            return codes  # another thread may have let go of them by now

    def reread_by(self, again: Callable[[], NDArray[np.int8]]) -> None:
        """From now on the codes may be let go, because `again` makes equal ones."""
        object.__setattr__(self, "again", again)

    def let_go(self) -> None:
        """Drop the codes if they can be made again."""
        if self.again is not None:
            self.__dict__.pop("codes", None)

    @property
    def blocks(self) -> int:
        """Blocks per row."""
        return int(self.scale.shape[1])

    @property
    def block(self) -> int:
        """Columns per block."""
        return self.shape[1] // self.blocks

    @property
    def lowest(self) -> int:
        """The lowest code, -2^(bits-1)."""
        return -(1 << (self.bits - 1))

    @property
    def form(self) -> CodedForm:
        return CodedForm(self.shape, self.bits, self.blocks, self.minimum is None, self.half_scales)

    @property
    def nbytes_encoded(self) -> int:
        """Bytes in a file: dimensions, codebook, packed codes, scales and minima."""
        return self.form.nbytes_codes + self.form.nbytes_numbers

    def decode(self, dtype: DTypeLike = np.float32) -> NDArray[np.floating]:
        """The weights [rows, columns]; a `dtype` other than float32 is converted to piece by piece."""
        rows, columns = self.shape
        weights = np.empty((rows, columns), dtype)
        step = max(1, ROWS_AT_ONCE_ELEMENTS // columns)
        for start in range(0, rows, step):
            weights[start : start + step] = self.decode_rows(start, min(start + step, rows))
        return weights

    def decode_rows(self, start: int, stop: int) -> NDArray[np.float32]:
        """Rows start..stop as float32, w = (code - lowest) * scale + minimum, each step rounded to float32."""
        codes = self.codes[start:stop]
        weights = codes.astype(np.float32).reshape(len(codes), self.blocks, self.block)
        if self.minimum is not None:
            weights -= np.float32(self.lowest)
        weights *= self.scale[start:stop, :, None]
        if self.minimum is not None:
            weights += self.minimum[start:stop, :, None]
        return weights.reshape(codes.shape)


def gathered(form: CodedForm, parts: Iterable[CodedWeights]) -> CodedWeights:
    """Weights of this form, from blocks of their consecutive rows. ValueError where these are too many or too few."""
    codes = np.empty(form.shape, np.int8)
    scale = np.empty((form.shape[0], form.blocks), np.float32)
    minimum = None if form.symmetric else np.empty_like(scale)
    end = 0
    for part in parts:
        start, end = end, end + part.shape[0]
        codes[start:end], scale[start:end] = part.codes, part.scale
        if minimum is not None:
            minimum[start:end] = part.minimum
    if end != form.shape[0]:
        raise ValueError(f"{end} rows of codes for {form.shape[0]}")
    return CodedWeights(codes, scale, minimum, form.bits, form.half_scales)


def fitting_block(channels: int, wanted: int) -> int:
    """The largest divisor of `channels` up to `wanted`: 0 when one block covers all, -1 when it is uselessly small."""
    if channels <= wanted:
        return 0
    best = next(b for b in range(wanted, 0, -1) if channels % b == 0)
    return best if best >= min(SMALLEST_BLOCK, wanted) else -1
