"""Gathers, scatters and one-hot against their numpy definitions."""

import numpy as np
import pytest
from kernels import both, guard, guarded

from mnnconvert.ops.gather import GatherElements, GatherND, OneHot
from mnnconvert.ops.scatter import UFUNCS, ScatterElements, ScatterNd
from mnnconvert.runtime_ref.cpu.library import KernelFailure

I32 = np.int32
EXTREMES = [np.nan, np.inf, -np.inf, -0.0, 3e38]


def indices(rng, size, shape):
    """From -size to size - 1; the ends are there where there is room for them."""
    made = rng.integers(-size, size, shape).astype(I32)
    made.reshape(-1)[:2] = [-size, size - 1][: made.size]
    return guarded(made)


def values(rng, shape, dtype=np.float32):
    return guarded((rng.standard_normal(shape) * 50).astype(dtype))


@pytest.mark.parametrize("dtype", [np.int8, np.float32])
@pytest.mark.parametrize(("outer", "size", "inner"), [(1, 5, 1), (3, 7, 1), (2, 3, 17), (1, 100, 384), (4, 1, 4)])
@pytest.mark.parametrize("count", [0, 1, 5, 333])
def test_gather(lib, rng, dtype, outer, size, inner, count):
    x, at = values(rng, (outer, size, inner), dtype), indices(rng, size, (count,))
    y = both(lib, "gather", (outer, count, inner), dtype, x=x, indices=at, bytes=inner * x.itemsize, outer=outer,
             size=size, count=count)  # fmt: skip
    np.testing.assert_array_equal(y, np.take(x, at, 1))


@pytest.mark.parametrize("bad", [-6, 5, 2**31 - 1, -(2**31)])
def test_nothing_beyond_an_axis_is_read(lib, bad):
    x, at = guarded(np.zeros((5, 3), np.float32)), np.array([0, bad], I32)
    y, check = guard((2, 3))
    with pytest.raises(KernelFailure, match="beyond its axis"):
        lib.call("gather", x=x, indices=at, y=y, bytes=12, outer=1, size=5, count=2)
    with pytest.raises(KernelFailure, match="beyond its axis"):
        lib.call("gather_nd", x=x, indices=at, y=y, bytes=12, batch=1, rows=2, depth=1, **named("d", [5], 1))
    with pytest.raises(KernelFailure, match="beyond its axis"):
        lib.call(
            "gather_elements", x=x, indices=at, y=y, bytes=4, size=5, stride=3, **named("n", [2]), **named("s", [0])
        )
    with pytest.raises(KernelFailure, match="beyond its axis"):
        scattered_nd(lib, "", at[:, None], np.zeros((2, 3), np.float32), x)
    with pytest.raises(KernelFailure, match="beyond its axis"):
        scattered(lib, "", 0, at[:, None], np.zeros((2, 1), np.float32), x)
    check()


def named(letter, sizes, fill=1):
    """Eight parameters of a name; sizes stand at the end, or (fill=1 and letter d) at the beginning."""
    rest = [fill] * (8 - len(sizes))
    return {f"{letter}{i}": n for i, n in enumerate([*sizes, *rest] if letter == "d" else [*rest, *sizes])}


