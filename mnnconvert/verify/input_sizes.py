"""Guesses for the open sizes of model inputs.

A symbolic size has one value wherever it appears. What it stands for (batch, picture, frames, samples, words) is
read from its name and from where it stands; `STEPS` holds the values to try for each of these.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mnnconvert.errors import ConversionError
from mnnconvert.verify.engines import TensorInfo
from mnnconvert.verify.metrics import kind_of

Shapes = dict[str, tuple[int, ...]]
Key = str | tuple[str, int]  # a symbol, or an axis of one input


@dataclass(frozen=True)
class Step:
    """One set of values. Height and width differ where they can, so that a swap of the two shows."""

    batch: int
    height: int
    width: int
    words: int
    frames: int
    samples: int
    chunk: int  # samples for models that take the sampling rate as an input: they want a fixed window
    vocabulary: int = 16  # integer inputs without another meaning stay below this,
    lowest: int = 0  # and do not go below this; 1 suits divisors


STEPS = (
    Step(batch=1, height=64, width=96, words=16, frames=64, samples=16000, chunk=512),
    Step(batch=2, height=96, width=64, words=24, frames=96, samples=24000, chunk=1024),
    Step(batch=1, height=96, width=64, words=24, frames=96, samples=24000, chunk=512),
    Step(batch=1, height=224, width=224, words=64, frames=128, samples=32000, chunk=256, vocabulary=2, lowest=1),
    Step(batch=1, height=48, width=320, words=128, frames=400, samples=48000, chunk=576, vocabulary=2),
    Step(batch=1, height=640, width=640, words=512, frames=1000, samples=160000, chunk=1536, vocabulary=2),
    Step(batch=1, height=32, width=32, words=1, frames=1, samples=512, chunk=16000, vocabulary=1),
)


def words_of(name: str) -> set[str]:
    """Lower-case words of a name: "attentionMask.1" -> {"attention", "mask", "1"}."""
    return set(re.findall(r"[a-z]+|\d+", re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()))


def choose_shapes(inputs: Sequence[TensorInfo], step: Step, sizes: Mapping[str, int]) -> Shapes:
    """A shape for every input; `sizes` gives symbolic sizes by name. Inputs of unknown rank get [1], switches []."""
    chosen = _chosen(inputs, step, sizes)
    return {info.name: tuple(_size(info, axis, chosen) for axis in range(len(_declared(info)))) for info in inputs}


def _declared(info: TensorInfo) -> tuple[int | str | None, ...]:
    if info.shape is not None:
        return info.shape
    return () if info.dtype is not None and kind_of(info.dtype) == "bool" else (1,)


def _size(info: TensorInfo, axis: int, chosen: Mapping[Key, int]) -> int:
    declared = _declared(info)[axis]
    if isinstance(declared, int) and declared >= 0:
        return declared
    return chosen[_key(info, axis)]


def _key(info: TensorInfo, axis: int) -> Key:
    """What decides an open size: its symbol if it has a telling one, else its own place."""
    declared = _declared(info)[axis]
    return declared if isinstance(declared, str) and declared.strip("?") else (info.name, axis)


def _chosen(inputs: Sequence[TensorInfo], step: Step, sizes: Mapping[str, int]) -> dict[Key, int]:
    """Values of all open sizes. An axis of the input with the highest rank decides what a shared symbol means."""
    places: dict[Key, tuple[TensorInfo, int]] = {}
    for info, axis in _open_axes(sorted(inputs, key=lambda info: -len(_declared(info)))):
        places.setdefault(_key(info, axis), (info, axis))
    if unknown := [name for name in sizes if name not in places]:
        raise ConversionError.of(
            "bad-input",
            f"No input has a size named {', '.join(unknown)}.",
            hint=f"Open sizes of the model: {', '.join(key for key in places if isinstance(key, str)) or 'none'}.",
        )
    rated = any(is_rate(info.name) for info in inputs)
    guesses = {key: _guess(info, axis, step, rated) for key, (info, axis) in places.items()}
    guesses.update(sizes)
    return guesses | {key: total for key in guesses if (total := _sum(key, guesses)) is not None and key not in sizes}


def _open_axes(inputs: Sequence[TensorInfo]) -> Iterator[tuple[TensorInfo, int]]:
    for info in inputs:
        for axis, size in enumerate(_declared(info)):
            if not isinstance(size, int) or size < 0:
                yield info, axis


def _sum(key: Key, known: Mapping[Key, int]) -> int | None:
    """The value of a size such as "past_length + 1", which exporters of decoders write."""
    terms = [term.strip() for term in key.strip("()").split("+")] if isinstance(key, str) else []
    if len(terms) < 2 or not all(term in known or term.isdigit() for term in terms):
        return None
    return sum(int(term) if term.isdigit() else known[term] for term in terms)


def is_rate(name: str) -> bool:
    """Whether a name means a sampling rate in Hz."""
    words = words_of(name)
    return bool(words & {"sr", "samplerate"}) or {"sample", "rate"} <= words or {"sampling", "rate"} <= words


_STATES = {"state", "states", "hidden", "cell", "h", "c", "hn", "cn"}  # of recurrent layers: [layers, batch, hidden]


def _guess(info: TensorInfo, axis: int, step: Step, rated: bool) -> int:
    declared = _declared(info)
    symbol = declared[axis]
    words = words_of(symbol) if isinstance(symbol, str) else set()
    if "batch" in words or (axis == 0 and len(declared) > 1 and not words & {"seq", "sequence", "length", "time"}):
        return step.batch
    steps = words & {"seq", "sequence", "length", "time", "frames", "frame"}
    if axis == 1 and len(declared) == 3 and not steps and words_of(info.name) & _STATES:
        return step.batch
    if words & {"frames", "frame", "time"}:
        return step.frames
    if words & {"samples", "sample", "audio"} or words_of(info.name) & {"audio", "wave", "waveform", "wav"}:
        return step.samples
    if info.dtype is not None and kind_of(info.dtype) in ("float", "uint") and len(declared) == 4:
        return _picture(declared, axis, step)
    return step.chunk if rated and len(declared) <= 2 else step.words


def _picture(declared: tuple[int | str | None, ...], axis: int, step: Step) -> int:
    """Axes of a batch of pictures; channels come first unless the last axis looks like them."""
    last = declared[3] in (1, 3, 4) and declared[1] not in (1, 3, 4)
    height, width, channels = (1, 2, 3) if last else (2, 3, 1)
    return {height: step.height, width: step.width, channels: 3}[axis]
