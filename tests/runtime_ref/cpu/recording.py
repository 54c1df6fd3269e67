"""Records what kernels are called with and what they answer, to ask the same of libraries for other processors.

Memory that several tensors of a call share is one block, as the call saw it.
"""

from __future__ import annotations

import ctypes
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest

from mnnconvert.runtime_ref.cpu.library import Instructions, KernelFailure, Library
from mnnconvert.runtime_ref.cpu.program import Program
from mnnconvert.runtime_ref.lower import Tensor

MOST_ALIKE = 2  # calls of one kernel with equal parameters and sizes
MOST_BYTES = 4_000_000  # of one call


@dataclass(frozen=True)
class Array:
    """The memory of one tensor from its first element on, and the type in which it is compared.

    `before` bytes in front of it belong to it, too, where strides are negative.
    """

    address: int
    nbytes: int
    dtype: np.dtype
    before: int = 0


@dataclass(frozen=True)
class Block:
    address: int
    nbytes: int

    def content(self) -> bytes:
        return ctypes.string_at(self.address, self.nbytes)


@dataclass(frozen=True)
class Recorded:
    """One call: its kernel, the sizes of its blocks, and (block, offset, bytes, type) of each tensor that is there."""

    kernel: str
    blocks: tuple[int, ...]
    tensors: tuple[tuple[int, int, int, np.dtype], ...]


def blocks_of(arrays: Sequence[Array]) -> list[Block]:
    """The union of the arrays' memory, as disjoint blocks."""
    merged: list[Block] = []
    for start, end in sorted((a.address - a.before, a.address + a.nbytes) for a in arrays):
        last = merged[-1] if merged else None
        if last is not None and (start < last.address + last.nbytes or (start, end) == (last.address, last.address)):
            merged[-1] = Block(last.address, max(end - last.address, last.nbytes))
        else:
            merged.append(Block(start, end - start))
    return merged


def place(array: Array | None, blocks: Sequence[Block]) -> tuple[int, int]:
    """Which block an array lies in, and where; (-1, 0) for none."""
    if array is None:
        return -1, 0
    inside = [i for i, b in enumerate(blocks) if b.address <= array.address <= b.address + b.nbytes - array.nbytes]
    return inside[-1], array.address - blocks[inside[-1]].address


@dataclass
class Recorder:
    """Two files, the calls for replay.cpp and the blocks after each; `recorded` describes both."""

    calls: BinaryIO
    results: BinaryIO
    recorded: list[Recorded] = field(default_factory=list)
    alike: Counter[object] = field(default_factory=Counter)

    def around(self, kernel: str, arrays: Sequence[Array | None], params: np.ndarray, scalars: np.ndarray,
               call: Callable[[], None]) -> None:  # fmt: skip
        """Run `call` and, unless it fails, write down what it was given and what it left."""
        key = kernel, params.tobytes(), scalars.tobytes(), tuple(a.nbytes if a else None for a in arrays)
        self.alike[key] += 1
        blocks = blocks_of([a for a in arrays if a is not None])
        if self.alike[key] > MOST_ALIKE or sum(b.nbytes for b in blocks) > MOST_BYTES:
            return call()
        places = [place(a, blocks) for a in arrays]
        given = _call_as_bytes(kernel, blocks, places, params, scalars)
        call()
        self.calls.write(given)
        for block in blocks:
            self.results.write(block.content())
        tensors = [(*p, a.nbytes, a.dtype) for p, a in zip(places, arrays, strict=True) if a is not None]
        self.recorded.append(Recorded(kernel, tuple(b.nbytes for b in blocks), tuple(tensors)))


def _call_as_bytes(kernel: str, blocks: Sequence[Block], places: Sequence[tuple[int, int]], params: np.ndarray,
                   scalars: np.ndarray) -> bytes:  # fmt: skip
    """A call as replay.cpp reads it."""

    def counted(count: int, content: bytes) -> bytes:
        return struct.pack("<q", count) + content

    memory = b"".join(counted(block.nbytes, block.content()) for block in blocks)
    return b"".join(
        (
            counted(len(kernel.encode()), kernel.encode()),
            counted(len(blocks), memory),
            counted(len(places), np.array(places, "<i8").tobytes()),
            counted(len(params), params.astype("<i8").tobytes()),
            counted(len(scalars), scalars.astype("<f4").tobytes()),
        )
    )


