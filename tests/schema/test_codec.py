"""Weight coding: worked examples to the byte, round trips, every kind of table a file may hold, and damage."""

import dataclasses

import numpy as np
import pytest

from mnnconvert.errors import ConversionError
from mnnconvert.ir.coded import CodedWeights
from mnnconvert.quantizers import rtn
from mnnconvert.quantizers.blocks import Form, Grids, nearest_codes
from mnnconvert.schema.codec import IDSTFields, decode, element_count, encode, encode_half, pack, packed

F = np.float32
EXAMPLE = np.array([[1, -0.5, 0.25, 0], [2, -1, 0.5, 0]], F)
ALL_BYTES = bytes((i - 128) & 255 for i in range(256)).hex()


def data(hexadecimal):
    return np.frombuffer(bytes.fromhex(hexadecimal), np.uint8)


@pytest.mark.parametrize(
    ("bits", "symmetric", "alpha", "buffer"),
    [
        (8, True, [0.00787401573, 0.0157480315], f"020200040000{ALL_BYTES}ff40a080ff40a080"),
        (8, False, [-0.5, 0.00588235306, -1, 0.0117647061], f"020200040000{ALL_BYTES}ff008055ff008055"),
        (4, True, [0.142857149, 0.285714298], "020200040010f8f9fafbfcfdfeff0001020304050607f5a8f5a8"),
        (4, False, [-0.5, 0.1, -1, 0.2], "020200040010f8f9fafbfcfdfeff0001020304050607f085f085"),
        (3, False, [-0.5, 0.214285716, -1, 0.428571433], "020200040008fcfdfeff00010203e22e22"),
        (2, True, [1, 2], "020200040004feff0001dada"),
    ],
)
def test_worked_examples_to_the_byte(bits, symmetric, alpha, buffer):
    coded = rtn.quantize(EXAMPLE, bits, symmetric=symmetric)
    fields = encode(coded)
    assert fields.buffer.tobytes().hex() == buffer
    assert fields.alpha.tolist() == np.array(alpha, F).tolist()
    assert (fields.type, fields.aMaxOrBits, fields.quantScale, fields.scaleStorage) == (1, bits, 1.0, 0)
    assert (fields.readType, fields.aMin) == ((0, 0) if symmetric else (2, -(2 ** (bits - 1))))


def test_blocks_stand_in_the_dimensions():
    fields = encode(rtn.quantize(np.random.default_rng(0).standard_normal((2, 64)).astype(F), 4, 32))
    assert fields.buffer[:6].tobytes().hex() == "020400200010" and fields.readType == 4 and fields.alpha.size == 8


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize(("shape", "block"), [((3, 7), 0), ((5, 66), 33), ((3, 40000), 20000), ((70000, 2), 1)])
def test_round_trip(bits, symmetric, half, shape, block):
    weights = np.random.default_rng(bits).standard_normal(shape).astype(F)
    coded = rtn.quantize(weights, bits, block, symmetric, half)
    fields = encode(coded)
    stored = fields.alphaFp16 if half else fields.alpha
    assert fields.buffer.nbytes + stored.nbytes == coded.nbytes_encoded
    assert fields.shapeInt32 == (shape[0] > 65535)
    assert element_count(fields) == weights.size
    back = decode(fields, *shape)
    assert isinstance(back, CodedWeights) and (back.bits, back.half_scales) == (bits, half)
    assert (back.codes == coded.codes).all() and (back.scale == coded.scale).all()
    assert symmetric or (back.minimum == coded.minimum).all()


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (5, 51), (2, 64), (1, 4099)])
def test_packed_codes_are_those_of_the_scalar_oracle(bits, symmetric, shape):
    """The highest bit first, one code after the other through all rows, the last byte filled with zeros."""
    rng = np.random.default_rng(bits)
    codes = rng.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), shape).astype(np.int8)
    scale = rng.standard_normal((shape[0], 1)).astype(F)
    fields = encode(CodedWeights(codes, scale, None if symmetric else scale + F(1), bits))
    text = "".join(f"{code + 2 ** (bits - 1):0{bits}b}" for code in codes.reshape(-1).tolist())
    text += "0" * (-len(text) % 8)
    expected = bytes(int(text[i : i + 8], 2) for i in range(0, len(text), 8))
    assert fields.buffer.tobytes()[-len(expected) :] == expected
    assert (decode(fields, *shape).codes == codes).all()


