"""Short-time Fourier transform, as files of the released converter contain it."""

from __future__ import annotations

import numpy as np

from mnnconvert.ir.types import F32, Dim, Spec, add, floordiv
from mnnconvert.ops.base import Form, Op, register
from mnnconvert.ops.samples import exactly, grid


@register()
class Stft(Op):
    """Spectra [batch, frames, bins, 2] of the windows of a real signal [batch, length].

    Operands: signal, step int32, window; a frame is as long as the window. `onesided`: only the first n/2+1 bins.
    """

    n_fft: int = 0
    hop_length: int = 0
    onesided: bool = True

    form = Form("Stft", "StftParam", {"n_fft": "n_fft", "hop_length": "hop_length", "onesided": "abs"})

    def infer(self, signal: Spec, step: Spec, window: Spec) -> Spec:
        length = window.shape[0] if window.shape else None
        batch = signal.shape[0] if signal.shape else None
        bins: Dim = add(floordiv(length, 2), 1) if self.onesided else length
        return Spec(F32, (batch, self._frames(signal, step, length), bins, 2))

    def _frames(self, signal: Spec, step: Spec, length: Dim) -> Dim:
        if step.constant is None or not signal.shape or not isinstance(length, int):
            return None
        return add(floordiv(add(signal.shape[1], -length), int(step.constant.reshape(-1)[0])), 1)

    def ref(self, signal: np.ndarray, step: np.ndarray, window: np.ndarray) -> np.ndarray:
        flat = signal.reshape(len(signal), -1)
        frames = np.lib.stride_tricks.sliding_window_view(flat, window.size, 1)[:, :: int(step.reshape(-1)[0])]
        spectrum = (np.fft.rfft if self.onesided else np.fft.fft)(frames * window)
        return np.stack([spectrum.real, spectrum.imag], -1).astype(np.float32)

    samples = grid(signal=[(2, 40)], step=[exactly(8), exactly([5])], window=[(16,)], onesided=[True, False])
