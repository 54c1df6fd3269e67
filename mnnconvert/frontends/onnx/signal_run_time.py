"""Signal processing whose axes, lengths and steps only a run knows: the matrices are computed by the model.

Angles are reduced in whole numbers before they are divided, so that float32 is exact enough.
"""

from __future__ import annotations

import numpy as np

from mnnconvert.frontends.common.compose import apply, calc, cast, choose
from mnnconvert.frontends.common.moves import unsqueezed
from mnnconvert.frontends.common.run_time import count_up, scalar, scalar_size, spread, vector_of
from mnnconvert.frontends.onnx.node import OnnxNode
from mnnconvert.frontends.onnx.run_time import Split3
from mnnconvert.ir import F32, I32, Builder, Value
from mnnconvert.ops.arrange import Concat
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.matmul import MatMul
from mnnconvert.ops.shape import Reshape

Waves = tuple[Value, Value]


def transform_along(b: Builder, n: OnnxNode, axis: Value, length: Value | None) -> Value:
    """DFT of a signal [..., 1 or 2] along an axis that is computed, of so many samples (None: as there are)."""
    x, inverse, onesided = n.input(0), bool(n.attr("inverse", 0)), bool(n.attr("onesided", 0))
    parts = x.shape[-1] if x.shape else None
    if not isinstance(parts, int) or parts not in (1, 2) or (onesided and parts != 1 + inverse):
        raise n.refuse(f"DFT of a signal with {parts} parts is not supported")
    split = Split3(b, n, x, axis, trailing=1)
    whole = calc(b, "MUL", calc(b, "SUB", split.size, 1), 2) if inverse and onesided else split.size
    length = whole if length is None else scalar(b, length)
    waves, bins = _waves(b, split.size, length, inverse, onesided)
    real, imaginary = (b.add(GatherV2(), split.value, b.ints(min(i, parts - 1)), b.ints(3)) for i in range(2))
    results = _contracted(b, waves, real, imaginary if parts == 2 else None, -1 if inverse else 1)
    results = results[:1] if inverse and onesided else results
    y = b.add(Concat(3), *(unsqueezed(b, r, 3) for r in results)) if len(results) > 1 else unsqueezed(b, results[0], 3)
    lengths = choose(b, split.at, bins, split.shape, split.shape)
    head = b.add(GatherV2(), lengths, b.ints(np.arange((x.rank or 0) - 1)), b.ints(0))
    return b.add(Reshape(), y, b.add(Concat(0), head, b.ints([len(results)])))


def _waves(b: Builder, size: Value, length: Value, inverse: bool, onesided: bool) -> tuple[Waves, Value]:
    """Cosine and sine [bins, size] of 2 pi n k / length, weighted as the transform needs them, and the bins."""
    half = calc(b, "ADD", calc(b, "FLOORDIV", length, 2), 1)
    bins = half if onesided and not inverse else length
    samples = spread(b, count_up(b, size), 1, 2)
    turns = calc(b, "MOD", calc(b, "MUL", spread(b, count_up(b, bins), 0, 2), samples), length)
    whole = cast(b, length, F32)
    angle = calc(b, "MUL", calc(b, "REALDIV", cast(b, turns, F32), whole), float(2 * np.pi))
    weight = cast(b, calc(b, "LESS", samples, half if inverse and onesided else length), F32)
    if inverse and onesided:  # every bin but the first and the middle one stands for its mirror image too
        single = calc(b, "ADD", calc(b, "EQUAL", samples, 0), calc(b, "EQUAL", calc(b, "MUL", samples, 2), length))
        weight = calc(b, "MUL", weight, calc(b, "SUB", b.floats(2.0), cast(b, single, F32)))
    weight = calc(b, "REALDIV", weight, whole) if inverse else weight
    return (calc(b, "MUL", apply(b, "COS", angle), weight), calc(b, "MUL", apply(b, "SIN", angle), weight)), bins


def _contracted(b: Builder, waves: Waves, real: Value, imaginary: Value | None, sign: int) -> list[Value]:
    """Real and imaginary part of the transform of [before, size, behind]; `sign` is 1 forward and -1 back."""
    cosine, sine = waves
    first, second = b.add(MatMul(), cosine, real), calc(b, "MUL", b.add(MatMul(), sine, real), float(-sign))
    if imaginary is None:
        return [first, second]
    first = calc(b, "ADD", first, calc(b, "MUL", b.add(MatMul(), sine, imaginary), float(sign)))
    return [first, calc(b, "ADD", second, b.add(MatMul(), cosine, imaginary))]