def test_decoded_values_and_rows():
    coded = rtn.quantize(np.random.default_rng(0).standard_normal((300, 8192)).astype(F), 5, 64)
    expected = (coded.codes + F(16)).reshape(300, 128, 64) * coded.scale[..., None] + coded.minimum[..., None]
    assert (coded.decode() == expected.reshape(300, 8192)).all()
    assert (coded.decode_rows(7, 9) == expected.reshape(300, 8192)[7:9]).all()
    assert (coded.decode(np.float16) == expected.reshape(300, 8192).astype(np.float16)).all()


@pytest.mark.parametrize(
    "wrong",
    [
        {"bits": 9},
        {"codes": np.zeros((2, 4), np.uint8)},
        {"codes": np.zeros((0, 4), np.int8)},
        {"scale": np.ones((3, 1), F)},
        {"scale": np.ones((2, 3), F)},
        {"scale": np.ones((2, 0), F)},
        {"minimum": np.ones((2, 2), F)},
        {"minimum": np.ones((2, 1))},
    ],
)
def test_parts_that_do_not_fit_are_refused(wrong):
    parts = {"codes": np.zeros((2, 4), np.int8), "scale": np.ones((2, 1), F), "minimum": None, "bits": 4}
    with pytest.raises(ValueError):
        CodedWeights(**(parts | wrong))


# ---- tables that we do not write


def raw(codes, alpha, **fields):
    return IDSTFields(type=4, buffer=np.array(codes, np.int8).view(np.uint8), alpha=np.array(alpha, F), **fields)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (raw([1, -2], [0.5], quantScale=1.0), [0.5, -1]),
        (raw([1, -2], [0.5], quantScale=2.0), [1, -2]),
        (raw([1, -2], [0.5], quantScale=2.0, has_scaleInt=True), [0.5, -1]),
        (raw([1, -128], [3, 0.5], readType=1, aMin=-128, quantScale=1.0), [67.5, 3]),
        (raw([1, -128], [3, 0.5], readType=1, aMin=0, quantScale=1.0), [67.5, 3]),
        (raw([1, -2], [3, 0.5], readType=1, aMin=1, quantScale=1.0), [3.5, 2]),
        (raw([1, -8], [3, 0.5], readType=1, aMin=-8, quantScale=2.0), [15, 6]),
        (raw([1, -128], [3, 0.5]), [67.5, 3]),
    ],
    ids=["symmetric", "scaled", "int-scale", "asymmetric", "zero-is-128", "zero-offset", "small-codes", "old"],
)
def test_rules_of_the_scales(fields, expected):
    assert decode(fields, 1, 2).decode().tolist() == [expected]


def test_raw_scales_with_a_factor_are_not_pairs():
    assert decode(raw([1, 1], [3, 0.5], quantScale=1.0), 2, 1).decode().tolist() == [[3], [0.5]]


def test_dimensions_of_other_writers_and_plain_codebooks():
    dense = encode(rtn.quantize(np.random.default_rng(0).standard_normal((2, 64)).astype(F), 4, 32))
    flat = dense.buffer.copy()
    flat[1:5] = [2, 0, 64, 0]  # [rows, columns] although blocked
    assert (decode(dataclasses.replace(dense, buffer=flat), 2, 64).codes == decode(dense, 2, 64).codes).all()


def test_gaps_in_the_codebook_give_floats():
    fields = IDSTFields(type=1, buffer=data("02010003000300057f" + "18"), alpha=np.array([0.5], F))  # indices 0, 1, 2
    weights = decode(fields, 1, 3)
    assert isinstance(weights, np.ndarray) and weights.tolist() == [[0, 2.5, 63.5]]


