"""Weights in the coded form of the file: the fields of an `IDSTQuan` table from and to numbers.

Encoding is for our own writer and emits the plain dense form. Decoding takes whatever a file may hold and trusts none
of it: a length, count or position that does not fit is a `bad-weight-coding` error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from mnnconvert.errors import ConversionError
from mnnconvert.ir.coded import CodedForm, CodedWeights
from mnnconvert.ir.tensor import check_mapped, release_array

Bytes = NDArray[np.uint8]
Codes = NDArray[np.int8]
Floats = NDArray[np.float32]
T = TypeVar("T", bound=np.generic)

DENSE, SPARSE, HALF, RAW_INT8, SPARSE_FLOAT = 1, 2, 3, 4, 0
HALF_MAX = 65504.0
LANES = ((8, 0x0001000100010001), (16, 0x0000000100000001), (32, 1))  # width, a one in every other lane
MOST_WEIGHTS = 1 << 40  # of one op; what says more is damaged
CHUNK = 1 << 16  # codes handled at once, a multiple of 8: temporaries stay in the cache


@dataclass(frozen=True, eq=False)
class IDSTFields:
    """The fields of `IDSTQuan` under the schema's names.

    Arrays are one-dimensional and little-endian; an absent `buffer` is an empty one.
    """

    type: int
    buffer: Bytes
    alpha: Floats | None = None
    alphaFp16: NDArray[np.uint16] | None = None
    scaleStorage: int = 0
    aMaxOrBits: int = 0
    readType: int = 0
    aMin: int = 0
    quantScale: float = 0.0
    scaleIn: float = 0.0
    scaleOut: float = 0.0
    useInt32: bool = False
    has_scaleInt: bool = False
    shapeInt32: bool = False
    weightSize: int = 0
    index: NDArray[np.uint32] | None = None


# ---- encoding


def described(form: CodedForm, from_zero: bool = False) -> IDSTFields:
    """The dense form (type 1) without its arrays. With `from_zero` the first number of a pair is the value of code 0,
    not that of the lowest code."""
    return IDSTFields(
        type=DENSE,
        buffer=np.empty(0, np.uint8),
        scaleStorage=int(form.half_scales),
        aMaxOrBits=form.bits,
        readType=0 if form.symmetric else form.grids,
        aMin=0 if form.symmetric else 1 if from_zero else form.lowest,
        quantScale=1.0,
        shapeInt32=form.wide,
    )


def encode(coded: CodedWeights, from_zero: bool = False) -> IDSTFields:
    """The dense form: header, packed codes; scales beside it, as `described`."""
    form = coded.form
    buffer = np.empty(form.nbytes_codes, np.uint8)
    buffer[: form.nbytes_head] = header(form)
    pack(coded.codes, coded.bits, buffer[form.nbytes_head :])
    alpha = numbers(coded, from_zero)
    if coded.half_scales:
        return replace(described(form, from_zero), buffer=buffer, alphaFp16=alpha)
    return replace(described(form, from_zero), buffer=buffer, alpha=alpha)


def header(form: CodedForm) -> Bytes:
    """What stands before the packed codes: dimensions, and the full signed codebook."""
    return np.concatenate([
        np.array([2], np.uint8),
        np.array((form.grids, form.block), "<u4" if form.wide else "<u2").view(np.uint8),
        np.array([(1 << form.bits) & 0xFF], np.uint8),
        np.arange(form.lowest, -form.lowest).astype(np.int8).view(np.uint8),
    ])  # fmt: skip


def numbers(coded: CodedWeights, from_zero: bool = False) -> NDArray[Any]:
    """The scales, or pairs of minimum and scale, of all blocks in a row: float32, or the bits of float16 as uint16."""
    found = coded.scale if coded.minimum is None else _pairs(coded, coded.minimum, from_zero)
    return found.ravel().astype(np.float16).view(np.uint16) if coded.half_scales else found.ravel()


def packed(parts: Iterable[Codes], bits: int) -> Iterator[Bytes]:
    """Codes that come in parts, packed as those of one array are: what does not fill bytes waits for the next part."""
    rest = np.empty(0, np.int8)
    for part in parts:
        flat = part.reshape(-1)
        codes = np.concatenate([rest, flat]) if rest.size else flat
        whole = codes.size // 8 * 8
        yield _packed_array(codes[:whole], bits)
        rest = codes[whole:].copy()
    yield _packed_array(rest, bits)


def _packed_array(codes: Codes, bits: int) -> Bytes:
    out = np.empty((codes.size * bits + 7) // 8, np.uint8)
    pack(codes, bits, out)
    return out


def _pairs(coded: CodedWeights, minimum: Floats, from_zero: bool) -> Floats:
    """[..., 2]: minimum, or the value of code 0, and scale."""
    first = minimum - np.float32(coded.lowest) * coded.scale if from_zero else minimum
    return np.stack([first, coded.scale], axis=-1)


def encode_half(weights: NDArray[np.floating]) -> IDSTFields:
    """Weights of any shape as raw float16 (type 3); raises `half-overflow`, `non-finite-weight`."""
    flat = weights.reshape(-1)
    half = np.empty(flat.size, "<f2")
    for start in range(0, flat.size, CHUNK):
        part = flat[start : start + CHUNK]
        _check_half_range(float(np.abs(part).max()), weights)
        half[start : start + CHUNK] = part
    return IDSTFields(type=HALF, buffer=half.view(np.uint8))


def _check_half_range(largest: float, weights: NDArray[np.floating]) -> None:
    if math.isnan(largest):
        raise ConversionError.of("non-finite-weight", "weights contain NaN", hint="look at the export of this layer")
    if largest > HALF_MAX:
        largest = float(np.abs(weights).max())
        raise ConversionError.of(
            "half-overflow",
            f"the weight of largest magnitude, {largest:.6g}, does not fit into float16 (65504 at most)",
            hint="keep the weights of this layer in float32, or quantize them to 8 bits",
        )


def pack(codes: Codes, bits: int, out: Bytes) -> None:
    """Write signed codes (any shape, C order) to `out` as unsigned `bits`-bit numbers, first one in the top bits.

    Eight codes are one 64-bit number, whose lanes are joined pair by pair: 8, 16, then 32 bits wide.
    """
    flat = codes.reshape(-1)
    for start in range(0, flat.size, CHUNK):
        part = flat[start : start + CHUNK].view(np.uint8) + np.uint8(1 << (bits - 1))
        where = out[start * bits // 8 : (start + CHUNK) * bits // 8]
        where[:] = part if bits == 8 else _packed(part, bits)[: len(where)]


def _packed(part: Bytes, bits: int) -> Bytes:
    lanes = np.pad(part, (0, -part.size % 8)).view("<u8")
    for width, ones in LANES:
        low = np.uint64(ones * ((1 << width) - 1))
        first, second = lanes & low, (lanes >> np.uint64(width)) & low
        lanes = first << np.uint64(bits * width // 8) | second
    if bits in (2, 4):
        return lanes.astype(f">u{bits}").view(np.uint8)
    return lanes.astype(">u8").view(np.uint8).reshape(-1, 8)[:, 8 - bits :].reshape(-1)


def unpack(packed: Bytes, bits: int, count: int) -> Bytes:
    """`count` unsigned `bits`-bit numbers (0..8 bits) from bytes, first one in the top bits; the inverse of `pack`."""
    if bits == 8:
        return packed[:count]
    numbers = np.zeros(count, np.uint8)
    for start in range(0, count if bits else 0, CHUNK):
        part = packed[start * bits // 8 : (min(start + CHUNK, count) * bits + 7) // 8]
        numbers[start : start + CHUNK] = _unpacked(part, bits)[: count - start]
    return numbers


def _unpacked(part: Bytes, bits: int) -> Bytes:
    groups = np.zeros((-(-part.size // bits), 8), np.uint8)
    groups[:, 8 - bits :] = np.pad(part, (0, -part.size % bits)).reshape(-1, bits)
    lanes = groups.view(">u8").reshape(-1).astype("<u8")
    for width, ones in reversed(LANES):
        shift = bits * width // 8
        low = np.uint64(ones * ((1 << shift) - 1))
        lanes = (lanes >> np.uint64(shift)) & low | (lanes & low) << np.uint64(width)
    return lanes.view(np.uint8)


# ---- decoding


def decode(fields: IDSTFields, rows: int, columns: int) -> CodedWeights | Floats:
    """Weights [rows, columns] of a table; floats where they are not evenly spaced codes (float16, sparse float).

    `rows` is the number of runs with scales of their own (output channels). Raises `bad-weight-coding`.
    """
    if rows < 1 or columns < 1:
        _bad(f"{rows} rows of {columns} weights")
    if fields.type == HALF:
        return _decode_half(fields, rows, columns)
    if fields.type == SPARSE_FLOAT and fields.index is not None:
        return _decode_sparse_float(fields, rows, columns)
    if fields.type not in (DENSE, SPARSE, RAW_INT8):
        _bad(f"coding type {fields.type} is not known")
    scale, minimum, lowest = _grid(fields, rows, columns)
    half = _has_half(fields) and fields.quantScale in (0, 1)
    reader = _Reader(fields.buffer, fields.shapeInt32)
    if fields.type == DENSE:
        return _decode_dense(fields, (rows, columns), scale, minimum, lowest, half)
    if fields.type == RAW_INT8:
        values, codebook = reader.take(rows * columns).view(np.int8), np.arange(-128, 128, dtype=np.int8)
    else:
        values, codebook = _read_sparse(reader, rows * columns, scale, minimum, lowest)
    return _assemble(values.reshape(rows, columns), codebook, scale, minimum, lowest, half)


def _decode_dense(
    fields: IDSTFields, shape: tuple[int, int], scale: Floats, minimum: Floats | None, lowest: int, half: bool
) -> CodedWeights | Floats:
    """Codes are read when they are asked for, and may be let go then; before, only what can be wrong with them is.

    Asking raises `file-changed` where the file was written to in place meanwhile.
    """

    def read(codes: bool = True) -> tuple[Codes, Codes]:
        check_mapped(fields.buffer)
        reader = _Reader(fields.buffer, fields.shapeInt32)
        reader.dimensions(math.prod(shape))
        codebook = reader.codebook()
        packed, bits = reader.indices(codebook, math.prod(shape))
        if not codes and len(codebook) == 1 << bits and _is_even(codebook):
            return np.broadcast_to(codebook[:1], shape), codebook  # any index is right: a stand-in of no size
        values = _looked_up(codebook, packed, bits, math.prod(shape)).reshape(shape)
        release_array(fields.buffer)  # they are in memory now
        return values, codebook

    coded = _assemble(*read(codes=False), scale, minimum, lowest, half)
    if isinstance(coded, CodedWeights):
        coded.reread_by(lambda: read()[0])
        coded.let_go()
    return coded


def element_count(fields: IDSTFields) -> int:
    """How many weights a table says it holds. Raises `bad-weight-coding`."""
    if fields.type in (DENSE, SPARSE):
        return math.prod(_Reader(fields.buffer, fields.shapeInt32).dimensions())
    sizes = {HALF: fields.buffer.size // 2, RAW_INT8: fields.buffer.size, SPARSE_FLOAT: fields.weightSize}
    if fields.type not in sizes:
        _bad(f"coding type {fields.type} is not known")
    return sizes[fields.type]


def _bad(what: str) -> NoReturn:
    raise ConversionError.of("bad-weight-coding", f"the coded weights are damaged: {what}")


def _need(array: NDArray[T] | None, name: str) -> NDArray[T]:
    if array is None:
        _bad(f"{name} is missing")
    return array


class _Reader:
    """Takes the parts of a coded buffer one after the other. Spare bytes at the end are allowed, as in the runtime."""

    def __init__(self, buffer: NDArray[np.generic], wide: bool):
        self.data = buffer.view(np.uint8)
        self.wide = wide

    def take(self, size: int) -> Bytes:
        if size > len(self.data):
            _bad(f"the buffer ends {size - len(self.data)} bytes early")
        head, self.data = self.data[:size], self.data[size:]
        return head

    def dimensions(self, count: int | None = None) -> list[int]:
        """The shape in the header, which must hold `count` weights."""
        width = 4 if self.wide else 2
        dims = [int(d) for d in self.take(int(self.take(1)[0]) * width).view(f"<u{width}")]
        if not dims or count not in (None, math.prod(dims)):
            _bad(f"dimensions {dims} for {count} weights")
        if math.prod(dims) > MOST_WEIGHTS:
            _bad(f"{len(dims)} dimensions for more than {MOST_WEIGHTS} weights")
        return dims

    def codebook(self) -> Codes:
        return self.take(int(self.take(1)[0]) or 256).view(np.int8)

    def indices(self, codebook: Codes, count: int) -> tuple[Bytes, int]:
        """`count` packed indices into the codebook, and their width, which follows from the codebook's length."""
        bits = (len(codebook) - 1).bit_length()
        return self.take((count * bits + 7) // 8), bits


def _looked_up(codebook: Codes, packed: Bytes, bits: int, count: int) -> Codes:
    """`count` codes by their packed indices in a codebook."""
    if bits in (1, 2, 4, 8) and len(codebook) == 1 << bits:  # all codes of a byte at once
        shifts = np.arange(8 - bits, -1, -bits)
        codes = codebook[np.arange(256)[:, None] >> shifts & (1 << bits) - 1]
        return _taken(codes.view(f"u{len(shifts)}").reshape(-1), packed).view(np.int8)[:count]
    index = unpack(packed, bits, count)
    if count and index.max() >= len(codebook):
        _bad(f"code index {index.max()} in a codebook of {len(codebook)}")
    return _taken(codebook, index)


def _taken(table: NDArray[T], index: Bytes) -> NDArray[T]:
    """table[index], in pieces that stay in the cache."""
    result = np.empty(index.size, table.dtype)
    for start in range(0, index.size, CHUNK):
        part = slice(start, start + CHUNK)
        np.take(table, index[part], out=result[part], mode="clip")  # indices fit; looking is what takes time
    return result


def _read_sparse(
    reader: _Reader, count: int, scale: Floats, minimum: Floats | None, lowest: int
) -> tuple[Codes, Codes]:
    """Stored entries over a background: the code that is nearest to 0 in each run of dims[0]."""
    runs = reader.dimensions(count)[0]
    stored = int(reader.take(4).view("<u4")[0])
    width = int(reader.take(1)[0])
    if stored > count or width > 32:
        _bad(f"{stored} entries with {width}-bit steps for {count} weights")
    positions = _positions(reader.take((stored * width + 7) // 8), stored, width)
    if stored and positions[-1] >= count:
        _bad(f"entry at {positions[-1]} of {count} weights")
    codebook = reader.codebook()
    codes = np.zeros(count, np.int8)
    background = np.zeros(1, np.int8)
    if minimum is not None and scale.size == runs:
        background = _background(scale, minimum, lowest).ravel()
        codes.reshape(runs, -1)[:] = background[:, None]
    codes[positions] = _looked_up(codebook, *reader.indices(codebook, stored), stored)
    return codes, np.union1d(codebook, background)


def _positions(packed: Bytes, count: int, width: int) -> NDArray[np.int64]:
    """Running sum of `count` unsigned numbers of `width` <= 32 bits, first one in the top bits."""
    steps = np.zeros(count, np.int64)
    for start in range(0, count if width else 0, CHUNK):
        part = packed[start * width // 8 : (min(start + CHUNK, count) * width + 7) // 8]
        bits = np.unpackbits(part)[: min(CHUNK, count - start) * width].reshape(-1, width)
        steps[start : start + CHUNK] = bits @ (1 << np.arange(width - 1, -1, -1, dtype=np.int64))
    return np.cumsum(steps)


def _background(scale: Floats, minimum: Floats, lowest: int) -> Codes:
    steps = np.divide(-minimum, scale, out=np.zeros_like(scale), where=scale != 0)
    codes: Codes = np.clip(np.trunc(steps + np.copysign(0.5, steps)) + lowest, -128, 127).astype(np.int8)
    return codes


def _grid(fields: IDSTFields, rows: int, columns: int) -> tuple[Floats, Floats | None, int]:
    """Scale and minimum [rows, blocks], and the code whose value is the minimum."""
    numbers = _numbers(fields)
    old = fields.type == RAW_INT8 and fields.aMin == 0 and abs(fields.quantScale) < 1e-6
    pairs = fields.readType != 0 or old
    per_row, rest = divmod(numbers.size, rows * (2 if pairs else 1))
    if rest or not per_row or columns % per_row:
        _bad(f"{numbers.size} scales{' and minima' if pairs else ''} for {rows} rows of {columns} weights")
    if fields.quantScale and not old and not fields.has_scaleInt:
        numbers = numbers * np.float32(fields.quantScale)
    if not pairs:
        return numbers.reshape(rows, per_row), None, 0
    grid = numbers.reshape(rows, per_row, 2)
    lowest = 0 if fields.aMin > 0 else fields.aMin or -128  # a positive aMin marks offsets that belong to code 0
    return np.ascontiguousarray(grid[..., 1]), np.ascontiguousarray(grid[..., 0]), lowest


def _numbers(fields: IDSTFields) -> Floats:
    half = _has_half(fields)
    stored = _need(fields.alphaFp16, "alphaFp16").view(np.float16) if half else _need(fields.alpha, "alpha")
    if not np.isfinite(stored).all():
        _bad("a scale or minimum is not finite")
    return stored.astype(np.float32)


def _has_half(fields: IDSTFields) -> bool:
    return fields.alphaFp16 is not None and fields.alphaFp16.size > 0


def _assemble(
    values: Codes, codebook: Codes, scale: Floats, minimum: Floats | None, lowest: int, half: bool
) -> CodedWeights | Floats:
    """Coded weights, with the minimum moved to the lowest code of their width; floats if the codebook has gaps."""
    least, greatest = int(codebook.min()), int(codebook.max())
    bits = max(2, (max(greatest, -least - 1)).bit_length() + 1)
    shift = np.float32(-(1 << (bits - 1)) - lowest)
    if minimum is not None and shift:
        minimum, half = minimum + shift * scale, False
    coded = CodedWeights(values, scale, minimum, bits, half)
    return coded if _is_even(codebook) else coded.decode()


def _is_even(codebook: Codes) -> bool:
    """Whether a codebook has no gaps."""
    return len(np.unique(codebook)) == int(codebook.max()) - int(codebook.min()) + 1


def _decode_half(fields: IDSTFields, rows: int, columns: int) -> Floats:
    buffer = fields.buffer.view(np.uint8)
    if buffer.size != 2 * rows * columns:
        _bad(f"{buffer.size} bytes for {rows * columns} float16 weights")
    return buffer.view("<f2").astype(np.float32).reshape(rows, columns)


def _decode_sparse_float(fields: IDSTFields, rows: int, columns: int) -> Floats:
    values, index = _need(fields.alpha, "alpha"), _need(fields.index, "index")
    if fields.weightSize != rows * columns or values.size != index.size:
        _bad(f"{values.size} values at {index.size} positions of {fields.weightSize}, for {rows * columns} weights")
    if index.size and index.max() >= rows * columns:
        _bad(f"position {index.max()} of {rows * columns} weights")
    weights = np.zeros(rows * columns, np.float32)
    weights[index] = values
    return weights.reshape(rows, columns)
