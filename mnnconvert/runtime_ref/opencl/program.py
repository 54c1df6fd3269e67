"""A lowered stage of a graph as launches with bound arguments, placed in one buffer of the device, and its run."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mnnconvert.errors import ConversionError
from mnnconvert.ir import I32, Value
from mnnconvert.runtime_ref.lower import Buffer, Reference, Sizes, Tensor, lifetimes
from mnnconvert.runtime_ref.opencl.device import Device, number
from mnnconvert.runtime_ref.opencl.lower import Launch, Lowering, Variant
from mnnconvert.runtime_ref.opencl.tuning import Tuning
from mnnconvert.runtime_ref.planner import Lifetime, plan
from mnnconvert.runtime_ref.reference import Compute, Recorder

if TYPE_CHECKING:
    import pyopencl as cl

GUARD = 256  # bytes on either side of a guarded tensor, a multiple of what devices align to
PATTERN = 0xA5
HOPELESS = 2  # times slower than the best so far: not timed again


@dataclass(eq=False)
class Bound:
    """A kernel with its arguments, which it does not keep alive itself, and how many work-items it takes."""

    kernel: cl.Kernel
    arguments: list[Any]
    size: Sizes
    local: Sizes | None
    name: str


class Program:
    """The steps of one stage, placed in an arena.

    Everything is put into a queue that works in order: the host waits where numpy has to compute, and for the results.
    With `guard` each tensor has a place of its own between bytes that nobody may write; `broken_guards` looks at them.
    Not for several threads at once: they would share the arena.
    """

    def __init__(
        self,
        lowering: Lowering,
        results: Mapping[Value, Tensor],
        queue: cl.CommandQueue,
        tuning: Tuning,
        guard: bool = False,
    ):
        self.device: Device = lowering.device
        self.results = dict(results)
        self._queue = queue
        self._faults, self._faulty = lowering.faults, lowering.faulty
        self._storage = {"HALF": 1} if lowering.half else {}
        self._steps: list[Launch | Reference] = lowering.steps
        self._buffers: dict[int, cl.Buffer] = {}  # by identity of the Buffer
        self._guarded: list[tuple[cl.Buffer, int]] = []
        self._fed = _unique(t.buffer for t in self._tensors() if t.buffer.fed is not None)
        self._place(guard)
        self._bound = [self._bind(s, tuning) if isinstance(s, Launch) else [] for s in self._steps]

    def run(
        self, feeds: Mapping[Value, np.ndarray], compute: Compute, record: Recorder | None = None
    ) -> dict[Value, np.ndarray]:
        """The results, as arrays of their own; feeds are contiguous arrays of the planned shapes."""
        import pyopencl as cl

        try:
            kept = [self._write(self._buffers[id(b)], feeds[b.fed], b.nbytes) for b in self._fed if b.fed is not None]
            for step, launches in zip(self._steps, self._bound, strict=True):
                if isinstance(step, Reference):
                    self._refer(step, compute, record)
                    continue
                for bound in launches:
                    event = cl.enqueue_nd_range_kernel(self._queue, bound.kernel, bound.size, bound.local)
                    if record is not None:
                        nbytes = step.result_bytes if bound is launches[-1] else 0
                        record((step.node, *step.along), bound.name, _seconds(event), nbytes)
            arrays = {value: self._read(tensor, value.dtype) for value, tensor in self.results.items()}
            self._look_for_faults()
            self._queue.finish()
            del kept  # the queue has read them
        except (cl.Error, MemoryError) as error:
            raise ConversionError.of("run-failed", f"the OpenCL device failed: {error}") from error
        return arrays

    def broken_guards(self) -> int:
        """How many guarded tensors had bytes written beside them, so far."""
        import pyopencl as cl

        broken = 0
        for buffer, nbytes in self._guarded:
            raw = np.empty(nbytes + 2 * GUARD, np.uint8)
            cl.enqueue_copy(self._queue, raw, buffer)
            broken += bool((raw[:GUARD] != PATTERN).any() or (raw[GUARD + nbytes :] != PATTERN).any())
        return broken

    def _look_for_faults(self) -> None:
        """ConversionError where a kernel has met an index without an element."""
        if self._faults is None:
            return
        found = int(self._read(self._faults, I32)[0])
        if found:
            node = self._faulty[found - 1]
            self._write(self._memory(self._faults), np.zeros(1, I32), 4)
            self._queue.finish()
            what = f"{node.op.kind} failed: an index is beyond its axis"
            raise ConversionError.of("run-failed", what, node=node.name)

    def _refer(self, step: Reference, compute: Compute, record: Recorder | None) -> None:
        operands = [self._read(t, v.dtype) for t, v in zip(step.inputs, step.node.inputs, strict=True)]
        self._queue.finish()
        started = time.perf_counter()
        results = compute(step.node, operands)
        if record is not None:
            record((step.node,), "reference", time.perf_counter() - started, sum(r.nbytes for r in results))
        for tensor, result in zip(step.outputs, results, strict=False):
            if result.shape != tensor.shape:
                raise AssertionError(f"{step.node.op.kind} gave {result.shape}, its shape rule {tensor.shape}")
            self._write(self._memory(tensor), result.astype(tensor.dtype, copy=False), tensor.nbytes)
        self._queue.finish()

    def _write(self, buffer: cl.Buffer, array: np.ndarray, nbytes: int) -> np.ndarray:
        """Put a copy of an array into the queue; what is returned has to live until that is done."""
        import pyopencl as cl

        if array.nbytes != nbytes:  # floats that lie as halves
            with np.errstate(over="ignore"):
                array = array.astype(np.float16)
        array = np.ascontiguousarray(array)
        if nbytes:
            cl.enqueue_copy(self._queue, buffer, array, is_blocking=False)
        return array

    def _read(self, tensor: Tensor, dtype: np.dtype) -> np.ndarray:
        """Put the reading of a tensor into the queue, and wait for it."""
        import pyopencl as cl

        array = np.empty(tensor.shape, tensor.dtype)
        if tensor.nbytes:
            cl.enqueue_copy(self._queue, array, self._memory(tensor), src_offset=tensor.offset)
        return array.astype(dtype, copy=False)

    # Where tensors lie.

    def _tensors(self) -> Sequence[Tensor]:
        return [*(t for s in self._steps for t in s.tensors), *self.results.values()]

    def _place(self, guard: bool) -> None:
        """A buffer of the device for all that is fed and all that is made."""
        import pyopencl as cl

        flags = cl.mem_flags.READ_WRITE
        for buffer in self._fed:
            self._buffers[id(buffer)] = self._guard(buffer) if guard else self._alone(buffer.nbytes)
        lives = lifetimes(self._steps, self.results.values())
        if guard:
            self._buffers |= {id(b): self._guard(b) for b, _, _ in lives}
            return
        index = {id(b): i for i, (b, _, _) in enumerate(lives)}
        unit = self.device.alignment
        sizes = [max(-(-b.nbytes // unit), 1) * unit for b, _, _ in lives]
        places = zip(sizes, lives, strict=True)
        arena = plan([Lifetime(nbytes, first, last, index.get(id(b.over))) for nbytes, (b, first, last) in places])
        most = int(self.device.cl.max_mem_alloc_size)
        if arena.nbytes > most:
            raise MemoryError(f"{arena.nbytes} bytes, and the device gives {most} at most")
        self._arena = cl.Buffer(self.device.context, flags, max(arena.nbytes, 1))
        for (buffer, _, _), nbytes, offset in zip(lives, sizes, arena.offsets, strict=True):
            self._buffers[id(buffer)] = self._arena.get_sub_region(offset, nbytes, flags)

    def _alone(self, nbytes: int) -> cl.Buffer:
        import pyopencl as cl

        return cl.Buffer(self.device.context, cl.mem_flags.READ_WRITE, max(nbytes, 1))

    def _guard(self, buffer: Buffer) -> cl.Buffer:
        import pyopencl as cl

        nbytes = max(buffer.nbytes, 1)
        whole = self.device.upload(np.full(nbytes + 2 * GUARD, PATTERN, np.uint8))
        self._guarded.append((whole, nbytes))
        return whole.get_sub_region(GUARD, nbytes, cl.mem_flags.READ_WRITE)

    def _memory(self, tensor: Tensor) -> Any:
        """The memory object of the device that a tensor lies in."""
        held = tensor.buffer.device
        return self._buffers[id(tensor.buffer)] if held is None else held

    def _inside(self, tensor: Tensor) -> Any:
        """The memory object that begins where the tensor does."""
        import pyopencl as cl

        whole = self._memory(tensor)
        if not tensor.offset:
            return whole
        origin, nbytes = whole.offset + tensor.offset, tensor.buffer.nbytes - tensor.offset
        owner = whole.associated_memobject or whole
        return owner.get_sub_region(origin, nbytes, cl.mem_flags.READ_WRITE)

    # Kernels.

    def _bind(self, launch: Launch, tuning: Tuning) -> list[Bound]:
        variants = launch.variants
        best = tuning.best(variants, self._time) if len(variants) > 1 else 0
        return [self._prepared(v) for v in variants[best].launches]

    def _prepared(self, variant: Variant) -> Bound:
        kernel = self.device.kernel(variant.kernel, {**variant.defines, **self._storage}, variant.text)
        parameters = variant.signature.parameters
        arguments = [self._argument(name, variant) for name in parameters]
        kernel.set_args(*arguments)
        local = variant.local if variant.local is None else self._group(variant.local)
        size = variant.size
        if local is not None:
            size = tuple(-(-s // unit) * unit for s, unit in zip(size, local, strict=True))
        return Bound(kernel, arguments, size, local, variant.kernel)

    def _group(self, local: Sizes) -> Sizes:
        """A group that the device allows."""
        sizes = list(local)
        while math.prod(sizes) > self.device.limits.work_group:
            largest = sizes.index(max(sizes))
            sizes[largest] = -(-sizes[largest] // 2)
        return tuple(sizes)

    def _argument(self, name: str, variant: Variant) -> Any:
        parameters, argument = variant.signature.parameters, variant.arguments[name]
        if callable(argument):
            argument = argument()
        if isinstance(argument, Tensor):
            return self._memory(argument) if f"{name}_at" in parameters else self._inside(argument)
        return None if parameters[name] == "tensor" else number(parameters[name], argument)

    def _time(self, variant: Variant, best: float) -> float:
        """Seconds of the fastest of three runs, after one that warms up; of one where that is far behind the `best`.

        Infinite where the driver does not build or launch it.
        """
        import pyopencl as cl

        times: list[float] = []
        try:
            launches = [self._prepared(v) for v in variant.launches]
            for _ in range(4):
                events = [cl.enqueue_nd_range_kernel(self._queue, b.kernel, b.size, b.local) for b in launches]
                times.append(sum(_seconds(event) for event in events))
                if len(times) == 2 and times[1] > HOPELESS * best:
                    break
        except (cl.Error, MemoryError):
            return math.inf
        return min(times[1:])


def _seconds(event: cl.Event) -> float:
    """The time that a launch took, once it is done."""
    event.wait()
    return float(event.profile.end - event.profile.start) * 1e-9


def _unique(buffers: Any) -> list[Buffer]:
    return list({id(b): b for b in buffers}.values())
