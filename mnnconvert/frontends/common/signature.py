"""What every importer asks of the interface of a model: the sizes of its inputs, and names for its graphs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from mnnconvert.errors import ConversionError
from mnnconvert.ir import Shape


def check_names(given: Iterable[str], names: Collection[str]) -> None:
    """Raises `unknown-input` for a name that sizes are given to and that is no input."""
    for name in given:
        if name not in names:
            raise ConversionError.of("unknown-input", f"the model has no input '{name}'", inputs=", ".join(names))


def open_sizes(name: str, sizes: Sequence[int], least: int = 0) -> Shape:
    """Sizes in which numbers below `least` stand for open ones, which get names."""
    return tuple(size if size >= least else f"{name}.{i}" for i, size in enumerate(sizes))


def input_shape(
    name: str, declared: Shape | None, shapes: Mapping[str, Shape], batch: int, fixed: bool = True
) -> Shape | None:
    """The shape of an input: what `shapes` gives it, or the declared one, whose first size is `batch` where it is open.

    Raises `unknown-input` where another rank is given, or (`fixed`) another size than the declared one.
    """
    given = shapes.get(name)
    if given is None:
        return (batch, *declared[1:]) if batch and declared and not isinstance(declared[0], int) else declared
    if declared is not None and len(given) != len(declared):
        raise ConversionError.of("unknown-input", f"the input '{name}' has rank {len(declared)}, not {len(given)}")
    for have, want in zip(declared or (), given, strict=False):
        if fixed and isinstance(have, int) and have != want:
            raise ConversionError.of(
                "unknown-input", f"a size of the input '{name}' is {have} in the model, not {want}"
            )
    return given


class UniqueNames:
    """Names that no other of the model has."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def __call__(self, name: str) -> str:
        candidate, count = name, 1
        while candidate in self._taken:
            count += 1
            candidate = f"{name}_{count}"
        self._taken.add(candidate)
        return candidate
