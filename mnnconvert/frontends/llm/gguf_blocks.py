"""Blocks of codes in GGUF files, taken over as they are: every one of these grids is a grid of MNN's files as well.

Weights are q * d, q * d + m, or in the "K" types q * (d * s) - dmin * t with small integers s and t for each of several
inner blocks. The products d * s and dmin * t of a float16 and up to 8 bits are exact in float32, so that scales, minima
and the numbers that they decode to are those of the source, bit for bit.
Layouts: https://github.com/ggml-org/ggml (the structures block_q4_0 to block_q6_K are its public file format).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from mnnconvert.ir import CodedForm, CodedLater, CodedWeights, FileTensor
from mnnconvert.ir.tensor import row_blocks

Bytes = NDArray[np.uint8]
Parts = tuple[np.ndarray, np.ndarray, np.ndarray | None]
"""Unsigned or signed codes [blocks, size], scales and minima [blocks, inner blocks]."""


@dataclass(frozen=True)
class Block:
    """One type: weights and bytes per block, bits of a code, weights per scale, and how the bytes are read.

    `split` takes records [n] of `layout`; codes are signed where there is no minimum, and count from 0 where there is.
    """

    name: str
    size: int
    inner: int
    bits: int
    symmetric: bool
    layout: np.dtype
    split: Callable[[np.ndarray], Parts]

    @property
    def nbytes(self) -> int:
        return self.layout.itemsize


def coded(raw: FileTensor, block: Block, shape: tuple[int, ...]) -> CodedLater:
    """The tensor whose blocks are `raw` [rows, bytes of a row], with the codes, scales and minima of the file."""
    rows, columns = shape
    form = CodedForm((rows, columns), block.bits, columns // block.inner, block.symmetric)
    return CodedLater(raw, shape, form, partial(decode, raw, block, form))


def decode(raw: FileTensor, block: Block, form: CodedForm) -> Iterator[CodedWeights]:
    """The codes of a tensor, some rows at a time."""
    for rows in row_blocks(raw, form.shape[0]):
        yield _decoded(rows, block, form)


def _decoded(rows: Bytes, block: Block, form: CodedForm) -> CodedWeights:
    """The codes of rows [n, bytes of a row]."""
    records = rows.reshape(-1).view(block.layout)
    codes, scale, minimum = block.split(records)
    if minimum is not None:
        codes = codes.astype(np.int16) - (1 << (block.bits - 1))
    codes = codes.astype(np.int8, copy=False).reshape(len(rows), form.shape[1])
    numbers = [None if n is None else np.ascontiguousarray(n, np.float32) for n in (scale, minimum)]
    grids = [None if n is None else n.reshape(len(rows), form.blocks) for n in numbers]
    assert grids[0] is not None
    return CodedWeights(codes, grids[0], grids[1], block.bits)


def _single(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32)[:, None]


def _nibbles(q: Bytes) -> np.ndarray:
    """Low nibbles are the first half of a block, high ones the second."""
    return np.concatenate([q & 15, q >> 4], axis=-1)


def _fifth_bits(record: np.ndarray) -> np.ndarray:
    bits = np.unpackbits(record["h"], axis=1, bitorder="little")
    return _nibbles(record["q"]) | bits << 4


def _q4_0(r: np.ndarray) -> Parts:
    return _nibbles(r["q"]).astype(np.int8) - np.int8(8), _single(r["d"]), None


def _q4_1(r: np.ndarray) -> Parts:
    return _nibbles(r["q"]), _single(r["d"]), _single(r["m"])


def _q5_0(r: np.ndarray) -> Parts:
    return _fifth_bits(r).astype(np.int8) - np.int8(16), _single(r["d"]), None


def _q5_1(r: np.ndarray) -> Parts:
    return _fifth_bits(r), _single(r["d"]), _single(r["m"])


def _q8_0(r: np.ndarray) -> Parts:
    return r["q"], _single(r["d"]), None


def _pairs(q: Bytes, bits: int) -> np.ndarray:
    """Fields of `bits` bits of bytes [n, k, 32]: for each run of 32 bytes all lowest fields, then the next ones."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    fields = (q[:, :, None, :] >> shifts) & np.uint8((1 << bits) - 1)
    return fields.reshape(len(q), -1)


def _q2_k(r: np.ndarray) -> Parts:
    scale = _single(r["d"]) * (r["s"] & 15)
    minimum = -_single(r["m"]) * (r["s"] >> 4)
    return _pairs(r["q"].reshape(-1, 2, 32), 2), scale, minimum


