"""The most memory that a program of a test has held, told by the program itself."""

from __future__ import annotations

import sys

import pytest

PEAK = """
def peak():
    with open("/proc/self/status") as lines:
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
"""
"""A function `peak()` for its text: kB. The maximum of getrusage begins with what the starting process holds."""

counted = pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is told by Linux only")
