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
from typing import Any, TextIO

from mnnconvert.errors import ConversionError, UsageError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK, SUFFIX = ".mnnconvert-lock", ".tmp"  # of temporary folders
RANDOM_CHARACTERS = 8  # that tempfile puts into their names
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

    A file of the same name with `.weight` behind it moves along. Nothing is left behind otherwise; what ended without a
    word before (a signal, a power cut) is cleared away first. A symbolic link stays one: the file that it leads to is
    replaced. What is no ordinary file (a folder, a device) is refused.
    """
    try:
        target = _destination(target)
        with _workplace(target) as folder:
            yield folder / target.name
            _take_place(folder, target)
    except OSError as error:
        raise unwritable(target, error) from error
    except ConversionError as error:
        if isinstance(error.__cause__, OSError) and error.diagnostics[0].reference == "unwritable-output":
            raise unwritable(target, error.__cause__) from error  # name what was asked for, not the file in `folder`
        raise


def _take_place(folder: Path, target: Path) -> None:
    """Move what was made in `folder` to its names: the weights first, to which the model refers. An old model leaves
    before, so that it never stands beside weights of another one."""
    weights, old = f"{target.name}.weight", folder / f"{target.name}.replaced"
    if (folder / weights).exists():
        with suppress(FileNotFoundError):
            os.replace(target, old)
        try:
            os.replace(folder / weights, target.parent / weights)
        except OSError:
            with suppress(FileNotFoundError):
                os.replace(old, target)
            raise
    if (folder / target.name).exists():
        os.replace(folder / target.name, target)


@contextmanager
def staged_folder(target: Path, marker: str) -> Iterator[Path]:
    """A folder beside `target` that takes its name when the block ends well; nothing is left behind otherwise.

    What ended without a word before is cleared away first. An existing folder is replaced if it is empty or holds a
    file `marker`; anything else of that name is refused (`unwritable-output`).
    """
    target = Path(os.path.abspath(target))
    try:
        if os.path.lexists(target) and (
            not target.is_dir() or (any(target.iterdir()) and not (target / marker).exists())
        ):
            raise OSError(errno.EEXIST, f"something else is there, which is no folder with a file {marker}")
        with _workplace(target) as outer:
            folder = outer / target.name
            folder.mkdir()
            yield folder
            if target.is_dir():
                os.replace(target, outer / f"{target.name}.replaced")
            os.replace(folder, target)
    except OSError as error:
        raise unwritable(target, error) from error


@contextmanager
def _workplace(target: Path) -> Iterator[Path]:
    """A temporary folder beside `target`, removed in the end, as are before those whose process is gone.

    A file in it is locked as long as this process lives, where the system has such locks. It goes last, so that a
    folder is empty or known to be one of ours at any moment.
    """
    prefix = f".{target.name[:NAME_SHOWN]}."
    _clear_abandoned(target.parent, prefix)
    folder, lock = _new_workplace(target.parent, prefix)
    try:
        yield folder
    finally:
        _empty(folder)
        lock.close()
        _remove(folder)


def _new_workplace(parent: Path, prefix: str) -> tuple[Path, TextIO]:
    """A new folder and its open lock. Others may take it for abandoned until that is locked: then there is another."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, suffix=SUFFIX, dir=parent))
        try:
            lock = (folder / LOCK).open("x")
        except FileNotFoundError:
            continue
        except OSError:
            folder.rmdir()
            raise
        if fcntl is not None:
            with suppress(OSError):  # a file system without locks, on which nothing is taken for abandoned either
                fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / LOCK).exists():
            return folder, lock
        lock.close()


def _clear_abandoned(parent: Path, prefix: str) -> None:
    """Remove temporary folders whose process is gone: nobody holds their lock, or they are empty and have none yet."""
    for folder in parent.glob(f"{glob.escape(prefix)}{'?' * RANDOM_CHARACTERS}{SUFFIX}") if fcntl is not None else ():
        with suppress(OSError):
            if not (folder / LOCK).exists():
                folder.rmdir()
                continue
            with (folder / LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _empty(folder)
                _remove(folder)


def _empty(folder: Path) -> None:
    """Remove all but the lock, as far as the system lets us."""
    with suppress(OSError):
        for path in folder.iterdir():
            if path.name != LOCK:
                with suppress(OSError):
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _remove(folder: Path) -> None:
    with suppress(OSError):
        (folder / LOCK).unlink()
        folder.rmdir()


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
