"""The configuration file: the keys of MNN's quantization tool, and ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from mnnconvert.errors import Diagnostic, UsageError, unreadable
from mnnconvert.option_types import did_you_mean
from mnnconvert.quantizers import channels, thresholds

CHANNELS = {"RGB": 3, "BGR": 3, "RGBA": 4, "BGRA": 4, "GRAY": 1}
LARGEST_CONFIG = 1 << 20  # bytes


@dataclass(frozen=True)
class Config:
    """What a configuration file says; fields are its keys, defaults what an absent key means.

    `path` is relative to the file. `width` and `height` 0 take the sizes of the model, `used_image_num` 0 all samples.
    """

    path: Path
    input_type: str = "image"
    format: str = "RGB"
    mean: tuple[float, ...] = ()
    normal: tuple[float, ...] = ()
    width: int = 0
    height: int = 0
    center_crop_w: float = 1.0
    center_crop_h: float = 1.0
    used_image_num: int = 0
    used_sample_num: int = 0
    feature_quantize_method: str = "KL"
    weight_quantize_method: str = "MAX_ABS"
    feature_clamp_value: int = 127
    weight_clamp_value: int = 127
    batch_size: int = 1
    quant_bits: int = 8
    skip_quant_op_names: tuple[str, ...] = ()
    debug: bool = False
    winogradOpt: bool = False
    activation_bits: int = 8
    percentile: float = thresholds.PERCENTILE
    bias_correction: bool = True
    smooth: bool = False
    equalize: bool = False
    weight_rounding: str = "nearest"
    min_sqnr: float = 30.0
    file: Path = field(default=Path(), compare=False)

    @property
    def wanted(self) -> int:
        """How many samples to use at most; 0 for all."""
        return self.used_sample_num or self.used_image_num

    @property
    def weight_clamp(self) -> int:
        """The largest code of a weight."""
        return min(self.weight_clamp_value, (1 << (self.quant_bits - 1)) - 1)

    @property
    def feature_clamp(self) -> int:
        """The largest code of an activation."""
        if self.activation_bits == 16:
            return (1 << 15) - 1
        return min(self.feature_clamp_value, (1 << (self.quant_bits - 1)) - 1)


Check = Callable[[Any], str]  # what is wrong with a value, "" when nothing is


def _text(value: Any) -> str:
    return "" if isinstance(value, str) and value else "a text"


def _flag(value: Any) -> str:
    return "" if isinstance(value, bool) else "true or false"


def _one_of(*choices: object) -> Check:
    words = "one of " + ", ".join(str(c) for c in choices)
    return lambda value: "" if any(value == c and type(value) is type(c) for c in choices) else words


def _whole(low: int, high: int) -> Check:
    words = f"a whole number from {low} to {high}"
    return lambda value: "" if type(value) is int and low <= value <= high else words


def _real(low: float, high: float) -> Check:
    words = f"a number above {low:g} and at most {high:g}"
    return lambda value: "" if _is_number(value) and low < value <= high else words


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e30


def _numbers(value: Any) -> str:
    fine = isinstance(value, list) and 1 <= len(value) <= 4 and all(_is_number(v) for v in value)
    return "" if fine else "a list of one number for each channel"


def _names(value: Any) -> str:
    return "" if isinstance(value, list) and all(isinstance(v, str) for v in value) else "a list of names"


LARGEST_SIZE, LARGEST_COUNT = 1 << 14, 1 << 31

CHECKS: dict[str, Check] = {
    "path": _text,
    "input_type": _one_of("image", "sequence", "array"),
    "format": _one_of(*CHANNELS),
    "mean": _numbers,
    "normal": _numbers,
    "width": _whole(1, LARGEST_SIZE),
    "height": _whole(1, LARGEST_SIZE),
    "center_crop_w": _real(0, 1),
    "center_crop_h": _real(0, 1),
    "used_image_num": _whole(1, LARGEST_COUNT),
    "used_sample_num": _whole(1, LARGEST_COUNT),
    "feature_quantize_method": _one_of(*thresholds.METHODS),
    "weight_quantize_method": _one_of(*channels.METHODS),
    "feature_clamp_value": _whole(1, 127),
    "weight_clamp_value": _whole(1, 127),
    "batch_size": _whole(1, 4096),
    "quant_bits": _whole(2, 8),
    "skip_quant_op_names": _names,
    "debug": _flag,
    "winogradOpt": _flag,
    "activation_bits": _one_of(8, 16),
    "percentile": _real(50, 100),
    "bias_correction": _flag,
    "smooth": _flag,
    "equalize": _flag,
    "weight_rounding": _one_of("nearest", "adaptive"),
    "min_sqnr": lambda value: "" if _is_number(value) and 0 <= value <= 200 else "a number from 0 (off) to 200 (dB)",
}
"""What each key takes."""


def read_config(path: Path) -> Config:
    """The configuration in a JSON file.

    All problems are reported at once: `missing-file`, `unreadable-file`, `bad-config` for what is no JSON object,
    `unknown-config-key` and `bad-config-value`.
    """
    document = _load(path)
    problems = [p for key, value in document.items() for p in _problems(key, value, path)]
    problems += _contradictions(document, path) if not problems else []
    if problems:
        raise UsageError(problems)
    values = {key: tuple(v) if isinstance(v, list) else v for key, v in document.items()}
    return Config(**{**values, "path": path.parent / document["path"], "file": path})


def _load(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as stream:
            text = stream.read(LARGEST_CONFIG + 1)
    except OSError as error:
        raise unreadable(path, error) from error
    try:
        if len(text) > LARGEST_CONFIG:
            raise ValueError("it is larger than 1 MB")
        document = json.loads(text.decode("utf-8-sig"), object_pairs_hook=_unrepeated)
        if not isinstance(document, dict):
            raise ValueError("it holds no object")
    except (ValueError, RecursionError) as error:
        reason = str(error) or type(error).__name__
        raise UsageError.of(
            "bad-config",
            f"'{path}' is no JSON object: {reason}",
            file=path,
            hint='It looks like {"path": "images/", "format": "RGB", ...}; see docs/int8.md.',
        ) from None
    return document


def _unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(k for k in keys if keys.count(k) > 1)!r} stands there twice")
    return made


def _problems(key: str, value: Any, path: Path) -> list[Diagnostic]:
    check = CHECKS.get(key)
    if check is None:
        hint = did_you_mean(key, CHECKS) or f"The keys are {', '.join(CHECKS)}."
        return [Diagnostic("unknown-config-key", f"there is no key {key!r}", {"file": str(path)}, hint)]
    wanted = check(value)
    return [_bad_value(key, f"'{key}' takes {wanted}, not {json.dumps(value)[:80]}", path)] if wanted else []


def _bad_value(key: str, message: str, path: Path, hint: str = "") -> Diagnostic:
    return Diagnostic("bad-config-value", message, {"file": str(path), "key": key}, hint)


def _contradictions(document: dict[str, Any], path: Path) -> list[Diagnostic]:
    """What is wrong between keys whose values are right by themselves."""
    found = []
    if "path" not in document:
        found.append(_bad_value("path", "'path', the folder with the samples, is missing", path))
    if {"used_image_num", "used_sample_num"} <= document.keys():
        found.append(_bad_value("used_sample_num", "used_image_num and used_sample_num mean the same", path))
    method = document.get("feature_quantize_method", "KL")
    if document.get("winogradOpt") and method != "EMA":
        found.append(_bad_value("winogradOpt", f"'winogradOpt' goes with the method EMA, not {method}", path))
    elif document.get("winogradOpt"):
        hint = "Leave it out: results are the same or better, one form of the product is not chosen in the file."
        found.append(_bad_value("winogradOpt", "attributes for int8 Winograd products are not written", path, hint))
    if document.get("batch_size", 1) > 1 and document.get("input_type", "image") != "image":
        found.append(_bad_value("batch_size", "only images are put together to batches", path))
    if document.get("activation_bits") == 16 and method not in ("ACIQ", "MINMAX", "PERCENTILE", "EMA"):
        hint = "ACIQ, MINMAX, PERCENTILE or EMA"
        found.append(_bad_value("activation_bits", f"the method {method} is for 8 bits", path, hint))
    return found + _image_contradictions(document, path)


def _image_contradictions(document: dict[str, Any], path: Path) -> list[Diagnostic]:
    image_keys = [f.name for f in fields(Config) if f.name in _IMAGE_KEYS]
    if document.get("input_type", "image") != "image":
        useless = [key for key in image_keys if key in document and key not in _HARMLESS]
        return [_bad_value(k, f"'{k}' is for images, and input_type is not image", path) for k in useless]
    count = CHANNELS[document.get("format", "RGB")]
    return [
        _bad_value(key, f"'{key}' has {len(document[key])} numbers for {count} channels", path)
        for key in ("mean", "normal")
        if key in document and len(document[key]) not in (1, count)
    ]


_IMAGE_KEYS = {"format", "mean", "normal", "width", "height", "center_crop_w", "center_crop_h"}
_HARMLESS = {"format", "mean", "normal", "width", "height"}  # MNN's own template of a sequence configuration has them
