"""Inputs for a verification: what the user recorded, in any of the forms that this program reads, or made-up ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from mnnconvert.errors import ConversionError, UsageError, unreadable
from mnnconvert.verify.engines import TensorInfo
from mnnconvert.verify.inputs import ladder, load_npz
from mnnconvert.verify.recorded import recorded_case, typed

Feeds = Mapping[str, Any]
Shapes = Mapping[str, Sequence[int]]
ARRAYS = (".npz", ".npy")
DESCRIPTION = "input.json"  # of a recorded case


def read_feeds(path: Path, inputs: Sequence[TensorInfo]) -> Sequence[Feeds]:
    """The feeds of all runs that a path names; those of a configuration are read one at a time.

    An .npz or .npy file is one run. A folder holds runs: files of these kinds, or MNN's recorded cases (folders with an
    `input.json`; the folder may be such a case itself), in the order of their names. A .json file is a configuration of
    `mnnconvert quantize`, which tells where images are and how they become inputs (mean, normal, format, sizes).
    """
    try:
        folder = path.is_dir()
        entries = sorted(path.iterdir()) if folder else []
    except OSError as error:
        raise unreadable(path, error) from error
    if not folder:
        return _configured(path, inputs) if path.suffix.lower() == ".json" else [load_npz(path, inputs)]
    cases = [path] if (path / DESCRIPTION).is_file() else [p for p in entries if (p / DESCRIPTION).is_file()]
    if cases:
        return [typed(recorded_case(case, outputs=False)[0], inputs, case) for case in cases]
    files = [p for p in entries if p.suffix.lower() in ARRAYS]
    if not files:
        raise _nothing(path, entries)
    return [load_npz(file, inputs) for file in files]


def _configured(path: Path, inputs: Sequence[TensorInfo]) -> Sequence[Feeds]:
    from mnnconvert.calibration.config import read_config
    from mnnconvert.calibration.samples import open_samples

    samples = open_samples(read_config(path), inputs)
    return cast("Sequence[Feeds]", samples)  # but for slices, which nobody takes


def _nothing(path: Path, entries: Sequence[Path]) -> ConversionError:
    from mnnconvert.calibration.samples import IMAGES

    pictures = any(p.suffix.lower() in IMAGES for p in entries)
    hint = (
        'Images need to be told how they become inputs: give a .json file such as {"path": "images/", "format": "RGB", '
        '"mean": [127.5], "normal": [0.00784]}; docs/int8.md lists its keys.'
        if pictures
        else "Give .npz or .npy files, or folders with an input.json."
    )
    return UsageError.of("bad-input", f"'{path}' holds no inputs that can be read as they are", file=path, hint=hint)


def made_up(
    inputs: Sequence[TensorInfo], seed: int, shapes: Shapes, runs: int | None = None
) -> list[Feeds | Iterator[Feeds]]:
    """Seeded random inputs of `runs` runs, whose open sizes alternate between two sets; `shapes` fixes some by input.

    By default one run, and a second at other sizes where some are open. Raises `unknown-input` for a name or size that
    the model does not have.
    """
    infos = fixed(inputs, shapes)
    if not infos:
        return [{}]
    open_sizes = any(not isinstance(d, int) for info in infos for d in info.shape or ("?",))
    count = runs if runs is not None else 2 if open_sizes else 1
    return [ladder(infos, seed + number, variant=number % 2 if open_sizes else 0) for number in range(count)]


def fixed(inputs: Sequence[TensorInfo], shapes: Shapes) -> list[TensorInfo]:
    """The inputs with the given sizes in the place of open ones; sizes of one name are equal everywhere."""
    names = {info.name for info in inputs}
    unknown = [name for name in shapes if name not in names]
    if unknown:
        raise ConversionError.of(
            "unknown-input", f"the model has no input '{unknown[0]}'", inputs=", ".join(names) or "none"
        )
    symbols: dict[str, int] = {}
    for info in inputs:
        if info.name in shapes:
            symbols |= _bound(info, tuple(shapes[info.name]))
    return [replace(info, shape=_fixed(info, shapes, symbols)) for info in inputs]


def _bound(info: TensorInfo, sizes: tuple[int, ...]) -> dict[str, int]:
    """Values of symbolic sizes; refuses sizes that the input cannot have."""
    declared = info.shape
    if declared is None:
        return {}
    wrong = len(declared) != len(sizes) or any(isinstance(d, int) and d >= 0 and d != s
                                               for d, s in zip(declared, sizes, strict=False))  # fmt: skip
    if wrong:
        raise ConversionError.of(
            "unknown-input", f"the input '{info.name}' takes {list(declared)}, not {list(sizes)}", input=info.name
        )
    return {d: s for d, s in zip(declared, sizes, strict=True) if isinstance(d, str)}


def _fixed(info: TensorInfo, shapes: Shapes, symbols: Mapping[str, int]) -> tuple[int | str | None, ...] | None:
    if info.name in shapes:
        return tuple(shapes[info.name])
    if info.shape is None:
        return None
    return tuple(symbols.get(d, d) if isinstance(d, str) else d for d in info.shape)