def _q3_k(r: np.ndarray) -> Parts:
    """Scales of 6 bits: 8 low nibbles, 8 high ones, and two bits of each in the last four bytes."""
    low = np.concatenate([r["s"][:, :8] & 15, r["s"][:, :8] >> 4], axis=1)
    high = (r["s"][:, None, 8:] >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3).reshape(-1, 16)
    scale = (low | high << 4).astype(np.int8) - np.int8(32)
    third = (r["h"][:, None, :] >> np.arange(8, dtype=np.uint8)[:, None] & 1).reshape(-1, 256)
    codes = (_pairs(r["q"].reshape(-1, 2, 32), 2) | third << 2).astype(np.int8) - np.int8(4)
    return codes, _single(r["d"]) * scale, None


def _six_bits(s: Bytes) -> tuple[np.ndarray, np.ndarray]:
    """Eight scales and eight minima of 6 bits in 12 bytes: the first four whole, the rest as nibbles and spare bits."""
    low, middle, last = s[:, :4], s[:, 4:8], s[:, 8:]
    scale = np.concatenate([low & 63, last & 15 | low >> 6 << 4], axis=1)
    minimum = np.concatenate([middle & 63, last >> 4 | middle >> 6 << 4], axis=1)
    return scale, minimum


def _k_grid(r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scale, minimum = _six_bits(r["s"])
    return _single(r["d"]) * scale, -_single(r["m"]) * minimum


def _q4_k(r: np.ndarray) -> Parts:
    return _pairs(r["q"].reshape(-1, 4, 32), 4), *_k_grid(r)


def _q5_k(r: np.ndarray) -> Parts:
    fifth = (r["h"][:, None, :] >> np.arange(8, dtype=np.uint8)[:, None] & 1).reshape(-1, 256)
    return _pairs(r["q"].reshape(-1, 4, 32), 4) | fifth << 4, *_k_grid(r)


def _q6_k(r: np.ndarray) -> Parts:
    """Two halves of 128: 64 bytes of low nibbles (all low, then all high ones), 32 bytes of the upper two bits."""
    low = _pairs(r["q"].reshape(-1, 2, 64), 4).reshape(-1, 2, 128)
    high = _pairs(r["h"].reshape(-1, 1, 32), 2).reshape(-1, 2, 128)
    codes = (low | high << 4).reshape(-1, 256).astype(np.int8) - np.int8(32)
    return codes, _single(r["d"]) * r["s"], None


_HALF = ("d", "<f2")
_MINIMUM = ("m", "<f2")


def _block(name: str, size: int, inner: int, bits: int, fields: list, split: Callable[[np.ndarray], Parts]) -> Block:
    return Block(name, size, inner, bits, _MINIMUM not in fields, np.dtype(fields), split)


BLOCKS: dict[int, Block] = {
    2: _block("Q4_0", 32, 32, 4, [_HALF, ("q", "u1", 16)], _q4_0),
    3: _block("Q4_1", 32, 32, 4, [_HALF, _MINIMUM, ("q", "u1", 16)], _q4_1),
    6: _block("Q5_0", 32, 32, 5, [_HALF, ("h", "u1", 4), ("q", "u1", 16)], _q5_0),
    7: _block("Q5_1", 32, 32, 5, [_HALF, _MINIMUM, ("h", "u1", 4), ("q", "u1", 16)], _q5_1),
    8: _block("Q8_0", 32, 32, 8, [_HALF, ("q", "i1", 32)], _q8_0),
    10: _block("Q2_K", 256, 16, 2, [("s", "u1", 16), ("q", "u1", 64), _HALF, _MINIMUM], _q2_k),
    11: _block("Q3_K", 256, 16, 3, [("h", "u1", 32), ("q", "u1", 64), ("s", "u1", 12), _HALF], _q3_k),
    12: _block("Q4_K", 256, 32, 4, [_HALF, _MINIMUM, ("s", "u1", 12), ("q", "u1", 128)], _q4_k),
    13: _block("Q5_K", 256, 32, 5, [_HALF, _MINIMUM, ("s", "u1", 12), ("h", "u1", 32), ("q", "u1", 128)], _q5_k),
    14: _block("Q6_K", 256, 16, 6, [("q", "u1", 128), ("h", "u1", 64), ("s", "i1", 16), _HALF], _q6_k),
}
"""By the number of the type in the file."""