def test_float16_and_sparse_floats():
    half = encode_half(EXAMPLE)
    assert half.type == 3 and (decode(half, 2, 4) == EXAMPLE).all() and element_count(half) == 8
    sparse = IDSTFields(
        type=0, buffer=data(""), alpha=np.array([5, 6], F), index=np.array([1, 5], np.uint32), weightSize=6
    )
    assert decode(sparse, 2, 3).tolist() == [[0, 5, 0], [0, 0, 6]] and element_count(sparse) == 6


def test_float16_overflow_names_the_largest_weight():
    with pytest.raises(ConversionError, match=r"half-overflow: .* 70000,"):
        encode_half(np.array([66000, -70000], F))
    with pytest.raises(ConversionError, match="non-finite-weight"):
        encode_half(np.array([np.nan], F))


def bit_string(numbers, width):
    text = "".join(format(int(n), f"0{width}b") for n in numbers)
    return np.packbits([int(c) for c in text] or np.zeros(0, np.uint8))


def sparse_table(coded, background, step_bits):
    """Encode entries that differ from `background` [rows * blocks] as steps, with fillers over long gaps."""
    flat = coded.codes.reshape(len(background), -1)
    wanted = np.flatnonzero(flat != background[:, None])
    positions = []
    for p in wanted:
        last = positions[-1] if positions else 0
        while p - last >= 1 << step_bits:
            last += (1 << step_bits) - 1
            positions.append(last)
        positions.append(p)
    steps = np.diff(positions, prepend=0)
    codebook = np.arange(coded.lowest, -coded.lowest).astype(np.int8)
    parts = [
        np.array([2], np.uint8), np.array(flat.shape, "<u2").view(np.uint8),
        np.array([len(steps)], "<u4").view(np.uint8),
        np.array([step_bits], np.uint8), bit_string(steps, step_bits), np.array([len(codebook) & 255], np.uint8),
        codebook.view(np.uint8), bit_string(flat.ravel()[positions].astype(int) - coded.lowest, coded.bits),
    ]  # fmt: skip
    return dataclasses.replace(encode(coded), type=2, buffer=np.concatenate(parts))


@pytest.mark.parametrize("step_bits", [2, 5, 8, 11])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bits", [3, 4, 8])
def test_sparse_codes(bits, symmetric, step_bits):
    rng = np.random.default_rng(bits)
    weights = (rng.standard_normal((6, 96)) * (rng.random((6, 96)) < 0.1)).astype(F)
    coded = rtn.quantize(weights, bits, 48, symmetric)
    grids, form = Grids(coded.scale, coded.minimum), Form(bits, 1, symmetric)
    background = nearest_codes(np.zeros((6, 2), F), grids, form).ravel()
    fields = sparse_table(coded, background, step_bits)
    assert element_count(fields) == weights.size
    assert (decode(fields, 6, 96).codes == coded.codes).all()


# ---- damage

GOOD = encode(rtn.quantize(EXAMPLE, 3))


@pytest.mark.parametrize(
    "change",
    [
        {"buffer": GOOD.buffer[:-1]},
        {"buffer": GOOD.buffer[:4]},
        {"buffer": GOOD.buffer[:0]},
        {"buffer": np.zeros(9, np.uint8)},
        {"buffer": data("020200040005" + "0001020304" + "ffffff")},  # index 7 in a codebook of 5
        {"shapeInt32": True},
        {"alpha": None},
        {"alpha": GOOD.alpha[:3]},
        {"alpha": GOOD.alpha[:0]},
        {"alpha": np.full(4, np.nan, F)},
        {"alpha": np.ones(12, F)},
        {"type": 2},
        {"type": 3},
        {"type": 4, "buffer": GOOD.buffer[:7]},
        {"type": 0},
        {"type": 0, "index": np.arange(4, dtype=np.uint32), "weightSize": 7},
        {"type": 0, "index": np.arange(3, dtype=np.uint32), "weightSize": 8},
        {"type": 0, "index": np.arange(5, 9, dtype=np.uint32), "weightSize": 8},
        {"type": 8},
        {"type": 2, "buffer": data("020200040009000000" + "01" + "0000")},  # more entries than weights
        {"type": 2, "buffer": data("020200040001000000" + "08" + "09" + "0200010000")},  # beyond the end
        {"type": 2, "buffer": data("020200040001000000" + "ff" + "00" * 40)},  # steps of 255 bits
    ],
)
def test_damage_is_a_diagnostic(change):
    with pytest.raises(ConversionError, match="bad-weight-coding"):
        decode(dataclasses.replace(GOOD, **change), 2, 4)


