"""Builds a graph node by node; shapes and constant contents are known while it is being built."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, overload

import numpy as np

from mnnconvert.errors import ConversionError, MnnConvertError
from mnnconvert.ir.graph import Graph, Node, Operation, Value
from mnnconvert.ir.tensor import ArrayTensor, Tensor, is_coded
from mnnconvert.ir.types import Shape, Spec, format_shape, known

FOLD_BYTES = 1 << 20  # a result up to this size is always worth computing once
FOLD_GROWTH = 4  # a larger one only if it is at most so many times its inputs


class Builder:
    """Appends nodes to a graph, giving every value a unique name.

    `origin` names the source nodes that are being translated; nodes added meanwhile remember it.
    """

    def __init__(self, graph: Graph | None = None):
        self.graph = graph if graph is not None else Graph()
        self.origin: tuple[str, ...] = ()
        self.scope = ""
        self.names: set[str] = {v.name for v in self.graph.values()}
        self._small: dict[tuple[str, tuple[int, ...], bytes], Value] = {}
        self._suffix: dict[str, int] = {}

    def unique(self, name: str) -> str:
        """`name`, or `name_2`, `name_3` ... when it is taken."""
        candidate, count = name, self._suffix.get(name, 1)
        while candidate in self.names:
            count += 1
            candidate = f"{name}_{count}"
        self._suffix[name] = count
        self.names.add(candidate)
        return candidate

    def input(self, name: str, dtype: np.dtype, shape: Shape | None) -> Value:
        """A graph input."""
        value = Value(self.unique(name), Spec(np.dtype(dtype), shape))
        self.graph.inputs.append(value)
        return value

    def constant(self, tensor: Tensor | np.ndarray, name: str = "") -> Value:
        """A constant; small equal arrays without a name of their own share one value."""
        if isinstance(tensor, np.ndarray):
            tensor = ArrayTensor(tensor)
        small = isinstance(tensor, ArrayTensor) and tensor.array.size <= 64
        spec = Spec(
            tensor.dtype, tuple(tensor.shape), tensor.array if small and isinstance(tensor, ArrayTensor) else None
        )
        if not small or name:
            return Value(self.unique(name or f"{self.scope or 'const'}/const"), spec, tensor)
        key = (str(tensor.dtype), tuple(tensor.shape), tensor.numpy().tobytes())
        if key not in self._small:
            self._small[key] = Value(self.unique(f"{self.scope or 'const'}/const"), spec, tensor)
        return self._small[key]

    def floats(self, values: Any) -> Value:
        """A float32 constant."""
        return self.constant(np.asarray(values, np.float32))

    def ints(self, values: Any) -> Value:
        """An int32 constant; `int64-range` for a value that does not fit."""
        try:
            return self.constant(np.asarray(values, np.int32))
        except OverflowError as error:
            raise ConversionError.of("int64-range", f"{error}: MNN has 32-bit integers") from error

    @overload
    def add(self, op: Operation, *inputs: Value, name: str = "") -> Value: ...
    @overload
    def add(self, op: Operation, *inputs: Value, names: Sequence[str]) -> tuple[Value, ...]: ...
    def add(self, op: Operation, *inputs: Value, name: str = "", names: Sequence[str] | None = None) -> Any:
        """Append `op` applied to `inputs`.

        Returns its value, or a tuple of values where the op has several results or `names` is given. The shape rule
        runs now; where all inputs are known and the result is small, so does the reference (the value rule). A view of
        coded weights is a constant at once, with the same codes.
        """
        specs = self._infer(op, inputs)
        view = coded_view(op, inputs, specs)
        if view is not None and names is None:
            return self.constant(view, name)
        specs = self._folded(op, inputs, specs)
        wanted = list(names) if names is not None else [name] * len(specs)
        outputs = [
            Value(self.unique(n or self._default(op, i)), s) for i, (n, s) in enumerate(zip(wanted, specs, strict=True))
        ]
        self.graph.nodes.append(Node(op, list(inputs), outputs, outputs[0].name, self.origin))
        return tuple(outputs) if names is not None or len(outputs) > 1 else outputs[0]

    def _default(self, op: Operation, index: int) -> str:
        base = f"{self.scope}/{op.kind}" if self.scope else op.kind
        return base if index == 0 else f"{base}:{index}"

    def _infer(self, op: Operation, inputs: Sequence[Value]) -> tuple[Spec, ...]:
        try:
            graphs: dict[str, Any] = {"graphs": self.graph.subgraphs} if op.subgraphs() else {}
            result = op.infer(*(v.spec for v in inputs), **graphs)
        except (ValueError, IndexError, OverflowError, ZeroDivisionError) as error:
            raise ConversionError.of(
                "shape-mismatch",
                f"{op.kind} cannot take {', '.join(format_shape(v.shape) for v in inputs)}: {error}",
                node=", ".join(self.origin) or self.scope,
            ) from error
        return (result,) if isinstance(result, Spec) else result

    def _folded(self, op: Operation, inputs: Sequence[Value], specs: tuple[Spec, ...]) -> tuple[Spec, ...]:
        """The specs with the contents of the results where those can be known."""
        if all(s.constant is None for s in specs):
            contents = fold(op, inputs, specs)
            if contents is not None:
                return tuple(Spec(c.dtype, tuple(c.shape), c) for c in contents)
        return specs

    @contextmanager
    def at(self, scope: str, *origin: str) -> Iterator[None]:
        """Nodes added inside belong to these source nodes and are named after `scope`."""
        before = self.scope, self.origin
        self.scope, self.origin = scope, origin or (scope,)
        try:
            yield
        finally:
            self.scope, self.origin = before

    def output(self, value: Value, name: str | None = None) -> None:
        """Make a value a graph output."""
        self.graph.outputs.append((name or value.name, value))


def fold(op: Operation, inputs: Sequence[Value], specs: Sequence[Spec]) -> list[np.ndarray] | None:
    """The results of a pure op on known inputs, unless they are too large to be worth storing."""
    if not op.pure or not inputs or op.subgraphs() or not all(_is_known(v) for v in inputs):
        return None
    read = sum(v.tensor.nbytes if v.tensor is not None else _bytes(v.spec) or 0 for v in inputs)
    for spec in specs:
        wanted = _bytes(spec)
        if wanted is None or wanted > max(FOLD_BYTES, FOLD_GROWTH * read):
            return None
    arrays = [v.constant for v in inputs]
    with np.errstate(all="ignore"):
        try:
            result = op.ref(*arrays)
        except (MnnConvertError, ValueError):
            return None  # left to fail at run time, where the message names the node
    results = result if isinstance(result, tuple) else (result,)
    return [np.asarray(r) for r in results]


def coded_view(op: Operation, inputs: Sequence[Value], specs: Sequence[Spec]) -> Tensor | None:
    """The result of an op that only reshapes or transposes coded weights: the same codes."""
    tensor = inputs[0].tensor if inputs else None
    if tensor is None or not is_coded(tensor) or len(specs) != 1 or not known(specs[0].shape):
        return None
    return op.view(tensor, specs[0].shape)


def _is_known(value: Value) -> bool:
    return value.tensor is not None or value.spec.constant is not None


def _bytes(spec: Spec) -> int | None:
    if not known(spec.shape):
        return None
    return math.prod(d for d in spec.shape or () if isinstance(d, int)) * spec.dtype.itemsize
