"""Tensors wherever their data are: arrays, files, lazy changes, transposes, halves, codes."""

import io
import tracemalloc

import numpy as np
import pytest

from mnnconvert.errors import ConversionError
from mnnconvert.ir import (
    ArrayTensor,
    CastTensor,
    CodedTensor,
    FileTensor,
    HalfTensor,
    LazyTensor,
    ReshapedTensor,
    TransposedMatrix,
)
from mnnconvert.ir.coded import gathered
from mnnconvert.ir.tensor import content_digest, equal, file_of, fingerprint, picked, row_blocks, transposed
from mnnconvert.quantizers.rtn import quantize


def written(tensor) -> bytes:
    stream = io.BytesIO()
    tensor.write_to(stream)
    return stream.getvalue()


@pytest.fixture
def matrix():
    return np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)


@pytest.fixture
def in_file(matrix, tmp_path):
    path = tmp_path / "w.bin"
    path.write_bytes(b"abcd" + matrix.tobytes() + b"tail")
    return FileTensor(path, 4, matrix.dtype, matrix.shape)


def tensors(matrix, in_file):
    return {
        "array": (ArrayTensor(matrix), matrix),
        "strided": (ArrayTensor(matrix.T), matrix.T),
        "file": (in_file, matrix),
        "lazy": (LazyTensor(ArrayTensor(matrix), lambda a: a * 2, matrix.dtype, (24,)), (matrix * 2).reshape(24)),
        "transposed": (TransposedMatrix(ArrayTensor(matrix)), matrix.T),
        "transposed file": (TransposedMatrix(in_file), matrix.T),
        "reshaped": (ReshapedTensor(TransposedMatrix(in_file), (4, 6, 1, 1)), matrix.T.reshape(4, 6, 1, 1)),
        "half": (HalfTensor(ArrayTensor(matrix.astype(np.float16))), matrix.astype(np.float16).astype(np.float32)),
    }


@pytest.mark.parametrize(
    "name", ["array", "strided", "file", "lazy", "transposed", "transposed file", "reshaped", "half"]
)
def test_array_bytes_and_shape_agree(name, matrix, in_file):
    tensor, want = tensors(matrix, in_file)[name]
    np.testing.assert_array_equal(tensor.numpy(), want)
    assert tuple(tensor.shape) == want.shape and tensor.dtype == want.dtype
    assert written(tensor) == want.tobytes()


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_row_blocks_are_the_rows(rows, matrix, in_file):
    for tensor in (ArrayTensor(matrix), in_file, ReshapedTensor(TransposedMatrix(in_file), (4, 6, 1, 1))):
        got = np.concatenate(list(row_blocks(tensor, rows)))
        np.testing.assert_array_equal(got, tensor.numpy().reshape(rows, -1))


def test_codes_read_as_floats(matrix):
    coded = quantize(matrix, 8, 0, False, False)
    tensor = CodedTensor(coded, (6, 2, 2))
    assert tensor.dtype == np.float32 and tensor.nbytes == coded.nbytes_encoded
    np.testing.assert_allclose(tensor.numpy().reshape(6, 4), matrix, atol=0.02)


def test_a_file_that_ends_early_is_a_diagnostic(in_file):
    short = FileTensor(in_file.path, 4, in_file.dtype, (60, 4))
    for read in (short.numpy, lambda: written(short)):
        with pytest.raises(ConversionError) as caught:
            read()
        assert caught.value.diagnostics[0].reference == "truncated-file"


def test_streaming_a_file_holds_little(tmp_path):
    path = tmp_path / "big.bin"
    with path.open("wb") as file:
        file.truncate(200 << 20)
    tensor = FileTensor(path, 0, np.dtype(np.float32), (50 << 20,))

    class Sink:
        def write(self, data):
            return len(data)

    tracemalloc.start()
    tensor.write_to(Sink())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40 << 20


def test_equal_content_has_equal_keys(matrix, in_file):
    same = ArrayTensor(matrix.copy())
    other = ArrayTensor(matrix + 1)
    assert fingerprint(ArrayTensor(matrix)) == fingerprint(same) != fingerprint(other)
    assert content_digest(ArrayTensor(matrix)) == content_digest(in_file) != content_digest(other)


def test_elements_are_picked_where_they_lie(matrix, in_file):
    for name, (tensor, want) in tensors(matrix, in_file).items():
        found = picked(tensor, 5)
        if name in ("lazy", "half"):
            assert found is None  # they would have to be computed
        else:
            np.testing.assert_array_equal(found, want.reshape(-1)[np.linspace(0, 23, 5).astype(int)])
    np.testing.assert_array_equal(picked(CastTensor(in_file, np.dtype("f8")), 100), matrix.reshape(-1).astype("f8"))
    assert picked(np.empty(0), 4) is None


def test_tensors_are_equal_by_their_bytes(matrix, in_file):
    other = matrix.copy()
    other[3, 1] += 1
    assert equal(in_file, ArrayTensor(matrix)) and equal(in_file, in_file)
    assert equal(TransposedMatrix(in_file), ArrayTensor(np.ascontiguousarray(matrix.T)))
    assert not equal(in_file, ArrayTensor(other))
    assert not equal(in_file, ReshapedTensor(ArrayTensor(matrix), (24,)))
    assert not equal(ArrayTensor(matrix), ArrayTensor(matrix.view(np.int32)))


def test_casts_are_done_last(matrix, in_file):
    cast = transposed(CastTensor(in_file, np.dtype("f8")))
    assert isinstance(cast, CastTensor) and isinstance(cast.source, TransposedMatrix)
    np.testing.assert_array_equal(cast.numpy(), matrix.T.astype("f8"))
    assert written(cast) == np.ascontiguousarray(matrix.T).astype("f8").tobytes()
    assert transposed(cast).source is in_file
    assert file_of(cast) == in_file.path and file_of(ArrayTensor(matrix)) is None


@pytest.mark.parametrize("symmetric", [False, True])
def test_rows_of_codes_are_gathered(symmetric):
    weights = np.random.default_rng(0).standard_normal((7, 32)).astype(np.float32)
    whole = quantize(weights, 4, 16, symmetric)
    parts = [quantize(rows, 4, 16, symmetric) for rows in (weights[:3], weights[3:4], weights[4:])]
    found = gathered(whole.form, parts)
    np.testing.assert_array_equal(found.codes, whole.codes)
    np.testing.assert_array_equal(found.decode(), whole.decode())
    with pytest.raises(ValueError, match="4 rows of codes for 7"):
        gathered(whole.form, parts[:2])