@pytest.mark.parametrize(("rows", "columns"), [(2, 5), (4, 2), (0, 8), (-2, -4)])
def test_shapes_that_do_not_fit_are_refused(rows, columns):
    alpha = GOOD.alpha if rows != 4 else GOOD.alpha[:2]
    with pytest.raises(ConversionError, match="bad-weight-coding"):
        decode(dataclasses.replace(GOOD, alpha=alpha), rows, columns)


def test_no_random_bytes_cause_anything_but_a_diagnostic():
    rng = np.random.default_rng(0)
    for _ in range(2000):
        buffer = GOOD.buffer.copy()
        buffer[rng.integers(0, len(buffer), 2)] = rng.integers(0, 256, 2)
        fields = dataclasses.replace(GOOD, buffer=buffer, type=int(rng.integers(1, 3)))
        try:
            decode(fields, 2, 4)
        except ConversionError as error:
            assert error.diagnostics[0].reference == "bad-weight-coding"


@pytest.mark.parametrize("bits", range(2, 9))
def test_codes_of_a_file_can_be_let_go(bits):
    coded = rtn.quantize(np.random.default_rng(bits).standard_normal((5, 66)).astype(F), bits, 33)
    back = decode(encode(coded), 5, 66)
    for _ in range(2):
        assert "codes" not in vars(back) and (back.shape, back.block, back.nbytes_encoded) == (
            (5, 66), 33, coded.nbytes_encoded
        )  # fmt: skip
        assert (back.codes == coded.codes).all() and back.codes is back.codes
        back.let_go()
    part = dataclasses.replace(back, codes=back.codes[:2], scale=back.scale[:2], minimum=back.minimum[:2])
    part.let_go()  # nothing can make these again
    assert (part.codes == coded.codes[:2]).all() and part.shape == (2, 66)


def test_an_index_beyond_a_short_codebook_is_found_at_once():
    short = "020200040003" + "ff0001"  # three codes, so two bits for each
    assert decode(dataclasses.replace(GOOD, buffer=data(short + "1860")), 2, 4).codes[0].tolist() == [-1, 0, 1, -1]
    with pytest.raises(ConversionError, match="code index 3"):
        decode(dataclasses.replace(GOOD, buffer=data(short + "18e0")), 2, 4)


@pytest.mark.parametrize("sizes", ["ff" + "ffff" * 255, "02" + "ffff" * 2 + "00", "03" + "ffff" * 3])
def test_no_op_has_so_many_weights(sizes):
    with pytest.raises(ConversionError) as caught:
        element_count(dataclasses.replace(GOOD, buffer=data(sizes)))
        decode(dataclasses.replace(GOOD, buffer=data(sizes)), 2, 4)
    assert caught.value.diagnostics[0].reference == "bad-weight-coding"


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("cuts", [[], [8, 64], [1, 2, 3, 5], [0, 13, 13, 170]])
def test_codes_in_parts_are_packed_as_in_one(bits, cuts):
    codes = np.random.default_rng(bits).integers(-(2 ** (bits - 1)), 2 ** (bits - 1), 171).astype(np.int8)
    whole = np.empty((codes.size * bits + 7) // 8, np.uint8)
    pack(codes, bits, whole)
    assert b"".join(p.tobytes() for p in packed(np.split(codes, cuts), bits)) == whole.tobytes()
