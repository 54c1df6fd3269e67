"""The novels of Jane Austen, from a Debian package that is fetched once; nothing is installed.

R keeps them as a database of objects, each a vector of lines: a record is its size, then zlib's bytes; what it holds
follows "R Internals", section Serialization Formats (XDR).
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import zlib
from pathlib import Path

PACKAGE = "r-cran-janeaustenr"
FOLDER = Path(__file__).parents[1] / ".bench/novels"
RECORDS = FOLDER / "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"
LINE, ABSENT = 9, -1  # the type of a string, and the length of one that is not there
PRIDE_AND_PREJUDICE = "PRIDE AND PREJUDICE"


class NovelsError(Exception):
    """Why there are no novels."""


def fetch() -> None:
    """Unpack the package, if that was not done before; NovelsError where there is no Debian or no network."""
    if RECORDS.is_file():
        return
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise NovelsError(f"{PACKAGE} is a package of Debian, whose apt-get and dpkg-deb are not here")
    FOLDER.mkdir(parents=True, exist_ok=True)
    found = subprocess.run(["apt-get", "download", PACKAGE], cwd=FOLDER, capture_output=True, text=True, check=False)
    packages = list(FOLDER.glob(f"{PACKAGE}_*.deb"))
    if found.returncode or not packages:
        raise NovelsError(f"apt-get download {PACKAGE}: {found.stderr.strip() or 'nothing came'}")
    subprocess.run(["dpkg-deb", "-x", packages[0], FOLDER], check=True)


def novel(title: str = PRIDE_AND_PREJUDICE) -> str:
    """The text of the novel that begins with this line, as printed: a line end after each line."""
    data, at = RECORDS.read_bytes(), 0
    while at < len(data):
        record = zlib.decompressobj()
        lines = _lines(record.decompress(data[at + 4 :]))
        if lines[0] == title:
            return "\n".join(lines) + "\n"
        at = len(data) - len(record.unused_data)
    raise NovelsError(f"no novel is called {title!r}")


def _lines(content: bytes) -> list[str]:
    """The strings of a vector in version 3 of the format, which has an encoding in its head."""
    (encoding,) = struct.unpack_from(">i", content, 14)
    _, count = struct.unpack_from(">ii", content, 18 + encoding)
    lines, at = [], 26 + encoding
    for _ in range(count):
        flags, size = struct.unpack_from(">ii", content, at)
        if flags & 0xFF != LINE or size == ABSENT:
            raise NovelsError("the records of the package are not vectors of lines")
        lines.append(content[at + 8 : at + 8 + size].decode("utf-8"))
        at += 8 + size
    return lines
