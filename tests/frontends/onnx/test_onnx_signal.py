"""Fourier transforms, window functions, mel weights."""

import numpy as np
import pytest
from onnx_cases import check

WINDOW = np.hanning(16).astype("float32")


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("length", ["64", "n"])
def test_stft(length, onesided, rng):
    bins = 9 if onesided else 16
    text = f"""(float[2,{length},1] x) => (float[2,f,{bins},2] y) <int64 step = {{8}}, int64 size = {{16}}> {{
        y = STFT <onesided={onesided}>(x, step, w, size)
    }}"""
    for samples in (64,) if length == "64" else (40, 64):
        check(text, {"x": rng.standard_normal((2, samples, 1)).astype("float32"), "w": WINDOW}, rtol=1e-5)


def test_stft_of_a_complex_signal_without_a_window(rng):
    x = rng.standard_normal((1, 40, 2)).astype("float32")
    frames = np.stack([(x[..., 0] + 1j * x[..., 1])[:, i : i + 16] for i in range(0, 25, 8)], 1)
    spectrum = np.fft.fft(frames)
    want = {"y": np.stack([spectrum.real, spectrum.imag], -1).astype("float32")}
    text = """(float[1,40,2] x) => (float[1,f,16,2] y) <int64 step = {8}, int64 size = {16}> {
        y = STFT <onesided=0>(x, step, "", size)
    }"""
    check(text, {"x": x}, rtol=1e-5, want=want)


def _spectrum(x, length, axis, inverse, onesided):
    signal = x[..., 0] + (1j * x[..., 1] if x.shape[-1] == 2 else 0)
    if inverse and onesided:
        return np.fft.irfft(signal, length, axis)[..., None].astype("float32")
    y = np.fft.ifft(signal, length, axis) if inverse else np.fft.fft(signal, length, axis)
    y = y.take(range(y.shape[axis] // 2 + 1), axis) if onesided else y
    return np.stack([y.real, y.imag], -1).astype("float32")


@pytest.mark.parametrize("length", [None, 4, 8, 9])
@pytest.mark.parametrize(("parts", "inverse", "onesided"), [(1, 0, 0), (1, 0, 1), (2, 0, 0), (2, 1, 0), (2, 1, 1)])
@pytest.mark.parametrize("axis", [0, 1])
def test_dft(axis, parts, inverse, onesided, length, rng):
    x = rng.standard_normal((6, 5, parts)).astype("float32")
    own = 2 * (x.shape[axis] - 1) if inverse and onesided else x.shape[axis]
    want = {"y": _spectrum(x, length or own, axis, inverse, onesided)}
    operand = "n" if length else '""'
    attributes = f"inverse={inverse}, onesided={onesided}"
    text = f"(float[6,5,{parts}] x) => (float[a,b,c] y) {{ y = DFT <{attributes}>(x, {operand}, axis) }}"
    arrays = {"x": x, "axis": np.array(axis)} | ({"n": np.array(length)} if length else {})
    check(text, arrays, opset=20, rtol=1e-5, want=want)


def test_dft_of_opset_17_and_of_unknown_length(rng):
    x = rng.standard_normal((2, 10, 1)).astype("float32")
    check("(float[2,10,1] x) => (float[2,6,2] y) { y = DFT <axis=1, onesided=1>(x) }", {"x": x}, rtol=1e-5)
    check("(float[2,n,1] x) => (float[2,n,2] y) { y = DFT(x) }", {"x": x}, rtol=1e-5)


@pytest.mark.parametrize("name", ["HannWindow", "HammingWindow", "BlackmanWindow"])
@pytest.mark.parametrize("periodic", [0, 1])
def test_windows(name, periodic):
    text = f"(float[10] x) => (float[10] y) {{ w = {name} <periodic={periodic}>(n) y = Mul(x, w) }}"
    check(text, {"x": np.ones(10, "float32"), "n": np.array(10)}, rtol=1e-6)


def test_mel_weights():
    text = """(float[2,9] x) => (float[2,8] y)
        <int64 m = {8}, int64 l = {16}, int64 r = {8192}, float lo = {0}, float hi = {4096}> {
        w = MelWeightMatrix(m, l, r, lo, hi)
        y = MatMul(x, w)
    }"""
    check(text, {"x": np.arange(18, dtype="float32").reshape(2, 9)}, rtol=1e-6)
