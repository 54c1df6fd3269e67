"""A picture as a model takes it: cropped, resized, in the order of channels asked for, shifted and scaled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mnnconvert.calibration.config import CHANNELS, Config
from mnnconvert.errors import ConversionError

Floats = NDArray[np.float32]

LUMA = (0.299, 0.587, 0.114)
"""ITU-R BT.601: grey = 0.299 R + 0.587 G + 0.114 B, rounded to a whole number."""


def read_image(path: Path, width: int, height: int, config: Config) -> Floats:
    """The picture in `path` as float32 [1, channels, height, width]: (pixel - mean) * normal, pixels 0 .. 255.

    The middle `center_crop_h` by `center_crop_w` of it is kept and resized. Raises `bad-image`, `pillow-missing`.
    """
    pixels = resize(center_crop(_pixels(path), config.center_crop_h, config.center_crop_w), height, width)
    ordered = in_format(pixels, config.format)
    mean, normal = (_per_channel(v, default, config.format) for v, default in ((config.mean, 0), (config.normal, 1)))
    return ((ordered - mean) * normal).transpose(2, 0, 1)[None].astype(np.float32)


def _pixels(path: Path) -> NDArray[np.uint8]:
    """[H,W,4] red, green, blue, alpha."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise ConversionError.of(
            "pillow-missing",
            "images are read by Pillow, which is not installed",
            hint="pip install 'mnnconvert[images]'",
        ) from None
    try:
        with Image.open(path) as picture:
            return np.asarray(picture.convert("RGBA"))
    except (OSError, ValueError, SyntaxError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise ConversionError.of("bad-image", f"this is no picture that can be read: {error}", file=path) from None


def center_crop(pixels: NDArray[np.uint8], height: float, width: float) -> NDArray[np.uint8]:
    """The middle part of [H,W,C] with these shares of its height and width (at least one pixel)."""
    for axis, share in enumerate((height, width)):
        size = pixels.shape[axis]
        kept = max(1, round(size * share))
        pixels = pixels.take(range((size - kept) // 2, (size - kept) // 2 + kept), axis) if kept < size else pixels
    return pixels


def resize(pixels: NDArray[np.uint8], height: int, width: int) -> Floats:
    """Bilinear, the corner pixels of both pictures on each other, without smoothing when it gets smaller; rounded.

    x_source = x * (W - 1) / (width - 1). float32 [height,width,C] of whole numbers 0 .. 255.
    """
    rows, row_share = _positions(pixels.shape[0], height)
    columns, column_share = _positions(pixels.shape[1], width)
    source = pixels.astype(np.float32)
    below, right = np.minimum(rows + 1, pixels.shape[0] - 1), np.minimum(columns + 1, pixels.shape[1] - 1)
    lines = source[rows] + (source[below] - source[rows]) * row_share[:, None, None]
    mixed = lines[:, columns] + (lines[:, right] - lines[:, columns]) * column_share[None, :, None]
    return np.floor(mixed + np.float32(0.5))


def _positions(size: int, wanted: int) -> tuple[NDArray[np.int64], Floats]:
    """For every result the source before it, and how far it lies towards the next."""
    exact = np.linspace(0, size - 1, wanted) if wanted > 1 else np.zeros(1)
    before = np.floor(exact).astype(np.int64)
    return before, (exact - before).astype(np.float32)


def in_format(pixels: Floats, name: str) -> Floats:
    """[H,W,4] RGBA in another order of channels."""
    if name == "GRAY":
        return np.floor(pixels[..., :3] @ np.array(LUMA, np.float32) + np.float32(0.5))[..., None]
    return pixels[..., ["RGBA".index(letter) for letter in name]]


def _per_channel(values: tuple[float, ...], default: float, name: str) -> Floats:
    numbers = values or (default,)
    return np.array(numbers if len(numbers) > 1 else numbers * CHANNELS[name], np.float32)
