"""The compiled kernels: finds the library for this machine, and calls kernels by name.

`MNNCONVERT_ISA` lowers the instruction set (`portable`, `avx2`, `avx512`, `avx512vnni`; `wide` where it was built);
`MNNCONVERT_CPU_DIR` names a folder with libraries that were built elsewhere, with sanitizers for example.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mnnconvert.errors import UsageError

ABI = 1
LEVELS = ("avx512vnni", "avx512", "avx2", "dotprod", "portable")  # the best first
TEST_LEVELS = ("wide",)

FAILURES = ("there is not enough memory", "an index is beyond its axis")

P = ctypes.c_void_p
I = ctypes.c_int64
FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "mnnk_abi": (ctypes.c_int, ()),
    "mnnk_lanes": (ctypes.c_int, ()),
    "mnnk_supports": (ctypes.c_int, (ctypes.c_char_p,)),
    "mnnk_first": (P, ()),
    "mnnk_next": (P, (P,)),
    "mnnk_name": (ctypes.c_char_p, (P,)),
    "mnnk_signature": (ctypes.c_char_p, (P, ctypes.c_int)),
    "mnnk_pool_new": (P, (ctypes.c_int,)),
    "mnnk_pool_free": (None, (P,)),
    "mnnk_run": (I, (P, P, I, P, P, P, P, P)),
}


@dataclass(frozen=True)
class Kernel:
    """A compiled kernel: its address, and the names of its tensors, integer and float parameters in order."""

    name: str
    address: int
    args: tuple[str, ...]
    params: tuple[str, ...]
    scalars: tuple[str, ...]


@dataclass(eq=False)
class Instructions:
    """A program as engine.cpp wants it: int64 [calls, 5], tensors as slots int64, parameters int64 and float32.

    Each row names a kernel by its address, then where its slots begin and how many they are, and where its parameters
    begin. The last two arrays are never empty.
    """

    rows: np.ndarray
    args: np.ndarray
    params: np.ndarray
    scalars: np.ndarray

    @cached_property
    def addresses(self) -> tuple[int, int, int, int, int]:
        """Where these lie, as `mnnk_run` takes them: rows, their number, args, params, scalars."""
        rows, args, params, scalars = (x.ctypes.data for x in (self.rows, self.args, self.params, self.scalars))
        return rows, len(self.rows), args, params, scalars


class KernelFailure(RuntimeError):  # noqa: N818 - it names what failed, not the exception
    """A call of a program failed: number `call` of it, for `reason`."""

    def __init__(self, call: int, reason: str):
        super().__init__(reason)
        self.call, self.reason = call, reason


class Library:
    """One loaded library: kernels by name, and how many floats its vectors hold."""

    def __init__(self, path: str, level: str):
        self.level = level
        self.path = path
        self.c = ctypes.CDLL(path)
        for name, (result, arguments) in FUNCTIONS.items():
            function = getattr(self.c, name)
            function.restype, function.argtypes = result, list(arguments)
        if self.c.mnnk_abi() != ABI:
            raise OSError(f"'{path}' is of another version")
        self.lanes: int = self.c.mnnk_lanes()
        self.kernels = {kernel.name: kernel for kernel in self._kernels()}

    def _kernels(self) -> Sequence[Kernel]:
        found, entry = [], self.c.mnnk_first()
        while entry:
            names = [_names(self.c.mnnk_signature(entry, part)) for part in range(3)]
            found.append(Kernel(self.c.mnnk_name(entry).decode(), entry, *names))
            entry = self.c.mnnk_next(entry)
        return found

    def supports(self, level: str) -> bool:
        """Whether this machine can run libraries of a level."""
        return bool(self.c.mnnk_supports(level.encode()))

    def call(self, name: str, pool: Pool | None = None, **values: Any) -> None:
        """Run one kernel now: arrays (or None) for its tensors, numbers for its parameters, all by name.

        Arrays are contiguous; results are written into them. Raises KeyError or TypeError for names it does not have.
        """
        kernel = self.kernels[name]
        given = dict(values)
        arrays = [given.pop(n, None) for n in kernel.args]
        params = np.array([*(given.pop(n) for n in kernel.params), 0], np.int64)
        scalars = np.array([*(given.pop(n) for n in kernel.scalars), 0], np.float32)
        if given:
            raise TypeError(f"{name} has no {', '.join(given)}")
        row = np.array([[kernel.address, 0, len(arrays), 0, 0]], np.int64)
        slots = np.array([0 if a is None else a.ctypes.data for a in arrays], np.uintp)
        order = np.arange(len(arrays), dtype=np.int64)
        self.run(pool or self.pool(1), Instructions(row, order, params, scalars), slots.ctypes.data)

    def run(self, pool: Pool, program: Instructions, slots: int, seconds: np.ndarray | None = None) -> None:
        """Run a program without the interpreter's lock; KernelFailure where a call of it fails.

        `slots` is the address of a table of pointers, one per tensor; `seconds` receives the time of each call.
        """
        times = None if seconds is None else seconds.ctypes.data
        ended = self.c.mnnk_run(pool.handle, *program.addresses, slots, times)
        if ended:
            raise KernelFailure((ended - 1) // 2, FAILURES[(ended - 1) % 2])

    @cache  # noqa: B019 - libraries live as long as the process
    def pool(self, threads: int) -> Pool:
        """A pool shared by those who run one at a time (packers, tests)."""
        return Pool(self, threads)


def usable_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Pool:
    """Threads, and their scratch memory, of one session."""

    def __init__(self, library: Library, threads: int):
        self.threads = threads
        self._free = library.c.mnnk_pool_free
        self.handle = library.c.mnnk_pool_new(threads)
        if not self.handle:
            raise MemoryError(f"cannot start {threads} threads")

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self._free(self.handle)


def _names(text: bytes) -> tuple[str, ...]:
    names = tuple(n.strip() for n in text.decode().strip("()").split(","))
    return () if names == ("none",) else names


@cache
def libraries() -> Mapping[str, Path]:
    """The libraries that were built, by level."""
    return {level: path for level in (*LEVELS, *TEST_LEVELS) if (path := _find(level)) is not None}


def _find(level: str) -> Path | None:
    folder = os.environ.get("MNNCONVERT_CPU_DIR")
    if folder:
        return next(iter(sorted(Path(folder).glob(f"_{level}.*"))), None)
    spec = importlib.util.find_spec(f"mnnconvert.runtime_ref.cpu._{level}")
    return Path(spec.origin) if spec is not None and spec.origin else None


@cache
def runnable_levels() -> tuple[str, ...]:
    """The levels that were built and that this machine runs, the best first; empty without compiled kernels."""
    if "portable" not in libraries():
        return ()
    probe = load("portable")
    return tuple(level for level in libraries() if probe.supports(level))


@cache
def load(level: str) -> Library:
    """The library of a level; OSError when it cannot be loaded."""
    return Library(str(libraries()[level]), level)


def library() -> Library | None:
    """The library for this machine, or of the level that MNNCONVERT_ISA asks for; None without compiled kernels.

    Raises UsageError for a level that is not there.
    """
    levels = runnable_levels()
    wanted = os.environ.get("MNNCONVERT_ISA")
    if wanted and wanted not in levels:
        raise UsageError.of(
            "unsupported-backend",
            f"MNNCONVERT_ISA={wanted}: no such kernels here",
            hint=", ".join(levels) or "none built",
        )
    ordinary = [level for level in levels if level in LEVELS]
    return load(wanted or ordinary[0]) if levels else None
