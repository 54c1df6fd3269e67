"""Files that appear under their names only when they are complete."""

from __future__ import annotations

import errno
import glob
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mnnconvert.errors import ConversionError, UsageError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
NAME_SHOWN = 60  # characters of the target's name in that of the temporary folder


def unwritable(target: Path, error: OSError) -> ConversionError:
    """The diagnostic for a folder or disk that refuses."""
    return ConversionError.of("unwritable-output", f"cannot write '{target}': {error.strerror or error}", file=target)


def refuse_same(source: Path, target: Path) -> None:
    """Refuse to write over the file that is read."""
    try:
        same = target.samefile(source)
    except (OSError, ValueError):  # one of them does not exist, or cannot
        same = False
    if same:
        raise UsageError.of("contradictory-options", f"'{target}' would overwrite what is read")


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

    A file of the same name with `.weight` behind it moves along. Nothing is left behind otherwise. A symbolic link
    stays one: the file that it leads to is replaced. What is no ordinary file (a folder, a device) is refused.
    """
    try:
        target = _destination(target)
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name[:NAME_SHOWN]}.", suffix=".tmp", dir=target.parent))
    except OSError as error:
        raise unwritable(target, error) from error
    try:
        yield folder / target.name
        for name in (f"{target.name}.weight", target.name):  # the weights first: the model refers to them
            if (folder / name).exists():
                os.replace(folder / name, target.parent / name)
    except OSError as error:
        raise unwritable(target, error) from error
    except ConversionError as error:
        if isinstance(error.__cause__, OSError) and error.diagnostics[0].reference == "unwritable-output":
            raise unwritable(target, error.__cause__) from error  # name what was asked for, not the file in `folder`
        raise
    finally:
        with suppress(OSError):
            shutil.rmtree(folder)


@contextmanager
def staged_folder(target: Path, marker: str) -> Iterator[Path]:
    """A folder beside `target` that takes its name when the block ends well; nothing is left behind otherwise.

    What ended without a word before (a signal, a power cut) is cleared away first. An existing folder is replaced if it
    is empty or holds a file `marker`; anything else of that name is refused (`unwritable-output`).
    """
    target = Path(os.path.abspath(target))
    try:
        if os.path.lexists(target) and (
            not target.is_dir() or (any(target.iterdir()) and not (target / marker).exists())
        ):
            raise OSError(errno.EEXIST, f"something else is there, which is no folder with a file {marker}")
        pattern = f".{target.name[:NAME_SHOWN]}."
        _clear_abandoned(target.parent, pattern)
        outer = Path(tempfile.mkdtemp(prefix=pattern, suffix=".tmp", dir=target.parent))
    except OSError as error:
        raise unwritable(target, error) from error
    try:
        with _locked(outer / LOCK):
            folder = outer / target.name
            folder.mkdir()
            yield folder
            if target.is_dir():
                os.replace(target, outer / "replaced")
            os.replace(folder, target)
    except OSError as error:
        raise unwritable(target, error) from error
    finally:
        with suppress(OSError):
            shutil.rmtree(outer)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """A file that stays locked as long as this process lives, where the system has such locks."""
    with path.open("w") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _clear_abandoned(parent: Path, prefix: str) -> None:
    """Remove temporary folders whose process is gone: nobody holds their lock."""
    for folder in parent.glob(f"{glob.escape(prefix)}*.tmp"):
        with suppress(OSError), (folder / LOCK).open("r+") as file:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)


def _destination(target: Path) -> Path:
    """The place that is written, links followed. OSError where there is none."""
    place = Path(os.path.realpath(target)) if target.is_symlink() else target
    try:
        mode = place.lstat().st_mode
    except FileNotFoundError:
        return place
    if stat.S_ISREG(mode):
        return place
    what = "a folder" if stat.S_ISDIR(mode) else "a link to itself" if stat.S_ISLNK(mode) else "a device or a pipe"
    raise OSError(errno.EINVAL, f"it is {what}")
