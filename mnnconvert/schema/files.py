"""Files that appear under their names only when they are complete."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mnnconvert.errors import ConversionError


def unwritable(target: Path, error: OSError) -> ConversionError:
    """The diagnostic for a folder or disk that refuses."""
    return ConversionError.of("unwritable-output", f"cannot write '{target}': {error.strerror or error}", file=target)


@contextmanager
def replacing(target: Path, text: bool = False) -> Iterator[Any]:
    """A stream to a temporary file that replaces `target` when the block ends without an error."""
    with staged(target) as temporary:
        try:
            with temporary.open("w", encoding="utf-8") if text else temporary.open("wb", buffering=1 << 20) as stream:
                yield stream
        except OSError as error:
            raise unwritable(target, error) from error


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """A path beside `target`, in a folder of its own, for a file that takes its place when the block ends well.

    A file of the same name with `.weight` behind it moves along. Nothing is left behind otherwise.
    """
    if target.is_dir():
        raise ConversionError.of("unwritable-output", f"cannot write '{target}': it is a folder", file=target)
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
    except OSError as error:
        raise unwritable(target, error) from error
    try:
        yield folder / target.name
        for name in (f"{target.name}.weight", target.name):  # the weights first: the model refers to them
            if (folder / name).exists():
                os.replace(folder / name, target.parent / name)
    except OSError as error:
        raise unwritable(target, error) from error
    finally:
        with suppress(OSError):
            shutil.rmtree(folder)
