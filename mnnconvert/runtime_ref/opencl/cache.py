"""What is kept between processes for one device.

Files lie under `MNNCONVERT_CACHE_DIR`, or mnnconvert in the cache folder of the user. Each begins with a digest of its
content: one that is damaged, or half written by a process that died, is not read. A file is written whole under a name
of its own and then renamed, so that processes never see each other's halves. Where nothing can be written, nothing is
kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
from pathlib import Path

DIGEST = hashlib.sha256().digest_size


def digest(*parts: str) -> str:
    """A name for these texts: 32 hexadecimal digits."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


class Folder:
    """The files of one device."""

    def __init__(self, device: str):
        self.path = root() / "opencl" / device

    def read(self, name: str) -> bytes | None:
        """The content of a file; None where it is not there or damaged."""
        try:
            whole = (self.path / name).read_bytes()
        except OSError:
            return None
        content = whole[DIGEST:]
        return content if hashlib.sha256(content).digest() == whole[:DIGEST] else None

    def write(self, name: str, content: bytes) -> None:
        """Keep a content, if the folder lets us."""
        with contextlib.suppress(OSError):
            self.path.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self.path, prefix=".")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(hashlib.sha256(content).digest() + content)
                os.replace(temporary, self.path / name)
            except BaseException:
                os.unlink(temporary)
                raise


def root() -> Path:
    """The cache folder of this package."""
    named = os.environ.get("MNNCONVERT_CACHE_DIR")
    if named:
        return Path(named)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "mnnconvert"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "mnnconvert"
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "mnnconvert"
