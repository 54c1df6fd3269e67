"""The reference: every op computed by its numpy definition, node by node."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from weakref import WeakMethod

import numpy as np

from mnnconvert.errors import ConversionError, MnnConvertError
from mnnconvert.ir import Graph, Node, Value
from mnnconvert.runtime_ref.cache import Caches

Arrays = dict[Value, np.ndarray]
Recorder = Callable[[Sequence[Node], str, float, int], None]
"""Told of each piece of work: its nodes, the kernel (or "reference"), seconds, and bytes of the results."""

Compute = Callable[[Node, Sequence[np.ndarray]], Sequence[np.ndarray]]
"""The results of a node for its operands."""

Run = Callable[[Graph, Arrays, Iterable[Value]], Arrays]


class Definitions:
    """Computes single ops by their numpy definition; the graphs that ops of control flow run go through `run`.

    With `caches` attention sees the keys of earlier runs. `run` is a method of the executor that owns this object: a
    strong reference to it would keep all packed weights alive until somebody searches for cycles.
    """

    def __init__(self, graph: Graph, run: Run, caches: Caches | None = None):
        self._caches = caches
        self.graphs = {name: inner for g in graph.graphs() for name, inner in g.subgraphs.items()}
        self._run = WeakMethod(run)

    def compute(self, node: Node, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The results of a node; `run-failed` with its name where numpy cannot compute it."""
        try:
            operands = self._with_kept(node, operands)
            with np.errstate(all="ignore"):
                result = node.op.ref(*operands, call=self._call) if node.op.subgraphs() else node.op.ref(*operands)
        except MnnConvertError:
            raise
        except (ValueError, IndexError, TypeError, ZeroDivisionError, MemoryError, OverflowError) as error:
            shapes = ", ".join(str(list(o.shape)) for o in operands)
            raise ConversionError.of(
                "run-failed", f"{node.op.kind} failed: {error}", node=node.name, operands=shapes
            ) from error
        return [np.asarray(r) for r in (result if isinstance(result, tuple) else (result,))]

    def _with_kept(self, node: Node, operands: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """The operands, with the keys and values of earlier runs where the node keeps them."""
        cache = self._caches.of(node) if self._caches is not None else None
        if cache is None:
            return operands
        q, k, v, *rest = operands
        return [q, *cache.append(k, v), *rest]

    def _call(self, name: str, operands: list[np.ndarray]) -> list[np.ndarray]:
        inner = self.graphs[name]
        outputs = [v for _, v in inner.outputs]
        run = self._run()
        assert run is not None
        arrays = run(inner, dict(zip(inner.inputs, operands, strict=True)), outputs)
        return [arrays[v] for v in outputs]


class ReferenceExecutor:
    """Computes graphs node by node and lets go of what nobody reads any more.

    Constants are loaded, and decoded, when an op first reads them, and kept for the next run.
    """

    def __init__(self, graph: Graph, caches: Caches | None = None):
        self._definitions = Definitions(graph, self.run, caches)
        self._constants: dict[int, np.ndarray] = {}  # by identity of the tensor, which values may share

    def run(self, graph: Graph, feeds: Arrays, wanted: Iterable[Value], record: Recorder | None = None) -> Arrays:
        """The wanted values for these inputs."""
        arrays, kept = dict(feeds), set(wanted)
        left = Counter(v for n in graph.nodes for v in n.inputs)
        for node in graph.nodes:
            operands = [self._read(v, arrays) for v in node.inputs]
            started = time.perf_counter()
            results = self._definitions.compute(node, operands)
            if record is not None:
                record((node,), "reference", time.perf_counter() - started, sum(r.nbytes for r in results))
            arrays.update(zip(node.outputs, results, strict=False))
            for value in node.inputs:
                left[value] -= 1
                if not left[value] and value not in kept:
                    arrays.pop(value, None)
        return {value: self._read(value, arrays) for value in kept}

    def _read(self, value: Value, arrays: Arrays) -> np.ndarray:
        if value.tensor is None:
            return arrays[value]
        key = id(value.tensor)
        if key not in self._constants:
            self._constants[key] = value.tensor.numpy()
        return self._constants[key]
