"""The compiled kernels, for what quantizers do with every weight. Numpy is the definition, and the way without them."""

from __future__ import annotations

import threading
from typing import Any

from mnnconvert.runtime_ref.cpu.library import Library, library, usable_cores

_ONE = threading.Lock()  # the cores, and their scratch memory, work for one call at a time


def kernels() -> Library | None:
    """The kernels for this machine; None where none were built, or only others."""
    found = library()
    return found if found is not None and "fit_grids" in found.kernels else None


def call(library: Library, name: str, **values: Any) -> None:
    """Run a kernel on all cores: rows are shared out among them, and their results do not depend on how."""
    with _ONE:
        library.call(name, library.pool(usable_cores()), **values)
