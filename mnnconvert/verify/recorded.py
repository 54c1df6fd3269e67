"""MNN's recorded test cases: a folder with the inputs, and the outputs to expect, as text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mnnconvert.errors import ConversionError, UsageError, unreadable
from mnnconvert.verify.engines import TensorInfo


def recorded_case(folder: Path, outputs: bool = True) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Inputs and (where wanted) expected outputs of MNN's test folder.

    `input.json` lists `inputs` (name, shape) and `outputs` (names); `NAME.txt` holds the numbers of each.
    """
    path = folder / "input.json"
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
        inputs = {i["name"]: tuple(int(d) for d in i["shape"]) for i in description["inputs"]}
        names = [str(o) for o in description["outputs"]] if outputs else []
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError.of("bad-input", f"'{path}' does not describe a test: {error}", file=path) from error
    feeds = {name: _shaped(folder, name, shape) for name, shape in inputs.items()}
    return feeds, {name: _numbers(folder, name) for name in names}


def _shaped(folder: Path, name: str, shape: tuple[int, ...]) -> np.ndarray:
    numbers = _numbers(folder, name)
    try:
        return numbers.reshape(shape)
    except ValueError:
        raise UsageError.of(
            "bad-input", f"'{name}.txt' has {numbers.size} numbers, not those of {list(shape)}", file=folder
        ) from None


def _numbers(folder: Path, name: str) -> np.ndarray:
    path = folder / f"{name}.txt"
    try:
        return np.array(path.read_text().split(), dtype=np.float64)
    except OSError as error:
        raise unreadable(path, error) from error
    except ValueError as error:
        raise UsageError.of("bad-input", f"'{path}' holds something that is no number", file=path) from error


def typed(arrays: dict[str, np.ndarray], inputs: Sequence[TensorInfo], path: Path) -> dict[str, np.ndarray]:
    """Recorded numbers in the element types of a model; `bad-input` where they are not those of its inputs."""
    names = [info.name for info in inputs]
    if set(arrays) != set(names):
        raise ConversionError.of(
            "bad-input",
            f"the sample has {', '.join(arrays) or 'nothing'}, the model takes {', '.join(names)}",
            file=path,
        )
    return {info.name: arrays[info.name].astype(info.dtype or np.float32) for info in inputs}
