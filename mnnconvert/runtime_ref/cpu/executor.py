"""Runs graphs with compiled kernels."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from mnnconvert.ir import Graph, Value
from mnnconvert.runtime_ref.cache import Caches
from mnnconvert.runtime_ref.cpu import lowering as _rules  # noqa: F401  (registers them)
from mnnconvert.runtime_ref.cpu.library import Library, Pool
from mnnconvert.runtime_ref.cpu.lower import Lowering
from mnnconvert.runtime_ref.cpu.program import Program
from mnnconvert.runtime_ref.lower import Constants, Tensor
from mnnconvert.runtime_ref.stages import StagedExecutor


class CpuExecutor(StagedExecutor):
    """Programs of kernels of one library, run on `threads` threads."""

    def __init__(self, graph: Graph, library: Library, threads: int, exact: bool = True, caches: Caches | None = None):
        super().__init__(graph, Constants(), caches)
        self.library = library
        self.pool = Pool(library, threads)
        self.exact = exact

    def lowering(self, wanted: Collection[Value], graphs: Mapping[str, Graph]) -> Lowering:
        return Lowering(self.library, self.pool, self.constants, wanted, self.exact, graphs, self.caches)

    def program(self, lowering: Lowering, results: Mapping[Value, Tensor]) -> Program:
        return Program(lowering, results)
