"""Runs graphs stage by stage: a program per set of shapes, made at the first run with them.

What the backends share; `cpu/executor.py` and `opencl/executor.py` make the programs.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from mnnconvert.errors import ConversionError
from mnnconvert.ir import Graph, Node, Value
from mnnconvert.runtime_ref.cache import Caches
from mnnconvert.runtime_ref.lower import Constants, Lowering, Tensor
from mnnconvert.runtime_ref.reference import Arrays, Compute, Definitions, Recorder

KEPT_PROGRAMS = 16  # per session: one per set of input shapes, and per stage

Shapes = dict[Value, tuple[int, ...]]


@dataclass(eq=False)
class _Stage:
    """A program, the number of the node after it, and the values that later nodes or the caller need."""

    program: Program
    stop: int
    contents: dict[Value, np.ndarray]  # what is known of later operands from the shapes alone


class Program(Protocol):
    """The steps of a stage, ready to run."""

    def run(self, feeds: Mapping[Value, np.ndarray], compute: Compute, record: Recorder | None = None) -> Arrays: ...


class StagedExecutor(ABC):
    """Computes graphs stage by stage: up to a node whose sizes depend on data, that node by its definition, and on."""

    def __init__(self, graph: Graph, constants: Constants, caches: Caches | None = None):
        self.constants = constants
        self.caches = caches
        self._definitions = Definitions(graph, self._run_inner, caches)
        self._record: Recorder | None = None
        self._stages: OrderedDict[object, _Stage] = OrderedDict()

    @abstractmethod
    def lowering(self, wanted: Collection[Value], graphs: Mapping[str, Graph]) -> Any:
        """What builds the steps of a stage."""

    @abstractmethod
    def program(self, lowering: Any, results: Mapping[Value, Tensor]) -> Program:
        """These steps, ready to run; MemoryError where they do not fit."""

    def missing(self, *nodes: Node) -> None:  # noqa: B027 - most backends have nothing to say
        """Hears of nodes that no kernel computes, before their definitions do."""

    def run(self, graph: Graph, feeds: Arrays, wanted: Iterable[Value], record: Recorder | None = None) -> Arrays:
        """The wanted values for these inputs, as arrays of their own; `record` hears of work inside subgraphs too."""
        self._record = record
        return self._run_inner(graph, feeds, wanted)

    def _run_inner(self, graph: Graph, feeds: Arrays, wanted: Iterable[Value]) -> Arrays:
        record = self._record
        asked = frozenset(wanted)
        values = {v: _contiguous(a) for v, a in feeds.items()}
        stage = self._stage(graph, 0, values, asked, None)
        while True:
            values |= stage.program.run(values, self._definitions.compute, record)
            if stage.stop < len(graph.nodes):
                values |= self._by_definition(graph.nodes[stage.stop], values)
            if stage.stop + 1 >= len(graph.nodes):
                return {v: self._result(v, values) for v in asked}
            stage = self._stage(graph, stage.stop + 1, values, asked, stage)

    def _result(self, value: Value, values: Arrays) -> np.ndarray:
        """A copy: what a program returns lies in its arena, and feeds belong to the caller."""
        return np.array(values[value] if value in values else self._constant(value))

    def _by_definition(self, node: Node, values: Arrays) -> Arrays:
        if not node.op.subgraphs():
            self.missing(node)
        operands = [values[v] if v in values else self._constant(v) for v in node.inputs]
        started = time.perf_counter()
        results = [_contiguous(r) for r in self._definitions.compute(node, operands)]
        if self._record is not None and not node.op.subgraphs():
            self._record((node,), "reference", time.perf_counter() - started, sum(r.nbytes for r in results))
        return dict(zip(node.outputs, results, strict=False))

    def _constant(self, value: Value) -> np.ndarray:
        tensor = value.tensor
        assert tensor is not None, value
        return self.constants.get(id(tensor), tensor.numpy)

    def _stage(
        self, graph: Graph, start: int, values: Arrays, wanted: frozenset[Value], before: _Stage | None
    ) -> _Stage:
        shapes = {v: a.shape for v, a in values.items()}
        key = (id(graph), start, wanted, tuple(shapes.items()), before)
        if key not in self._stages:
            self._stages[key] = self._made(graph, start, shapes, wanted, before.contents if before else {})
            while len(self._stages) > KEPT_PROGRAMS:
                self._stages.popitem(last=False)
        self._stages.move_to_end(key)
        return self._stages[key]

    def _made(self, graph: Graph, start: int, shapes: Shapes, wanted: frozenset[Value], contents: Arrays) -> _Stage:
        try:
            return self._lowered(graph, start, shapes, wanted, contents)
        except MemoryError as error:
            raise ConversionError.of("run-failed", f"the values do not fit into memory: {error}") from error

    def _lowered(self, graph: Graph, start: int, shapes: Shapes, wanted: frozenset[Value], contents: Arrays) -> _Stage:
        lowering: Lowering = self.lowering(wanted, self._definitions.graphs)
        nodes = graph.nodes[start:]
        read = {v for node in nodes for v in node.inputs} | wanted
        for value, shape in shapes.items():
            if value in read:
                lowering.feed(value, shape, contents.get(value))
        stop = lowering.lower(nodes)
        later = {v for node in nodes[stop:] for v in node.inputs} | wanted
        made = [v for v in lowering.specs if v in later and v not in shapes]
        known = {v: c for v in later if v in lowering.specs and (c := lowering.specs[v].constant) is not None}
        results = {v: lowering.read(v) for v in made}
        return _Stage(self.program(lowering, results), start + stop, known)


def _contiguous(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(array.shape)
