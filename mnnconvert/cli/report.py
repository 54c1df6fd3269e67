"""The report file of an unexpected failure: what a maintainer needs to see, kept on this machine."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import traceback
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("mnnconvert", "numpy", "onnx", "onnxruntime", "MNN", "ml_dtypes", "rich")


def write_report(bug: BaseException, argv: Sequence[str]) -> str | None:
    """Write traceback, versions and arguments to a new file in the temporary folder; its path, or None."""
    try:
        handle, path = tempfile.mkstemp(prefix="mnnconvert-report-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(report_text(bug, argv))
    except OSError:
        return None
    return path


def report_text(bug: BaseException, argv: Sequence[str]) -> str:
    lines = [
        f"arguments: {list(argv)!r}",
        f"python: {sys.version}",
        f"platform: {platform.platform()}",
        *(f"{name}: {installed_version(name) or 'not installed'}" for name in PACKAGES),
        "",
        "".join(traceback.format_exception(bug)),
    ]
    return "\n".join(lines)


def installed_version(package: str) -> str | None:
    """The version of an installed package, without importing it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
