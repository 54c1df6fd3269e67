"""Copies: every view that numpy can express, at every element size, and picks through tables."""

import itertools

import numpy as np
import pytest
from kernels import both, guard, guarded

from mnnconvert.runtime_ref.strided import copy_parameters, merged, phantom

DTYPES = [np.uint8, np.float16, np.float32]


def numbered(shape, dtype):
    """Neighbouring elements differ, also those that are 256 apart."""
    flat = np.arange(np.prod(shape, dtype=int))
    return guarded((flat * 7 + flat // 251).astype(np.uint16).view(np.int16).reshape(shape).astype(dtype))


def copied(lib, x, view):
    """What the kernel makes of a view; `view` is a function of an array."""
    want = view(x)
    parameters = copy_parameters(view(phantom(x.shape, x.dtype)), phantom(want.shape, x.dtype))
    np.testing.assert_array_equal(both(lib, "copy_strided", want.shape, x.dtype, x=x, **parameters), want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape", [(2, 3), (3, 17), (17, 3), (4, 4), (5, 9), (16, 16), (33, 63), (63, 33), (64, 2), (1, 7), (200, 300)]
)
def test_matrices_are_transposed(lib, dtype, shape):
    copied(lib, numbered(shape, dtype), np.transpose)


@pytest.mark.parametrize("perm", list(itertools.permutations(range(4))))
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (3, 16, 5, 8), (1, 9, 1, 33)])
def test_axes_in_any_order(lib, perm, shape):
    for dtype in DTYPES:
        copied(lib, numbered(shape, dtype), lambda x: x.transpose(perm))


VIEWS = [
    lambda x: x[1:, 2:5],
    lambda x: x[:, ::2],
    lambda x: x[:, 1::3, ::2],
    lambda x: x[..., ::-1],
    lambda x: x[::-1, ::-2],
    lambda x: x[..., 1:4],
    lambda x: x[..., 2],
    lambda x: x[0, 1, 2, ...],
    lambda x: x[:, :0],
    lambda x: np.broadcast_to(x[:, :1], x.shape),
    lambda x: np.broadcast_to(x[..., :1], x.shape),
    lambda x: np.broadcast_to(x, (3, *x.shape)),
    lambda x: np.broadcast_to(x[0, 0, 0, ...], (3, 100)),
    lambda x: x[:, ::-1].T,
    lambda x: x[:, :, None, ::2],
]


@pytest.mark.parametrize("number", range(len(VIEWS)))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 6, 5), (4, 7, 16), (2, 9, 63)])
def test_views_are_copied(lib, number, dtype, shape):
    copied(lib, numbered(shape, dtype), VIEWS[number])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [*range(1, 36), 63, 64, 65, 127, 511, 513])
def test_parts_are_written_and_nothing_else(lib, dtype, length):
    x = numbered((3, length), dtype)
    whole, check = guard((3, length + 5), dtype)
    marked = whole.copy()
    lib.call(
        "copy_strided", x=x, y=whole, **copy_parameters(phantom(x.shape, dtype), phantom(whole.shape, dtype)[:, 2:-3])
    )
    marked[:, 2:-3] = x
    check()
    assert whole.tobytes() == marked.tobytes()


def test_parts_of_many_axes_are_joined(lib):
    a, b = numbered((2, 3, 4, 5), np.float32), numbered((2, 6, 4, 5), np.float32)
    y, check = guard((2, 9, 5, 4))
    target = phantom(y.shape, y.dtype).transpose(0, 1, 3, 2)
    for x, place in ((a, target[:, :3]), (b, target[:, 3:])):
        lib.call("copy_strided", x=x, y=y, **copy_parameters(phantom(x.shape, x.dtype), place))
    check()
    np.testing.assert_array_equal(y, np.concatenate([a, b], 1).transpose(0, 1, 3, 2))


