"""Windows against im2col, descent that never makes the output worse, and biases that keep the mean."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mnnconvert.ops.convolution import Convolution
from mnnconvert.quantizers.channels import max_abs, nearest
from mnnconvert.quantizers.rounding import bias_shift, descend
from mnnconvert.quantizers.windows import WindowMoments

OPS = {
    "plain": (Convolution(pads=(1, 0, 1, 2)), (6, 4, 3, 2)),
    "stride": (Convolution(strides=(2, 3), dilations=(2, 1)), (6, 4, 2, 3)),
    "groups": (Convolution(group=2, pads=(1, 1, 1, 1)), (6, 2, 3, 3)),
    "depthwise": (Convolution(group=4, pad_mode="SAME", strides=(2, 2)), (8, 1, 3, 3)),
    "pointwise": (Convolution(), (5, 4, 1, 1)),
}


def samples(count=3):
    rng = np.random.default_rng(4)
    return [rng.standard_normal((1 + i % 2, 4, 9, 11)).astype("f") for i in range(count)]


@pytest.mark.parametrize("kind", OPS)
def test_mean_window_gives_the_mean_output(kind):
    op, shape = OPS[kind]
    weight = np.random.default_rng(1).standard_normal(shape).astype("f")
    moments = WindowMoments(op, shape[2:], wants_products=True)
    for x in samples():
        moments.add(x)
    outputs = np.concatenate([np.moveaxis(op.ref(x, weight), 1, 0).reshape(shape[0], -1) for x in samples()], axis=1)
    rows = weight.reshape(op.group, shape[0] // op.group, -1).astype(float)
    np.testing.assert_allclose(np.einsum("grk,gk->gr", rows, moments.mean).ravel(), outputs.mean(axis=1), atol=1e-5)
    assert moments.count == outputs.shape[1]
    power = np.einsum("grk,gkl,grl->gr", rows, moments.second, rows).ravel()
    assert moments.sampled == moments.count  # so few windows are all taken
    np.testing.assert_allclose(power, np.square(outputs.astype(float)).mean(axis=1), rtol=1e-4)


def test_at_most_so_many_windows_of_a_sample():
    moments = WindowMoments(Convolution(), (1, 1), wants_products=True)
    moments.add(np.ones((1, 4, 100, 100), "f"))
    assert 512 <= moments.sampled < 1024
    np.testing.assert_allclose(moments.second, np.ones((1, 4, 4)))


def output_error(weights, codes, scale, second):
    """tr((W - Q s) H (W - Q s)^T)"""
    difference = weights - codes * scale[:, None]
    return float(np.vdot(difference @ second, difference))


def layer(seed, rows=6, columns=70):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((columns, columns // 2)) + rng.standard_normal((columns, 1))
    return rng.standard_normal((rows, columns)), x @ x.T / x.shape[1]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([127, 7, 3]), st.integers(1, 4))
def test_descent_never_raises_the_damped_error(seed, clamp, sweeps):
    weights, second = layer(seed)
    scale = max_abs(weights, clamp)
    codes = nearest(weights, scale, clamp)
    damped = second + 0.01 * np.trace(second) / len(second) * np.eye(len(second))
    before = output_error(weights, codes, scale, damped)
    errors = [output_error(weights, descend(weights, codes, scale, second, clamp, n), scale, damped)
              for n in range(1, sweeps + 1)]  # fmt: skip
    assert np.all(np.diff([before, *errors]) <= 1e-9 * before)
    assert np.abs(descend(weights, codes, scale, second, clamp, sweeps)).max() <= clamp


def test_descent_halves_the_error_at_four_bits():
    weights, second = layer(3)
    scale = max_abs(weights, 7)
    codes = nearest(weights, scale, 7)
    better = descend(weights, codes, scale, second, 7)
    assert output_error(weights, better, scale, second) < 0.5 * output_error(weights, codes, scale, second)


def test_descent_with_independent_inputs_changes_nothing():
    weights, _ = layer(5)
    scale = max_abs(weights, 127)
    codes = nearest(weights, scale, 127)
    np.testing.assert_array_equal(descend(weights, codes, scale, np.eye(70), 127), codes)


@pytest.mark.parametrize("kind", OPS)
def test_bias_keeps_the_mean_output(kind):
    op, shape = OPS[kind]
    rng = np.random.default_rng(8)
    weight = rng.standard_normal(shape).astype("f")
    other = weight + rng.standard_normal(shape).astype("f") * 0.3
    exact, held = (WindowMoments(op, shape[2:]) for _ in range(2))
    for x in samples():
        exact.add(x)
        held.add(x * np.float32(0.9) + np.float32(0.1))
    shift = bias_shift(*(w.reshape(shape[0], -1).astype(float) for w in (weight, other)), exact.mean, held.mean)
    want = np.concatenate([np.moveaxis(op.ref(x, weight), 1, 0).reshape(shape[0], -1) for x in samples()], axis=1)
    got = np.concatenate(
        [np.moveaxis(op.ref(x * np.float32(0.9) + np.float32(0.1), other), 1, 0).reshape(shape[0], -1)
         for x in samples()], axis=1)  # fmt: skip
    assert np.abs(got.mean(axis=1) - want.mean(axis=1)).max() > 0.01
    np.testing.assert_allclose(got.mean(axis=1) + shift, want.mean(axis=1), atol=1e-5)
