"""Kernels under Oclgrind, which simulates a device and watches every access: apt-get install oclgrind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from op_samples import CASES

SAMPLES = Path(__file__).with_name("test_opencl_samples.py")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("oclgrind") is None, reason="no Oclgrind: apt-get install oclgrind"),
]


def first_and_last() -> list[str]:
    """Two samples of each op."""
    by_op: dict[str, list[str]] = {}
    for case in CASES:
        by_op.setdefault(case.values[0].__name__, []).append(case.id)
    return sorted({name for names in by_op.values() for name in (names[0], names[-1])})


@pytest.mark.parametrize("lanes", [16, 8, 4])
def test_no_access_outside_of_arrays_and_no_race(lanes, tmp_path):
    log = tmp_path / "oclgrind.log"
    # What it simulates of optimized code is wrong: comparisons of vectors as numbers give 255 instead of 1.
    plain = ["--build-options", "-cl-opt-disable"]
    watch = ["oclgrind", *plain, "--data-races", "--max-errors", "20", "--log", str(log)]
    ids = [f"{SAMPLES}::test_agrees_with_reference[{name}]" for name in first_and_last()]
    environment = {**os.environ, "MNNCONVERT_OPENCL_DEVICE": "oclgrind", "MNNCONVERT_OPENCL_LIMITS": f"lanes={lanes}"}
    done = subprocess.run(
        [*watch, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *ids],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = log.read_text() if log.exists() else ""
    assert done.returncode == 0, done.stdout[-3000:] + found[-3000:]
    assert not found.strip(), found[:5000]