def test_a_large_copy_is_shared_by_threads(lib):
    copied(lib, numbered((3, 50000), np.float32), lambda x: x[:, 1:-1])
    copied(lib, numbered((50000, 3), np.float32), np.transpose)


def test_neighbouring_axes_are_merged():
    x = phantom((2, 3, 4, 5), np.float32)
    assert merged([(2, 240, 240), (3, 80, 80), (4, 20, 20), (5, 4, 4)]) == [(120, 4, 4)]
    parameters = copy_parameters(x.transpose(0, 2, 3, 1), phantom((2, 4, 5, 3), np.float32))
    assert [parameters[f"n{i}"] for i in range(8)] == [1, 1, 1, 1, 1, 2, 20, 3]


def test_short_runs_are_one_element():
    parameters = copy_parameters(phantom((8, 9, 2), np.float32).transpose(1, 0, 2), phantom((9, 8, 2), np.float32))
    assert parameters["bytes"] == 8 and [parameters["n6"], parameters["n7"]] == [9, 8]


def test_more_axes_than_a_kernel_has_are_refused():
    x = phantom((2,) * 20, np.float32)
    with pytest.raises(ValueError, match="20 axes"):
        copy_parameters(x.transpose(*range(0, 20, 2), *range(1, 20, 2)), x.transpose(range(19, -1, -1)))


def picked(lib, x, value, tables):
    """x at all combinations of the indices in `tables`, which has one per axis of x; -1 is outside."""
    sizes = [1] * (6 - x.ndim) + [len(t) for t in tables]
    offsets = [np.zeros(1, np.int64)] * (6 - x.ndim)
    offsets += [np.where(t < 0, -1, t * s) for t, s in zip(map(np.asarray, tables), x.strides, strict=True)]
    n = {f"n{i}": size for i, size in enumerate(sizes)}
    table = guarded(np.concatenate(offsets).astype(np.int64))
    unit = np.array([value], x.dtype)
    return both(lib, "pick", [len(t) for t in tables], x.dtype, x=x, value=unit, table=table, bytes=x.itemsize, **n)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.complex128])
@pytest.mark.parametrize("columns", [[0, 0, 1, 1, 2, 2], [1, 0, 3], [*range(20)], [-1, -1, *range(5, 20), -1, 3, 2]])
def test_any_selection_is_picked(lib, dtype, columns):
    x = numbered((3, 20), np.float32).astype(dtype)
    rows = [1, 0, 0, -1, -1, 2]
    want = x[np.ix_(rows, columns)]
    want[np.array(rows) < 0], want[:, np.array(columns) < 0] = 9, 9
    np.testing.assert_array_equal(picked(lib, x, 9, [rows, columns]), want)


@pytest.mark.parametrize("mode", ["constant", "reflect", "symmetric", "edge"])
def test_pads_are_picks(lib, mode):
    x = numbered((2, 3, 5, 40), np.float32)
    pads = [(0, 0), (1, 0), (2, 3), (2, 1)]
    extra = {"constant_values": -1} if mode == "constant" else {}
    tables = [np.pad(np.arange(n), p, mode, **extra) for n, p in zip(x.shape, pads, strict=True)]
    if mode == "constant":
        extra = {"constant_values": 0.5}
    np.testing.assert_array_equal(picked(lib, x, 0.5, tables), np.pad(x, pads, mode, **extra))


def test_vectors_are_picked(lib):
    x = numbered((6, 7, lib.lanes), np.float32)
    rows, columns = [0, 0, 5, 5], [0, 0, 1, 1, 2, 6]
    table = np.concatenate([[0] * 4, np.multiply(rows, x.strides[0]), np.multiply(columns, x.strides[1])])
    sizes = {"n0": 1, "n1": 1, "n2": 1, "n3": 1, "n4": 4, "n5": 6}
    y = both(lib, "pick", (4, 6, lib.lanes), x=x, table=table.astype(np.int64), bytes=4 * lib.lanes, **sizes)
    np.testing.assert_array_equal(y, x[np.ix_(rows, columns)])
