"""Inputs to compare engines on: made up from what the model declares, or read from a file and checked.

Made-up values are seeded per input, so the same request always gives the same arrays. Open sizes and integer values are
guessed from names and positions; a guess that the model refuses is answered by the next step of `ladder`.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from mnnconvert.errors import ConversionError, Diagnostic
from mnnconvert.verify.engines import TensorInfo
from mnnconvert.verify.input_sizes import STEPS, Shapes, Step, choose_shapes
from mnnconvert.verify.input_values import make_values
from mnnconvert.verify.metrics import kind_of

Feed = dict[str, np.ndarray]


def generate(inputs: Sequence[TensorInfo], seed: int, sizes: Mapping[str, int] | None = None, variant: int = 0) -> Feed:
    """One array per input. `sizes` fixes symbolic sizes by name; `variant` 1 chooses other values for the open ones.

    Raises a ConversionError (`bad-input`) for a size that no input has, and for inputs that hold no numbers.
    """
    return _feed(inputs, seed, _steps(variant)[0], variant, sizes or {})


def ladder(
    inputs: Sequence[TensorInfo], seed: int, sizes: Mapping[str, int] | None = None, variant: int = 0
) -> Iterator[Feed]:
    """`generate`, then the same with other open sizes and smaller integers, for models that constrain them.

    Every step differs from those before; a model without open sizes and integer inputs has only one. Last comes the
    first one with all switches off: what they turn on may be random, as in training.
    """
    first: Feed = {}
    seen: set[tuple[object, ...]] = set()
    integers = any(info.dtype is not None and kind_of(info.dtype) in ("int", "uint") for info in inputs)
    for step in _steps(variant):
        shapes = choose_shapes(inputs, step, sizes or {})
        mark = (tuple(shapes.items()), (step.lowest, step.vocabulary) if integers else ())
        if mark not in seen:
            seen.add(mark)
            feed = _feed(inputs, seed, step, variant, sizes or {})
            first = first or feed
            yield feed
    on = {name: np.zeros_like(array) for name, array in first.items() if array.dtype == np.bool_ and array.ndim == 0}
    if any(first[name] for name in on):
        yield {**first, **on}


_ORDERS = (
    (0, 2, 3, 4, 5, 6, 1),
    (1, 2, 0, 3, 4, 5, 6),
)  # the variant's own step, then the same sizes in one batch, then others


def _steps(variant: int) -> list[Step]:
    return [STEPS[index] for index in _ORDERS[variant % 2]]


def _feed(inputs: Sequence[TensorInfo], seed: int, step: Step, variant: int, sizes: Mapping[str, int]) -> Feed:
    shapes: Shapes = choose_shapes(inputs, step, sizes)
    return {info.name: make_values(info, shapes, step, [seed, variant]) for info in inputs}


def load_npz(path: str | Path, inputs: Sequence[TensorInfo]) -> Feed:
    """The arrays of an .npz file (or the array of an .npy file for a single input) by input name, as declared.

    All that is wrong is reported at once in a ConversionError of `bad-input` diagnostics: the file, missing and unknown
    names, ranks, fixed sizes, sizes of one symbol that differ, and conversions that would lose information.
    """
    arrays = _read(Path(path), inputs)
    problems = _name_problems(arrays, inputs)
    symbols: dict[str, int] = {}
    for info in inputs:
        if info.name in arrays:
            problems += _shape_problems(info, arrays[info.name].shape, symbols) + _type_problems(
                info, arrays[info.name]
            )
    if problems:
        hint = f"Save one array per input with numpy.savez; the model takes {_signature(inputs)}."
        raise ConversionError([Diagnostic("bad-input", text, {"file": str(path)}, hint) for text in problems])
    return {info.name: arrays[info.name].astype(info.dtype) for info in inputs}


def _read(path: Path, inputs: Sequence[TensorInfo]) -> Feed:
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                if len(inputs) != 1:
                    raise ValueError("it holds a single array, not an archive of named ones")
                return {inputs[0].name: archive}
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as problem:
        foreign = isinstance(problem, ValueError) and "pickle" in str(problem)  # numpy's word for what it does not know
        raise ConversionError.of(
            "bad-input",
            f"The inputs cannot be read: {'it is no .npz or .npy file' if foreign else problem}.",
            file=path,
            hint="Write the file with numpy.savez('inputs.npz', name=array, ...).",
        ) from problem


def _name_problems(arrays: Feed, inputs: Sequence[TensorInfo]) -> list[str]:
    known = {info.name for info in inputs}
    missing = [f"The input '{info.name}' is missing." for info in inputs if info.name not in arrays]
    return missing + [f"The model has no input '{name}'." for name in arrays if name not in known]


def _shape_problems(info: TensorInfo, shape: tuple[int, ...], symbols: dict[str, int]) -> list[str]:
    """Compares with the declared shape; `symbols` remembers the size that each symbolic name first had."""
    if info.shape is None:
        return []
    if len(shape) != len(info.shape):
        return [f"'{info.name}' has rank {len(shape)}, not {len(info.shape)}."]
    problems = []
    for axis, (size, declared) in enumerate(zip(shape, info.shape, strict=True)):
        expected = symbols.setdefault(declared, size) if isinstance(declared, str) else declared
        if expected is not None and expected >= 0 and size != expected:
            problems.append(f"'{info.name}' has size {size} on axis {axis}, not {expected}.")
    return problems


def _type_problems(info: TensorInfo, array: np.ndarray) -> list[str]:
    if info.dtype is None or array.dtype == info.dtype:
        return []
    if "text" in (kind_of(array.dtype), kind_of(info.dtype)):
        return [f"'{info.name}' holds {array.dtype}, not {info.dtype}."]
    with np.errstate(invalid="ignore", over="ignore"):
        back = array.astype(info.dtype).astype(array.dtype)
    same = (back == array) | ((back != back) & (array != array))
    return [] if same.all() else [f"'{info.name}' holds {array.dtype} values that {info.dtype} cannot without loss."]


def _signature(inputs: Sequence[TensorInfo]) -> str:
    return ", ".join(f"{info.name} {info.dtype}{_dims(info)}" for info in inputs) or "no inputs"


def _dims(info: TensorInfo) -> str:
    if info.shape is None:
        return ""
    return "[" + ",".join("?" if size is None else str(size) for size in info.shape) + "]"
