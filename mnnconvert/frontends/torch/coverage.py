"""What operators of torch are known to convert, as measured with the samples of torch's own operator tests."""

from __future__ import annotations

from importlib.resources import files
from typing import Any


def covered() -> list[dict[str, Any]]:
    """Name, oldest version (torch has none: 1) and limits of each operator that converts at least in some forms."""
    lines = (files("mnnconvert.frontends.torch") / "coverage.txt").read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines if line and not line.startswith("#")]
    return [{"name": row[0], "since": 1, "limits": row[1] if len(row) > 1 else ""} for row in rows]
