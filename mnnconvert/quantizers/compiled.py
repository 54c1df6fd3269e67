"""The compiled kernels, for what quantizers do with every weight. Numpy is the definition, and the way without them."""

from __future__ import annotations

from mnnconvert.runtime_ref.cpu.library import Library, library


def kernels() -> Library | None:
    """The kernels for this machine; None where none were built, or only others. One thread at a time may call them."""
    found = library()
    return found if found is not None and "fit_grids" in found.kernels else None
