"""Made-up values for model inputs: what fits the element type, and the meaning that the name gives away."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mnnconvert.errors import ConversionError
from mnnconvert.verify.engines import TensorInfo
from mnnconvert.verify.input_sizes import Shapes, Step, is_rate, words_of
from mnnconvert.verify.metrics import kind_of

Shape = tuple[int, ...]
Maker = Callable[[np.random.Generator, Shape, Shapes, Step], np.ndarray]


def make_values(info: TensorInfo, shapes: Shapes, step: Step, seed: Sequence[int]) -> np.ndarray:
    """Values of the declared type in the shape that `shapes` has for this input.

    Floats are standard normal (sound a tenth of that), uint8 and int8 fill their range, integers with a known meaning
    follow it, others lie below `step.vocabulary`.
    """
    if info.dtype is None or kind_of(info.dtype) == "text":
        raise ConversionError.of(
            "bad-input",
            f"No values can be made up for input '{info.name}' of type {info.dtype}.",
            hint="Give real inputs with --inputs FILE.npz.",
        )
    random = np.random.default_rng([*seed, zlib.crc32(info.name.encode())])
    maker = _of_role(info) or _maker(info.name, info.dtype)
    return np.asarray(maker(random, shapes[info.name], shapes, step)).astype(info.dtype)


def _of_role(info: TensorInfo) -> Maker | None:
    """What a role that the model tells asks for; None where there is none, and the name has to do."""
    if info.role == "index" and info.limit > 0:
        limit = info.limit
        return lambda random, shape, shapes, step: random.integers(0, limit, shape)
    return _ROLES.get(info.role)


def _maker(name: str, dtype: np.dtype) -> Maker:
    words, kind = words_of(name), kind_of(dtype)
    if words & {"mask", "masks"}:
        return _mask
    if kind == "bool":
        return lambda random, shape, shapes, step: random.random(shape) < 0.5
    if kind == "float":
        return _float_maker(words)
    if is_rate(name):
        return lambda random, shape, shapes, step: np.full(shape, 16000)
    if dtype.itemsize == 1:
        return lambda random, shape, shapes, step: random.integers(*_range(dtype), shape)
    return next((maker for keys, maker in _MEANINGS if words & keys), _identifier)


_FREQUENCIES = {"fmin": 50.0, "fmax": 2000.0}  # bounds of a pitch, in Hz


def _float_maker(words: set[str]) -> Maker:
    if words & {"scale", "scales", "factor"}:
        return lambda random, shape, shapes, step: random.uniform(1.0, 2.0, shape)
    if words & {"roi", "rois", "box", "boxes"}:
        return _corners
    for word, frequency in _FREQUENCIES.items():
        if word in words:
            return lambda random, shape, shapes, step: np.full(shape, frequency)
    spread = 0.1 if words & {"audio", "wave", "waveform", "wav"} else 1.0
    return lambda random, shape, shapes, step: spread * random.standard_normal(shape)


def _range(dtype: np.dtype) -> tuple[int, int]:
    return np.iinfo(dtype).min, np.iinfo(dtype).max + 1


def _corners(random: np.random.Generator, shape: Shape, shapes: Shapes, step: Step) -> np.ndarray:
    """Regions x1, y1, x2, y2 with the second corner behind the first; engines disagree about others."""
    if not shape or shape[-1] != 4:
        return random.standard_normal(shape)
    first = random.uniform(0, 8, (*shape[:-1], 2))
    return np.concatenate([first, first + random.uniform(2, 8, first.shape)], -1)


def _mask(random: np.random.Generator, shape: Shape, shapes: Shapes, step: Step) -> np.ndarray:
    """Ones, with padding at the end of the last axis (an eighth of it)."""
    mask = np.ones(shape)
    if shape and shape[-1] >= 8:
        mask[..., -(shape[-1] // 8) :] = 0
    return mask


def _length(random: np.random.Generator, shape: Shape, shapes: Shapes, step: Step) -> np.ndarray:
    """The full length: the size of axis 1 of the largest other input."""
    longest = max(shapes.values(), key=lambda other: (len(other) > 1, np.prod(other, dtype=np.int64)))
    return np.full(shape, longest[1] if len(longest) > 1 else 1)


def _segment(random: np.random.Generator, shape: Shape, shapes: Shapes, step: Step) -> np.ndarray:
    return random.integers(0, 2, shape)


def _position(random: np.random.Generator, shape: Shape, shapes: Shapes, step: Step) -> np.ndarray:
    return np.broadcast_to(np.arange(shape[-1] if shape else 1), shape or (1,)).reshape(shape)


def _doubled(random: np.random.Generator, shape: Shape, shapes: Shapes, step: Step) -> np.ndarray:
    """Target sizes of a resize: those of the other input of that rank, twice as large from axis 2 on."""
    same = _of_rank(shape, shapes)
    return np.array([size * 2 if axis >= 2 else size for axis, size in enumerate(same)]).reshape(shape)


def _stretch(random: np.random.Generator, shape: Shape, shapes: Shapes, step: Step) -> np.ndarray:
    """Scales of a resize: 1 for batch and channels, 1 to 2 for the axes behind them."""
    scales = np.ones(shape)
    scales[2 if shape and shape[0] > 2 else 0 :] = random.uniform(1.0, 2.0)
    return scales


def _count(random: np.random.Generator, shape: Shape, shapes: Shapes, step: Step) -> np.ndarray:
    """How often, or how many: 1 to 3."""
    return random.integers(1, 4, shape)


def _unchanged(random: np.random.Generator, shape: Shape, shapes: Shapes, step: Step) -> np.ndarray:
    """Target shape of a reshape or expand: that of the other input of that rank."""
    return np.array(_of_rank(shape, shapes)).reshape(shape)


def _of_rank(shape: Shape, shapes: Mapping[str, Shape]) -> Shape:
    """The first shape with as many axes as a size vector has entries; twos where there is none."""
    rank = int(np.prod(shape, dtype=np.int64))
    return next((other for other in shapes.values() if len(other) == rank and other != shape), (2,) * rank)


def _identifier(random: np.random.Generator, shape: Shape, shapes: Shapes, step: Step) -> np.ndarray:
    """Indices into tables of unknown length; a single number may as well be a count, so it is 1 to 4."""
    if np.prod(shape, dtype=np.int64) == 1:
        return random.integers(1, 1 + min(4, step.vocabulary), shape)
    return random.integers(step.lowest, step.vocabulary, shape)


_MEANINGS: tuple[tuple[set[str], Maker], ...] = (
    ({"length", "lengths", "len", "lens"}, _length),
    ({"segment", "segments", "type"}, _segment),
    ({"position", "positions"}, _position),
    ({"size", "sizes"}, _doubled),
    ({"shape", "shapes"}, _unchanged),
)

_ROLES: dict[str, Maker] = {
    "sizes": _doubled, "scales": _stretch, "shape": _unchanged, "count": _count, "index": _identifier,
}  # fmt: skip
