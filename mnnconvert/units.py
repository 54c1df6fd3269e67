"""Numbers for people."""

from __future__ import annotations


def size(count: float) -> str:
    """A number of bytes for people: 999 B, 12.3 kB, 4.5 MB (powers of 1000)."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB" if count < 1000 else f"{count:,.0f} GB"
