"""Samples for calibration: folders of images, of MNN's recorded inputs, or of .npz and .npy files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mnnconvert.calibration.config import CHANNELS, Config
from mnnconvert.calibration.images import read_image
from mnnconvert.errors import ConversionError, UsageError, unreadable
from mnnconvert.ir import F32
from mnnconvert.verify.engines import TensorInfo
from mnnconvert.verify.inputs import load_npz
from mnnconvert.verify.recorded import recorded_case, typed

Feeds = dict[str, np.ndarray]

IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
ARRAYS = {".npz", ".npy"}


@dataclass(frozen=True)
class Samples:
    """The samples of a configuration in order of their names; each is read when it is asked for."""

    config: Config
    inputs: tuple[TensorInfo, ...]
    files: tuple[Path, ...]

    def __len__(self) -> int:
        return -(-len(self.files) // self.config.batch_size)

    def __getitem__(self, index: int) -> Feeds:
        """The feeds of one run. Raises ConversionError with the file's name."""
        size = self.config.batch_size
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._read(self.files[index * size : (index + 1) * size])

    def __iter__(self) -> Iterator[Feeds]:
        return (self[i] for i in range(len(self)))

    def _read(self, files: Sequence[Path]) -> Feeds:
        if self.config.input_type == "image":
            info = self.inputs[0]
            pictures = np.concatenate([read_image(f, *self._size(info), self.config) for f in files])
            return {info.name: self._arranged(pictures, info).astype(info.dtype or F32)}
        if self.config.input_type == "sequence":
            recorded, _ = recorded_case(files[0], outputs=False)
            return typed(recorded, self.inputs, files[0])
        return load_npz(files[0], self.inputs)

    def _size(self, info: TensorInfo) -> tuple[int, int]:
        """Width and height: as configured, else as the model has them."""
        shape = info.shape or ()
        sizes = shape[1:3] if self._channels_last(info) else shape[2:4]
        height, width = (d if isinstance(d, int) else 0 for d in (*sizes, None, None)[:2])
        width, height = self.config.width or width, self.config.height or height
        if not (width and height):
            raise UsageError.of(
                "bad-config-value",
                f"'width' and 'height' are needed: the model leaves the sizes of '{info.name}' open",
                file=self.config.file,
            )
        return width, height

    def _channels_last(self, info: TensorInfo) -> bool:
        """Whether the input is [N,H,W,C]: its last size, and not its second, is the number of channels."""
        count, shape = CHANNELS[self.config.format], info.shape or ()
        return len(shape) == 4 and shape[3] == count and shape[1] != count

    def _arranged(self, pictures: np.ndarray, info: TensorInfo) -> np.ndarray:
        return pictures.transpose(0, 2, 3, 1) if self._channels_last(info) else pictures


def open_samples(config: Config, inputs: Sequence[TensorInfo]) -> Samples:
    """The samples that a configuration names. Raises `missing-file`, `no-samples`, `bad-config-value`."""
    if not os.path.isdir(config.path):
        raise ConversionError.of(
            "missing-file", f"'{config.path}' is no folder", file=config.file, hint="'path' is relative to the file."
        )
    single = config.input_type == "image"
    if single and len(inputs) != 1:
        raise UsageError.of(
            "bad-config-value",
            f"images go into models with one input; this one has {len(inputs)}",
            file=config.file,
            hint='Record its inputs, and say "input_type": "sequence" or "array".',
        )
    try:
        found = sorted(p for p in config.path.iterdir() if _is_sample(p, config.input_type))
    except OSError as error:
        raise unreadable(config.path, error) from error
    if not found:
        kind = {"image": "images", "sequence": "folders with an input.json", "array": ".npz or .npy files"}
        raise ConversionError.of(
            "no-samples", f"there are no {kind[config.input_type]} in '{config.path}'", file=config.file
        )
    if any(p.suffix.lower() == ".npy" for p in found) and len(inputs) != 1:
        raise ConversionError.of(
            "bad-input", "a .npy file holds one array, the model takes several", file=config.path, hint="use .npz"
        )
    return Samples(config, tuple(inputs), tuple(found[: config.wanted or None]))


def _is_sample(path: Path, kind: str) -> bool:
    if kind == "sequence":
        return (path / "input.json").is_file()
    return path.is_file() and path.suffix.lower() in (IMAGES if kind == "image" else ARRAYS)