@pytest.mark.parametrize(
    ("shape", "batch", "vectors"),
    [((6, 5, 4), 0, (7, 2)), ((6, 5, 4), 0, (2, 3, 3)), ((6, 5, 4), 1, (6, 9, 1)), ((2, 3, 4, 5), 2, (2, 3, 1, 2)),
     ((9,), 0, (1, 1))],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_gather_nd(lib, rng, shape, batch, vectors, dtype):
    x, depth = values(rng, shape, dtype), vectors[-1]
    at = guarded(np.stack([indices(rng, shape[batch + i], vectors[:-1]) for i in range(depth)], -1))
    want = GatherND(batch_dims=batch).ref(x, at)
    unit = int(np.prod(shape[batch + depth :])) * x.itemsize
    batches = int(np.prod(shape[:batch]))
    y = both(lib, "gather_nd", want.shape, dtype, x=x, indices=at, bytes=unit, batch=batches,
             rows=at.size // depth // batches, depth=depth, **named("d", shape[batch : batch + depth]))  # fmt: skip
    np.testing.assert_array_equal(y, want)


def steps(shape, axis):
    """Strides in elements, 0 for the axis."""
    strides = [int(np.prod(shape[i + 1 :])) for i in range(len(shape))]
    return {
        "size": shape[axis],
        "stride": strides[axis],
        **named("s", [0 if i == axis else s for i, s in enumerate(strides)]),
    }


SHAPES = [
    ((3, 4), (2, 4), 0),
    ((3, 4), (3, 9), 1),
    ((3, 5, 7), (2, 5, 6), 1),
    ((6,), (9,), 0),
    ((2, 3, 4, 5), (1, 3, 2, 5), 2),
]


@pytest.mark.parametrize(("shape", "picked", "axis"), SHAPES)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_gather_elements(lib, rng, shape, picked, axis, dtype):
    x, at = values(rng, shape, dtype), indices(rng, shape[axis], picked)
    y = both(
        lib,
        "gather_elements",
        picked,
        dtype,
        x=x,
        indices=at,
        bytes=x.itemsize,
        **steps(shape, axis),
        **named("n", picked),
    )
    np.testing.assert_array_equal(y, GatherElements().ref(x, at, np.array(axis)))


REDUCTIONS = ["", *UFUNCS]


def scattered_nd(lib, reduction, at, updates, data):
    y, check = guard(data.shape, data.dtype)
    y[...] = data
    depth = at.shape[-1]
    rows = at.size // depth
    lib.call("scatter_nd", indices=at, updates=updates, y=y, reduction=REDUCTIONS.index(reduction),
             is_float=data.dtype.kind == "f", rows=rows, width=updates.size // rows, depth=depth,
             **named("d", data.shape[:depth]))  # fmt: skip
    check()
    return y


def scattered(lib, reduction, axis, at, updates, data):
    y, check = guard(data.shape, data.dtype)
    y[...] = data
    lib.call("scatter_elements", indices=at, updates=updates, y=y, reduction=REDUCTIONS.index(reduction),
             is_float=data.dtype.kind == "f", **steps(data.shape, axis), **named("n", at.shape))  # fmt: skip
    check()
    return y


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_scatter_nd(lib, rng, reduction, dtype):
    data, updates = values(rng, (4, 3, 5), dtype), values(rng, (9, 5), dtype)
    at = guarded(np.stack([indices(rng, 4, (9,)), indices(rng, 3, (9,))], -1))
    want = ScatterNd(reduction).ref(at, updates, np.array(data.shape), data)
    np.testing.assert_allclose(scattered_nd(lib, reduction, at, updates, data), want, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("shape", "picked", "axis"), SHAPES)
def test_scatter_elements(lib, rng, reduction, dtype, shape, picked, axis):
    data, updates, at = values(rng, shape, dtype), values(rng, picked, dtype), indices(rng, shape[axis], picked)
    want = ScatterElements(reduction).ref(data, at, updates, np.array(axis))
    np.testing.assert_allclose(scattered(lib, reduction, axis, at, updates, data), want, rtol=1e-6)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_scatters_of_extremes_are_those_of_numpy(lib, reduction):
    data, updates = (
        guarded(np.array(v, np.float32)) for v in zip(*[(a, b) for a in EXTREMES for b in EXTREMES], strict=True)
    )
    at = np.arange(data.size, dtype=I32)
    with np.errstate(all="ignore"):
        want = ScatterElements(reduction).ref(data, at, updates)
    np.testing.assert_array_equal(scattered(lib, reduction, 0, at, updates, data), want)


def test_integers_wrap_around(lib):
    data, at = np.array([2**31 - 1, 2**30], I32), np.array([0, 1], I32)
    assert scattered(lib, "ADD", 0, at, np.array([1, 2**30], I32), data).tolist() == [-(2**31), -(2**31)]
    assert scattered(lib, "MUL", 0, at, np.array([2, 4], I32), data).tolist() == [-2, 0]


@pytest.mark.parametrize(("shape", "axis"), [((3, 5), -1), ((3, 5), 0), ((3, 5), 1), ((7,), -1), ((), -1)])
@pytest.mark.parametrize("depth", [1, 4, 33])
def test_one_hot(lib, rng, shape, axis, depth):
    at = guarded(rng.integers(-2, depth + 2, shape).astype(I32))
    on, off = np.float32(2.5), np.float32(-1)
    want = OneHot(axis).ref(at, np.array(depth), on, off)
    cut = axis % (at.ndim + 1)
    sizes = {"outer": int(np.prod(shape[:cut])), "inner": int(np.prod(shape[cut:])), "depth": depth}
    y = both(lib, "one_hot", want.shape, indices=at, on=np.array([on]), off=np.array([off]), **sizes)
    np.testing.assert_array_equal(y, want)
