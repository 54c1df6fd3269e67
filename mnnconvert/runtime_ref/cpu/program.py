"""A lowered stage of a graph as flat arrays, and its run: one call into the library per stretch of kernels."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mnnconvert.errors import ConversionError
from mnnconvert.ir import Value
from mnnconvert.runtime_ref.cpu.library import Instructions, KernelFailure, Library, Pool
from mnnconvert.runtime_ref.cpu.lower import Call, Lowering
from mnnconvert.runtime_ref.lower import Buffer, Reference, Tensor, lifetimes
from mnnconvert.runtime_ref.memory import aligned
from mnnconvert.runtime_ref.planner import Lifetime, plan
from mnnconvert.runtime_ref.reference import Compute, Recorder


@dataclass(eq=False)
class _Stretch:
    """Consecutive kernel calls."""

    calls: list[Call]
    instructions: Instructions


class Program:
    """The steps of one stage, placed in an arena.

    Not for several threads at once: they would share the arena.
    """

    def __init__(self, lowering: Lowering, results: Mapping[Value, Tensor]):
        self.library: Library = lowering.library
        self.pool: Pool = lowering.pool
        self.results = dict(results)
        self._steps = lowering.steps
        self._growths = lowering.growths
        self._tensors = _unique([*(t for s in self._steps for t in s.tensors), *self.results.values()])
        self._arena = self._place()
        self._slots, self._fed, self._kept = self._bind()
        self._slots_at: int = self._slots.ctypes.data
        self._views = {id(t): self._view(t) for t in self._seen_by_numpy() if t.buffer.fed is None}
        self._parts: list[_Stretch | Reference] = list(self._grouped())

    def run(
        self, feeds: Mapping[Value, np.ndarray], compute: Compute, record: Recorder | None = None
    ) -> dict[Value, np.ndarray]:
        """The results, as views that are good until the next run; feeds are contiguous arrays of the planned shapes."""
        for slot, value, offset in self._fed:
            self._slots[slot] = feeds[value].__array_interface__["data"][0] + offset
        for growth in self._growths:
            growth.prepare()
        for slot, memory in self._kept:
            self._slots[slot] = memory().ctypes.data
        for part in self._parts:
            if isinstance(part, Reference):
                self._refer(part, feeds, compute, record)
            else:
                self._call(part, record)
        for growth in self._growths:
            growth.finish()
        return {value: self._array(tensor, feeds) for value, tensor in self.results.items()}

    def _call(self, part: _Stretch, record: Recorder | None) -> None:
        seconds = None if record is None else np.zeros(len(part.calls))
        try:
            self.library.run(self.pool, part.instructions, self._slots_at, seconds)
        except KernelFailure as failure:
            node = part.calls[failure.call].node
            raise ConversionError.of(
                "run-failed", f"{node.op.kind} failed: {failure.reason}", node=node.name
            ) from failure
        if record is not None and seconds is not None:
            for call, spent in zip(part.calls, seconds, strict=True):
                record((call.node, *call.along), call.kernel.name, float(spent), call.result_bytes)

    def _refer(
        self, step: Reference, feeds: Mapping[Value, np.ndarray], compute: Compute, record: Recorder | None
    ) -> None:
        operands = [self._array(t, feeds) for t in step.inputs]
        started = time.perf_counter()
        results = compute(step.node, operands)
        for tensor, result in zip(step.outputs, results, strict=False):
            view = self._views[id(tensor)]
            if result.shape != view.shape or result.dtype != view.dtype:
                raise AssertionError(
                    f"{step.node.op.kind} gave {result.dtype} {result.shape}, its shape rule {view.dtype} {view.shape}"
                )
            view[...] = result
        if record is not None:
            record((step.node,), "reference", time.perf_counter() - started, sum(r.nbytes for r in results))

    def _array(self, tensor: Tensor, feeds: Mapping[Value, np.ndarray]) -> np.ndarray:
        if tensor.buffer.fed is None:
            return self._views[id(tensor)]
        raw = feeds[tensor.buffer.fed].reshape(-1).view(np.uint8)
        return _typed(raw, tensor)

    def _seen_by_numpy(self) -> list[Tensor]:
        steps = [s for s in self._steps if isinstance(s, Reference)]
        return [*(t for s in steps for t in s.tensors), *self.results.values()]

    def _place(self) -> np.ndarray:
        """The arena; sets where each of its buffers lies."""
        lives = lifetimes(self._steps, self.results.values())
        index = {id(b): i for i, (b, _, _) in enumerate(lives)}
        arena = plan([Lifetime(b.nbytes, first, last, index.get(id(b.over))) for b, first, last in lives])
        self._offsets = {id(b): offset for (b, _, _), offset in zip(lives, arena.offsets, strict=True)}
        return aligned((max(arena.nbytes, 1),), np.uint8, kept=False)

    def _bind(self) -> tuple[np.ndarray, list[tuple[int, Value, int]], list[tuple[int, Callable[[], np.ndarray]]]]:
        """A pointer per tensor, slot 0 being none; which slots are fed at each run; and which hold what is kept."""
        slots, fed, kept = np.zeros(len(self._tensors) + 1, np.uintp), [], []
        self._slot = {id(t): i for i, t in enumerate(self._tensors, 1)}
        for tensor in self._tensors:
            slot, buffer = self._slot[id(tensor)], tensor.buffer
            if buffer.fed is not None:
                fed.append((slot, buffer.fed, tensor.offset))
            elif buffer.kept is not None:
                kept.append((slot, buffer.kept))
            else:
                slots[slot] = self._memory(buffer).ctypes.data + tensor.offset
        return slots, fed, kept

    def _memory(self, buffer: Buffer) -> np.ndarray:
        if buffer.array is not None:
            return buffer.array
        offset = self._offsets[id(buffer)]
        return self._arena[offset : offset + buffer.nbytes]

    def _view(self, tensor: Tensor) -> np.ndarray:
        return _typed(self._memory(tensor.buffer).reshape(-1).view(np.uint8), tensor)

    def _grouped(self) -> Sequence[_Stretch | Reference]:
        parts: list[_Stretch | Reference] = []
        calls: list[Call] = []
        for step in [*self._steps, None]:
            if isinstance(step, Call):
                calls.append(step)
                continue
            if calls:
                parts.append(self._stretch(calls))
            calls = []
            if step is not None:
                parts.append(step)
        return parts

    def _stretch(self, calls: list[Call]) -> _Stretch:
        rows: list[tuple[int, ...]] = []
        args: list[int] = []
        params: list[int] = []
        scalars: list[float] = []
        for call in calls:
            rows.append((call.kernel.address, len(args), len(call.args), len(params), len(scalars)))
            args += [0 if t is None else self._slot[id(t)] for t in call.args]
            params += call.params
            scalars += call.scalars
        numbers = np.array([*params, 0], np.int64), np.array([*scalars, 0], np.float32)
        return _Stretch(calls, Instructions(np.array(rows, np.int64), np.array(args, np.int64), *numbers))


def _typed(raw: np.ndarray, tensor: Tensor) -> np.ndarray:
    return raw[tensor.offset : tensor.offset + tensor.nbytes].view(tensor.dtype).reshape(tensor.shape)


def _unique(tensors: Sequence[Tensor]) -> list[Tensor]:
    return list({id(t): t for t in tensors}.values())