def record_tests(folder: Path, words: Sequence[str]) -> list[Recorded]:
    """Run pytest with these words and record all kernels in folder/calls.bin and folder/results.bin.

    SystemExit when a test fails: what a wrong kernel answers is no measure for others.
    """
    with (folder / "calls.bin").open("wb") as calls, (folder / "results.bin").open("wb") as results:
        recorder = Recorder(calls, results)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Library, "run", _recording_run(recorder, Library.run))
            patch.setattr(Library, "call", _naming_arrays(Library.call))
            patch.setattr(Program, "run", _naming_tensors(Program.run))
            status = pytest.main(list(words))
        if status:
            raise SystemExit(f"the tests that were to be recorded ended with {status}")
        return recorder.recorded


_memory: list[Callable[[int], Array]] = []  # of the calls under way: the memory of a slot


def _recording_run(recorder: Recorder, run: Callable[..., None]) -> Callable[..., None]:
    """Instruction by instruction."""

    def recording(self: Library, pool: Any, program: Instructions, slots: int, seconds: Any = None) -> None:
        kernels = {kernel.address: kernel for kernel in self.kernels.values()}
        for i, (address, args_at, args_count, params_at, scalars_at) in enumerate(program.rows.tolist()):
            kernel, one = kernels[address], replace(program, rows=program.rows[i : i + 1])
            times = None if seconds is None else seconds[i : i + 1]
            try:
                recorder.around(
                    kernel.name,
                    [_array(slot, slots) for slot in program.args[args_at : args_at + args_count].tolist()],
                    program.params[params_at : params_at + len(kernel.params)],
                    program.scalars[scalars_at : scalars_at + len(kernel.scalars)],
                    lambda one=one, times=times: run(self, pool, one, slots, times),
                )
            except KernelFailure as failure:
                raise KernelFailure(i, failure.reason) from failure

    return recording


def _array(slot: int, slots: int) -> Array | None:
    """The tensor of a slot; `slots` is the address of the table of pointers."""
    address = ctypes.c_size_t.from_address(slots + slot * ctypes.sizeof(ctypes.c_size_t)).value
    return replace(_memory[-1](slot), address=address) if address else None


def _strided(array: np.ndarray) -> Array:
    """The memory of an array whose rows may lie apart or backwards."""
    if not array.size:
        return Array(0, 0, array.dtype)
    first, end = np.lib.array_utils.byte_bounds(array)
    return Array(0, end - array.ctypes.data, array.dtype, array.ctypes.data - first)


def _naming_arrays(call: Callable[..., None]) -> Callable[..., None]:
    def naming(self: Library, name: str, pool: Any = None, **values: Any) -> None:
        arrays = {i: values.get(n) for i, n in enumerate(self.kernels[name].args)}
        _memory.append({i: _strided(a) for i, a in arrays.items() if a is not None}.__getitem__)
        try:
            call(self, name, pool, **values)
        finally:
            _memory.pop()

    return naming


def _to_the_end(tensor: Tensor) -> Array:
    """What kernels may touch of a tensor's buffer, of which blocked layouts fill more than the tensor's own bytes.

    What is kept from run to run has its size only when the run has begun.
    """
    if tensor.buffer.kept is not None:
        return _strided(tensor.buffer.kept())
    size = (tensor.buffer.nbytes - tensor.offset) // tensor.dtype.itemsize
    return Array(0, size * tensor.dtype.itemsize, tensor.dtype)


def _naming_tensors(run: Callable[..., Any]) -> Callable[..., Any]:
    def naming(self: Program, *words: Any, **named: Any) -> Any:
        _memory.append(lambda slot: _to_the_end(self._tensors[slot - 1]))
        try:
            return run(self, *words, **named)
        finally:
            _memory.pop()

    return naming
