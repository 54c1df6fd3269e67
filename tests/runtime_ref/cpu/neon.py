"""Do the kernels compute on ARM what they compute here? Tests are recorded here and replayed by an emulator.

    python tests/runtime_ref/cpu/neon.py BUILD host|bytes [pytest words]

BUILD holds libraries for this machine (`host`: the portable level with fused products, as ARM has them; `bytes`: the
kernels whose packed weights lie as ARM's dot products take them) and `arm` (programs from replay.cpp). `make test-neon`
builds all.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np

EMULATOR = "qemu-aarch64"
LEVELS = {"host": ("portable", "dotprod"), "bytes": ("dotprod",)}
IN_BYTES = {"conv_codes", "conv_codes_pack"}  # weights lie otherwise where there are dot products of bytes
BOUND = 1e-6  # of the largest value: the C library's functions may differ in the last place
TESTS = {"host": Path(__file__).parent, "bytes": Path(__file__).with_name("test_code_kernels.py")}


def differences(expected: bytes, got: bytes, dtype: np.dtype) -> str | None:
    """What differs, or None: integers are equal, floats are near, NaN and infinities are where they were."""
    want, have = np.frombuffer(expected, dtype), np.frombuffer(got, dtype)
    if want.tobytes() == have.tobytes():
        return None
    if dtype.kind != "f":
        wrong = want != have
        return f"{wrong.sum()} of {wrong.size} {dtype} differ" if wrong.any() else None
    finite = np.isfinite(want)
    if not np.array_equal(want[~finite], have[~finite], equal_nan=True):
        return "NaN or infinities differ"
    error = np.abs(want[finite].astype(np.float64) - have[finite]).max(initial=0)
    largest = np.abs(want[finite]).max(initial=0)
    return f"off by {error / largest:.1e} of the largest value" if not error <= BOUND * largest else None


def compare(level: str, folder: Path, recorded: Sequence, left_out: Collection[str]) -> Iterator[str]:
    """Replays everything at a level; yields a line per kernel that differs, but for those that are left out."""
    answers = folder / f"{level}.bin"
    program = folder / "arm" / f"_{level}"
    subprocess.run([EMULATOR, "-cpu", "max", program, folder / "calls.bin", answers, "2"], check=True)
    wrong: dict[str, list[str]] = {}
    with (folder / "results.bin").open("rb") as expected, answers.open("rb") as got:
        for call in recorded:
            blocks = [(expected.read(n), got.read(n)) for n in call.blocks]
            for block, offset, nbytes, dtype in call.tensors:
                want, have = (side[offset : offset + nbytes] for side in blocks[block])
                if call.kernel not in left_out and (found := differences(want, have, dtype)) is not None:
                    wrong.setdefault(call.kernel, []).append(found)
    for kernel, found in wrong.items():
        yield f"{level}: {kernel}: {len(found)} tensors: {', '.join(sorted(set(found))[:4])}"


def main() -> None:
    folder, host, *words = sys.argv[1:]
    os.environ["MNNCONVERT_CPU_DIR"] = str(Path(folder).resolve() / host)
    from recording import record_tests  # loads the library

    from mnnconvert.runtime_ref.cpu.library import library

    recorded = record_tests(Path(folder), ["-p", "no:cacheprovider", *(words or [str(TESTS[host])])])
    counts = Counter(call.kernel for call in recorded)
    print(f"{len(recorded)} calls of {len(counts)} kernels recorded")
    if missing := [] if words else sorted(set(library().kernels) - set(counts)):
        raise SystemExit(f"no test calls {', '.join(missing)}")
    wrong = []
    for level in LEVELS[host]:
        wrong += compare(level, Path(folder), recorded, IN_BYTES if (host, level) == ("host", "dotprod") else ())
    print("\n".join(wrong) or f"the same on ARM at the levels {' and '.join(LEVELS[host])}")
    if wrong or not recorded:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
