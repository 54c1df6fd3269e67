"""Tensors wherever their data are: arrays, files, lazy changes, transposes, halves, codes."""

import io
import tracemalloc

import numpy as np
import pytest

from mnnconvert.errors import ConversionError
from mnnconvert.ir import ArrayTensor, CodedTensor, FileTensor, HalfTensor, LazyTensor, ReshapedTensor, TransposedMatrix
from mnnconvert.ir.tensor import content_digest, fingerprint, row_blocks
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
