"""Runs the samples through a graph and keeps what observers want of them; can go on where it was interrupted."""

from __future__ import annotations

import hashlib
import os
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mnnconvert.calibration.samples import Feeds, Samples
from mnnconvert.errors import ConversionError
from mnnconvert.ir import Graph, Value
from mnnconvert.quantizers.observers import Observations
from mnnconvert.runtime_ref.session import Session
from mnnconvert.schema.files import replacing

Progress = Callable[[str, float], None]

SAVE_EVERY = 20.0  # seconds


def counted(samples: Samples, first: int, stage: str, progress: Progress) -> Iterator[tuple[int, Feeds]]:
    """The samples from `first` on with their numbers; tells how far it is."""
    for number in range(first, len(samples)):
        yield number, samples[number]
        progress(stage, (number + 1) / len(samples))


class Collector:
    """Observations of `observed` values of a graph over all samples.

    With `state`, what was seen is saved there every 20 seconds, and taken up from there in a later run whose `key`
    (of model, configuration and samples) is the same. Raises `non-finite-activation`, `bad-input` for values that are
    empty on every sample, `state-mismatch`.
    """

    def __init__(
        self, graph: Graph, observed: Sequence[Value], samples: Samples, bits: int, progress: Progress,
        state: Path | None = None, key: str = "",
    ):  # fmt: skip
        self.names = [value.name for value in observed]
        self.statistics = {name: Observations() for name in self.names}
        self._session = Session(graph)
        self._samples, self._bits, self._progress = samples, bits, progress
        self._state, self._key = state, key
        self._done = [0, 0]  # samples in the first and in the second pass
        self._saved = time.monotonic()
        if state is not None and os.path.exists(state):
            self._load(state)

    def run(self, second_pass: bool) -> dict[str, Observations]:
        """The statistics by name; the second pass counts magnitudes."""
        self._pass(0, "ranges")
        empty = [name for name, seen in self.statistics.items() if not seen.count]
        if empty:
            raise ConversionError.of("bad-input", f"'{empty[0]}' has no elements on any sample", value=empty[0])
        if second_pass:
            self._pass(1, "distributions")
        return self.statistics

    def _pass(self, which: int, stage: str) -> None:
        if which == 0 and self._done[1]:
            return
        for number, feeds in counted(self._samples, self._done[which], stage, self._progress):
            for name, array in self._session.run(feeds, self.names).items():
                self._take(which, name, array)
            self._done[which] = number + 1
            self._save_sometimes()
        self._save_sometimes(now=True)

    def _take(self, which: int, name: str, array: np.ndarray) -> None:
        if which == 1:
            self.statistics[name].add_magnitudes(array)
            return
        if not np.isfinite(array).all():
            raise ConversionError.of(
                "non-finite-activation",
                f"'{name}' holds NaN or infinity on sample {self._done[0] + 1}",
                value=name,
                hint="Look at the sample and its mean and normal; the float model cannot bear it either.",
            )
        self.statistics[name].add(array, self._bits)

    def _save_sometimes(self, now: bool = False) -> None:
        if self._state is None or not (now or time.monotonic() - self._saved > SAVE_EVERY):
            return
        arrays: dict[str, Any] = {"key": self._key, "done": self._done, "names": self.names}
        for i, name in enumerate(self.names):
            arrays |= {f"{i}/{field}": array for field, array in self.statistics[name].to_arrays().items()}
        with replacing(self._state) as stream:
            np.savez(stream, **arrays)
        self._saved = time.monotonic()

    def _load(self, path: Path) -> None:
        try:
            with np.load(path, allow_pickle=False) as saved:
                if str(saved["key"]) != self._key or saved["names"].tolist() != self.names:
                    raise _mismatch(path)
                fields = Observations().to_arrays()
                for i, name in enumerate(self.names):
                    self.statistics[name] = Observations.from_arrays({k: saved[f"{i}/{k}"] for k in fields})
                self._done = [int(n) for n in saved["done"]]
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            raise _mismatch(path) from None


def _mismatch(path: Path) -> ConversionError:
    return ConversionError.of(
        "state-mismatch",
        f"'{path}' was left by another run: the model, the configuration or the samples are not the same",
        file=path,
        hint="Delete it to start anew.",
    )


def key_of(model: Path, samples: Samples) -> str:
    """A text that is the same for the same model, configuration and names and sizes of samples."""
    digest = hashlib.blake2b(digest_size=16)
    for path in (model, samples.config.file):
        digest.update(path.read_bytes())
    for sample in samples.files:
        digest.update(f"{sample.name}\0{sample.stat().st_size}\0".encode())
    return digest.hexdigest()