def short_time_transform(b: Builder, n: OnnxNode) -> Value:
    """STFT whose step, window or frame length is computed: frames are gathered, then transformed."""
    x = n.input(0) if n.input(0).rank == 3 else unsqueezed(b, n.input(0), 2)
    parts = x.shape[2] if x.shape else None
    if parts not in (1, 2):
        raise n.refuse("STFT needs a signal [batch, length, 1 or 2]")
    window = n.optional(2)
    framed, axis = (x, 1) if window is None else (window, 0)
    length = scalar(b, n.input(3)) if n.has(3) else scalar_size(b, framed, axis)
    step = scalar(b, n.input(1))
    count = calc(b, "ADD", calc(b, "FLOORDIV", calc(b, "SUB", scalar_size(b, x, 1), length), step), 1)
    starts = calc(b, "MUL", spread(b, count_up(b, count), 0, 2), step)
    places = calc(b, "ADD", starts, spread(b, count_up(b, length), 1, 2))
    flat = b.add(GatherV2(), x, b.add(Reshape((-1,)), places), b.ints(1))
    frames = b.add(Reshape(), flat, vector_of(b, [b.ints(-1), length, b.ints(parts)]))
    if window is not None:
        frames = calc(b, "MUL", frames, spread(b, cast(b, window, F32), 1, 3))
    waves, bins = _waves(b, length, length, False, bool(n.attr("onesided", 1)) and parts == 1)
    real, imaginary = (b.add(GatherV2(), frames, b.ints([min(i, parts - 1)]), b.ints(2)) for i in range(2))
    y = b.add(Concat(2), *_contracted(b, waves, real, imaginary if parts == 2 else None, 1))
    return b.add(Reshape(), y, vector_of(b, [scalar_size(b, x, 0), count, bins, b.ints(2)]))


def cosine_window(b: Builder, n: OnnxNode, terms: tuple[float, float, float]) -> Value:
    """A window function of computed size."""
    size = scalar(b, n.input(0))
    period = size if n.attr("periodic", 1) else calc(b, "MAXIMUM", calc(b, "SUB", size, 1), 1)
    turns = calc(b, "REALDIV", count_up(b, size, F32), cast(b, period, F32))
    first, second = (apply(b, "COS", calc(b, "MUL", turns, float(2 * np.pi * k))) for k in (1, 2))
    y = calc(b, "SUB", b.floats(terms[0]), calc(b, "MUL", first, terms[1]))
    return calc(b, "ADD", y, calc(b, "MUL", second, terms[2])) if terms[2] else y


def mel_triangles(b: Builder, n: OnnxNode) -> Value:
    """MelWeightMatrix of computed operands [spectrum bins, mel bins]."""
    mels, length, rate = (scalar(b, n.input(i)) for i in range(3))
    low, high = (_mel(b, cast(b, scalar(b, n.input(i)), F32)) for i in (3, 4))
    points = calc(b, "ADD", mels, 2)
    step = calc(b, "REALDIV", calc(b, "SUB", high, low), cast(b, points, F32))
    scale = calc(b, "ADD", calc(b, "MUL", count_up(b, points, F32), step), low)
    hertz = calc(b, "SUB", apply(b, "EXP", calc(b, "MUL", scale, float(np.log(10) / 2595))), 1.0)
    per_hertz = calc(b, "REALDIV", calc(b, "MUL", cast(b, calc(b, "ADD", length, 1), F32), 700.0), cast(b, rate, F32))
    edges = cast(b, apply(b, "FLOOR", calc(b, "MUL", hertz, per_hertz)), I32)
    which = count_up(b, mels)
    left, centre, right = (
        spread(b, b.add(GatherV2(), edges, calc(b, "ADD", which, i), b.ints(0)), 1, 2) for i in range(3)
    )
    bins = spread(b, count_up(b, calc(b, "ADD", calc(b, "FLOORDIV", length, 2), 1)), 0, 2)
    rising = _ratio(b, calc(b, "SUB", bins, left), calc(b, "SUB", centre, left))
    falling = _ratio(b, calc(b, "SUB", right, bins), calc(b, "SUB", right, centre))
    peak = calc(b, "EQUAL", bins, centre)
    left_of = calc(b, "MUL", calc(b, "GREATER_EQUAL", bins, left), calc(b, "LESS", bins, centre))
    right_of = calc(b, "MUL", calc(b, "GREATER", bins, centre), calc(b, "LESS", bins, right))
    masked = [calc(b, "MUL", v, cast(b, m, F32)) for v, m in ((rising, left_of), (falling, right_of))]
    return calc(b, "ADD", calc(b, "ADD", *masked), cast(b, peak, F32))


def _mel(b: Builder, hertz: Value) -> Value:
    logarithm = apply(b, "LOG", calc(b, "ADD", calc(b, "REALDIV", hertz, 700.0), 1.0))
    return calc(b, "MUL", logarithm, float(2595 / np.log(10)))


def _ratio(b: Builder, part: Value, whole: Value) -> Value:
    return calc(b, "REALDIV", cast(b, part, F32), cast(b, calc(b, "MAXIMUM", whole, 1), F32))
