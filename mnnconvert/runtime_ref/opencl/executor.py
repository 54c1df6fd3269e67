"""Runs graphs with OpenCL kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from mnnconvert.errors import ConversionError, Diagnostic
from mnnconvert.ir import Graph, Node, Value
from mnnconvert.runtime_ref.cache import Caches
from mnnconvert.runtime_ref.lower import Reference, Tensor
from mnnconvert.runtime_ref.opencl import lowering as _rules  # noqa: F401  (registers them)
from mnnconvert.runtime_ref.opencl.device import Device
from mnnconvert.runtime_ref.opencl.lower import DeviceConstants, Lowering
from mnnconvert.runtime_ref.opencl.program import Program
from mnnconvert.runtime_ref.opencl.tuning import Tuning
from mnnconvert.runtime_ref.stages import StagedExecutor


class OpenClExecutor(StagedExecutor):
    """Programs of kernels of one device; see `Lowering` for `half`, `Tuning` for `tune`.

    With `strict` an op without a kernel is the error `no-kernel`; otherwise its definition computes it, and `fallbacks`
    counts such ops.
    """

    def __init__(
        self,
        graph: Graph,
        device: Device,
        caches: Caches | None = None,
        *,
        half: bool = False,
        tune: bool = False,
        strict: bool = False,
    ):
        self.device_constants = DeviceConstants()
        super().__init__(graph, self.device_constants, caches)
        self.device = device
        self.half = half
        self.strict = strict
        self.fallbacks: Counter[str] = Counter()
        self.tuning = Tuning(device, tune)
        self.queue = device.queue()

    def lowering(self, wanted: Collection[Value], graphs: Mapping[str, Graph]) -> Lowering:
        return Lowering(self.device, self.device_constants, wanted, graphs, self.caches, self.half)

    def program(self, lowering: Lowering, results: Mapping[Value, Tensor]) -> Program:
        import pyopencl as cl

        self.missing(*(s.node for s in lowering.steps if isinstance(s, Reference)))

        try:
            return Program(lowering, results, self.queue, self.tuning)
        except cl.Error as error:  # no memory, or a driver that refuses a kernel
            raise ConversionError.of("run-failed", f"the OpenCL device failed: {error}") from error

    def missing(self, *nodes: Node) -> None:
        holes = Counter(node.op.kind for node in nodes)
        if holes and self.strict:
            raise ConversionError(
                Diagnostic("no-kernel", f"OpenCL has no kernel for this {kind}", {"uses": str(count)})
                for kind, count in holes.items()
            )
        self.fallbacks |= holes
