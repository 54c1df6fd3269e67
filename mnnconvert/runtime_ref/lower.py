"""From a graph and the shapes of its inputs to steps of a backend, and ops that numpy computes.

What the backends share: the sizes of all values, arithmetic on shapes, which nodes are computed together, where values
lie. A backend adds kernels to call (`cpu/lower.py`, `opencl/lower.py`) and its rules, each a function for one op class:

    @lowers(Softmax)
    def softmax(ctx: Lowering, node: Node) -> bool:
        ...                                                # read operands, make results, call a kernel
        return True

A rule that returns False, before it has called anything, leaves the op to the reference.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from mnnconvert.ir import F32, Graph, Node, Value
from mnnconvert.ir.tensor import release
from mnnconvert.ir.types import Spec, known
from mnnconvert.ops.activation import ReLU, ReLU6
from mnnconvert.ops.control import If, truth
from mnnconvert.ops.elementwise import Binary, Unary
from mnnconvert.ops.layout import same_values
from mnnconvert.ops.shape import VIEWS
from mnnconvert.runtime_ref.cache import Caches
from mnnconvert.runtime_ref.memory import aligned_copy

if TYPE_CHECKING:
    from mnnconvert.runtime_ref.chain import Chain

Sizes = tuple[int, ...]
PLAIN, BLOCKED, LAST = "plain", "blocked", "last"
FOLD_ELEMENTS = 1 << 12  # shape arithmetic is done while a program is built

ACTIVATIONS = {"IDENTITY": 0, "CLIP": 1, "SIGMOID": 2, "SILU": 3, "HARDSWISH": 4, "GELU_STANDARD": 5, "GELU": 6,
               "TANH": 7, "LEAKY": 8}  # fmt: skip
"""Functions of `Unary`, and CLIP and LEAKY, by the numbers of epilogue.h."""


@dataclass(eq=False)
class Buffer:
    """Memory that tensors lie in: a constant (`array`), fed from outside (`fed`), of a cache, or a place in the arena.

    `kept` gives memory that outlives runs and may lie elsewhere at the next one. `device` is a constant that lies in
    the memory of a device.
    """

    nbytes: int
    array: np.ndarray | None = None
    fed: Value | None = None
    kept: Callable[[], np.ndarray] | None = None
    over: Buffer | None = None  # may take the place of this one
    device: Any = None

    @property
    def placed(self) -> bool:
        """Whether it is a place in the arena."""
        return self.array is None and self.fed is None and self.kept is None and self.device is None


@dataclass(eq=False)
class Tensor:
    """A value as kernels see it: its logical shape, element type, layout, and `offset` bytes into a buffer.

    Plain is row-major. Blocked is a feature map [N,C,...] stored as [N, ceil(C/lanes), ..., lanes]; lanes beyond C
    hold finite numbers on the CPU. Last is a map stored as [N, ..., ceil(C/lanes) * lanes].
    """

    buffer: Buffer
    shape: Sizes
    dtype: np.dtype
    layout: str = PLAIN
    offset: int = 0

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize


@dataclass(eq=False)
class Reference:
    """An op that its numpy definition computes; results are copied to where the program wants them."""

    node: Node
    inputs: list[Tensor]
    outputs: list[Tensor]

    @property
    def tensors(self) -> list[Tensor]:
        return [*self.inputs, *self.outputs]


@dataclass(eq=False)
class Equal:
    """A value that equals another: an operand or a result of a branch."""

    value: Value
    source: Value


Rule = Callable[[Any, Node], bool]
Finder = Callable[[Any, Node], None]


@dataclass(frozen=True)
class Rules:
    """The rules of a backend, by op class, and its finders of patterns."""

    rules: dict[type, Rule] = field(default_factory=dict)
    finders: dict[type, list[Finder]] = field(default_factory=dict)

    def lowers(self, *ops: type) -> Callable[[Rule], Rule]:
        """Decorator: this function lowers nodes of these op classes."""

        def add(rule: Rule) -> Rule:
            for op in ops:
                if op in self.rules:
                    raise TypeError(f"{op.__name__} has a lowering rule already")
                self.rules[op] = rule
            return rule

        return add

    def finds(self, *ops: type) -> Callable[[Finder], Finder]:
        """Decorator: this function looks at nodes of these op classes for patterns that one kernel computes.

        It runs before anything is lowered, in the order of the nodes, and tells `ctx.plan` what it has found.
        """

        def add(finder: Finder) -> Finder:
            for op in ops:
                self.finders.setdefault(op, []).append(finder)
            return finder

        return add


@dataclass(frozen=True)
class Epilogue:
    """What a kernel does to its result in registers: y = activation(result + residual).

    `value` is what then leaves the kernel; `residual` has its shape. `params` and `scalars` are those that kernels with
    an epilogue take.
    """

    value: Value
    residual: Value | None = None
    activation: int = 0
    low: float = 0.0
    high: float = 0.0

    @property
    def params(self) -> dict[str, Any]:
        """The keywords `activation`, `low` and `high` of a kernel."""
        return {"activation": self.activation, "low": self.low, "high": self.high}


@dataclass
class Constants:
    """Arrays of one session that do not depend on shapes: decoded constants, and weights packed for a kernel."""

    arrays: dict[object, np.ndarray] = field(default_factory=dict)

    def get(self, key: object, make: Callable[[], np.ndarray]) -> np.ndarray:
        """The array under `key`, made at the first request; contiguous."""
        if key not in self.arrays:
            made = make()
            self.arrays[key] = made if made.flags.c_contiguous else aligned_copy(made)
        return self.arrays[key]

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in self.arrays.values())


class Lowering(ABC):
    """Builds the steps for one set of shapes; rules talk to it.

    `steps` are in order of execution. `wanted` values are needed after them, and never fused away. `graphs` are those
    that ops may run. `lanes` is how many channels a block of a feature map holds, `map_layout` the layout that the
    kernels of the backend like for float feature maps.
    """

    rules: Rules
    map_layout: str

    def __init__(
        self,
        lanes: int,
        constants: Constants,
        wanted: Collection[Value],
        graphs: Mapping[str, Graph] | None = None,
        caches: Caches | None = None,
    ):
        self.lanes = lanes
        self.constants = constants
        self.wanted = set(wanted)
        self.graphs = graphs or {}
        self.caches = caches
        self.steps: list[Any] = []
        self.specs: dict[Value, Spec] = {}
        self._tensors: dict[Value, dict[str, Tensor]] = {}
        self._stage: set[Node] = set()
        self._skipped: dict[Node, None] = {}  # in order
        self._plans: dict[Node, Rule] = {}
        self._inner: dict[Node, Node] = {}  # node of a plan -> its last one
        self._inlined: list[Graph] = []
        self._current: Node | None = None

    # What rules ask.

    def shape(self, value: Value) -> Sizes:
        """The sizes of a value, all known."""
        return tuple(self.specs[value].shape or ()) if value in self.specs else tuple(value.shape or ())  # type: ignore[arg-type]

    def constant(self, value: Value) -> np.ndarray | None:
        """The content where it does not depend on the data of a run: constants, and arithmetic on shapes."""
        if value.tensor is not None:
            return self.constants.get(id(value.tensor), value.tensor.numpy)
        return self.specs[value].constant

    def is_ready(self, value: Value) -> bool:
        """Whether a value is there before the node that is being lowered."""
        return (
            value.tensor is not None or value in self._tensors or self.specs.get(value, value.spec).constant is not None
        )

    def layouts(self, value: Value) -> Collection[str]:
        """The layouts in which a value lies already."""
        return self._tensors.get(value, {}).keys()

    def read(self, value: Value) -> Tensor:
        """A value in plain layout."""
        return self._in(value, PLAIN)

    def read_map(self, value: Value) -> Tensor:
        """A float feature map [N,C,...] in the layout of the backend's kernels."""
        return self._in(value, self.map_layout)

    def packed(self, value: Value, form: object, make: Callable[[], np.ndarray]) -> Tensor:
        """A constant in another form, made by `make()` once per session and kept under (constant, form).

        The memory of the original is released.
        """

        def made() -> np.ndarray:
            array = make()
            if value.tensor is not None:
                release(value.tensor)
            return array

        return self.static(("packed", id(value.tensor), form), made)

    def static(self, key: object, make: Callable[[], np.ndarray]) -> Tensor:
        """An array that depends on nothing but `key`."""
        array = self.constants.get(key, make)
        return Tensor(Buffer(array.nbytes, array=array), array.shape, array.dtype)

    def literal(self, array: np.ndarray) -> Tensor:
        """A small array that belongs to this program alone: tables of strides, pointers into a chain."""
        array = np.ascontiguousarray(array).reshape(array.shape)
        return Tensor(Buffer(array.nbytes, array=array), array.shape, array.dtype)

    def only_user(self, value: Value) -> Node | None:
        """The one node that reads a value, once, if nothing else needs it: it may be computed together with it."""
        if value in self.wanted or len(value.users) != 1 or value.tensor is not None:
            return None
        user = value.users[0]
        return user if user in self._stage and self._inner.get(user) in (None, self._current) else None

    def is_here(self, node: Node) -> bool:
        """Whether a node is one of those that are lowered together."""
        return node in self._stage

    def maker(self, value: Value) -> Node | None:
        """The node, lowered or to be lowered here, that makes a value for one reader alone."""
        node = value.producer
        return node if node in self._stage and self.only_user(value) is not None else None

    def is_planned(self, node: Node) -> bool:
        """Whether a node belongs to a pattern."""
        return node in self._plans or node in self._inner

    def plan(self, inner: Collection[Node], last: Node, rule: Rule) -> None:
        """A pattern: `rule` will compute its last node, once it is the turn of that, and none of `inner` be lowered.

        The rule covers what it is asked for: it returns True. The values of `inner` are read within the pattern only.
        """
        self._plans[last] = rule
        self._inner.update(dict.fromkeys(inner, last))

    def epilogue(self, node: Node, activation: str = "", residual: bool = True, views: bool = False) -> Epilogue:
        """What of the following nodes the kernel of `node` can do: an Add of a value that is ready, an activation.

        `activation` is the one that the op has itself ("", "relu", "relu6"). With `views`, for kernels whose result is
        plain, the nodes may be behind a reshape. Call `ctx.fuse(node, epilogue)` to use it.
        """
        if activation:
            clip = (ACTIVATIONS["CLIP"], 0.0, 6.0 if activation == "relu6" else math.inf)
            return Epilogue(node.output, None, *clip)
        value, user = self.next(node.output, views)
        added = self._addend(value, user) if residual else None
        if user is not None and added is not None:
            value = user.output
            if isinstance(user.op, Binary) and user.op.activation:
                return Epilogue(value, added, ACTIVATIONS["CLIP"], 0.0, math.inf)
            _, user = self.next(value, views)
        found = _activation(user)
        if user is not None and found:
            return Epilogue(user.output, added, *found)
        return Epilogue(value if added is not None else node.output, added)

    def next(self, value: Value, views: bool = False) -> tuple[Value, Node | None]:
        """The only reader of a value, and the value that it reads: behind ops that keep the data (and `views`)."""
        user = self.only_user(value)
        while user is not None and (same_values(user.op) or (views and isinstance(user.op, VIEWS))):
            value = user.output
            user = self.only_user(value)
        return value, user

    def _addend(self, value: Value, user: Node | None) -> Value | None:
        """What an Add adds to a value, if that is ready and has its shape."""
        if user is None or not isinstance(user.op, Binary) or user.op.function != "ADD" or value.dtype != F32:
            return None
        other = next((v for v in user.inputs if v is not value), None)
        fits = other is not None and self.is_ready(other) and self.shape(other) == self.shape(value)
        return other if fits else None

    def fuse(self, node: Node, epilogue: Epilogue) -> None:
        """Mark the nodes that an epilogue covers as computed by the present rule."""
        value = node.output
        while value is not epilogue.value:
            user = value.users[0]
            self._skipped[user] = None
            value = user.output

    def skip(self, *nodes: Node) -> None:
        """Mark nodes as computed by the present rule."""
        self._skipped.update(dict.fromkeys(nodes))

    # What rules do.

    def tensor(self, shape: Sequence[int], dtype: Any = F32, layout: str = PLAIN, over: Tensor | None = None) -> Tensor:
        """A new tensor of the arena. `over` may be overwritten by it, element by element, once nobody reads it."""
        dtype = np.dtype(dtype)
        nbytes = math.prod(self.stored(shape, layout)) * dtype.itemsize
        legal = over is not None and over.buffer.placed and not over.offset
        return Tensor(
            Buffer(nbytes, over=over.buffer if over is not None and legal else None), tuple(shape), dtype, layout
        )

    def stored(self, shape: Sequence[int], layout: str) -> Sizes:
        """The sizes as they lie in memory."""
        if layout == PLAIN:
            return tuple(shape)
        n, c, *spatial = shape
        blocks = -(-c // self.lanes)
        return (n, *spatial, blocks * self.lanes) if layout == LAST else (n, blocks, *spatial, self.lanes)

    def result(self, value: Value, layout: str = PLAIN, over: Tensor | None = None) -> Tensor:
        """A new tensor that will hold a value."""
        made = self.tensor(self.shape(value), value.dtype, layout, over)
        self.define(value, made)
        return made

    def define(self, value: Value, tensor: Tensor) -> None:
        """From now on a value lies in `tensor` (too)."""
        self._tensors.setdefault(value, {})[tensor.layout] = tensor

    def alias(self, value: Value, source: Value) -> None:
        """A value equals another, element by element and in shape: it lies where that lies."""
        if not self._tensors.get(source):
            self.read(source)
        self._tensors[value] = dict(self._tensors[source])

    def view(self, tensor: Tensor, shape: Sequence[int], offset: int = 0) -> Tensor:
        """The same memory, `offset` elements on, under another shape."""
        return Tensor(tensor.buffer, tuple(shape), tensor.dtype, PLAIN, tensor.offset + offset * tensor.dtype.itemsize)

    # The walk over the graph.

    def feed(self, value: Value, shape: Sizes, content: np.ndarray | None = None) -> None:
        """A value comes from outside, plain, with these sizes and perhaps always with this content."""
        self.specs[value] = Spec(value.dtype, shape, content)
        nbytes = math.prod(shape) * value.dtype.itemsize
        self.define(value, Tensor(Buffer(nbytes, fed=value), shape, value.dtype))

    def lower(self, nodes: Sequence[Node]) -> int:
        """Lower nodes in order; returns how many: all, or those before the first whose sizes depend on data."""
        work: list[Node | Equal] = []
        stop = len(nodes)
        for i, node in enumerate(nodes):
            sized = self._sized(node)
            if sized is None:
                stop = i
                break
            work += sized
        self._stage = {each for each in work if isinstance(each, Node)}
        for node in (each for each in work if isinstance(each, Node)):
            for find in self.rules.finders.get(type(node.op), ()):
                if not self.is_planned(node):
                    find(self, node)
        for each in work:
            if isinstance(each, Node):
                self._lower(each)
            elif self.specs[each.value].constant is None:
                self.alias(each.value, each.source)
        return stop

    def _sized(self, node: Node) -> list[Node | Equal] | None:
        """Find the sizes, and where possible the contents, of the results of a node; None where they depend on data.

        What is then to be lowered is the node, or the branch of an If whose condition is known.
        """
        operands = [self._operand(v) for v in node.inputs]
        if isinstance(node.op, If):
            return self._branch(node, node.op, operands)
        if node.op.subgraphs():
            return None
        try:
            result = node.op.infer(*operands)
        except (ValueError, IndexError, TypeError, OverflowError, ZeroDivisionError):
            return None  # the reference will say what is wrong
        specs = (result,) if isinstance(result, Spec) else tuple(result)
        if not all(known(s.shape) for s in specs):
            return None
        contents = self._folded(node, operands, specs)
        for value, spec, content in zip(node.outputs, specs, contents, strict=False):
            self.specs[value] = Spec(spec.dtype, spec.shape, content)
        return [node]

    def _branch(self, node: Node, op: If, operands: Sequence[Spec]) -> list[Node | Equal] | None:
        condition = operands[0].constant
        if condition is None:
            return None
        graph = self.graphs[op.then_graph if truth(condition) else op.else_graph]
        if graph in self._inlined or any(v.tensor is not None for v in node.inputs[1:]):
            return None  # its values stand for one use of the graph; and weights are packed where they are constant
        self._inlined.append(graph)
        work: list[Node | Equal] = []
        for value, source in zip(graph.inputs, node.inputs[1:], strict=True):
            self.specs[value] = self._operand(source)
            work.append(Equal(value, source))
        for inner in graph.nodes:
            sized = self._sized(inner)
            if sized is None:
                return None
            work += sized
        for value, (_, source) in zip(node.outputs, graph.outputs, strict=False):
            spec = self._operand(source)
            self.specs[value] = Spec(spec.dtype, spec.shape, self.constant(source))
            self.wanted.add(source)
            work.append(Equal(value, source))
        return work

    def _operand(self, value: Value) -> Spec:
        return self.specs.get(value, value.spec)

    def _folded(self, node: Node, operands: Sequence[Spec], specs: Sequence[Spec]) -> Sequence[np.ndarray | None]:
        """Arithmetic on shapes, and on constants that are no larger."""
        if all(s.constant is not None for s in specs):
            return [s.constant for s in specs]
        small = [math.prod(s.shape or ()) <= FOLD_ELEMENTS for s in (*operands, *specs)]  # type: ignore[arg-type]
        if not node.op.pure or not operands or not all(small):
            return [None] * len(specs)
        arrays = [self.constant(v) for v in node.inputs]
        if any(a is None for a in arrays):
            return [None] * len(specs)
        with np.errstate(all="ignore"):
            try:
                result = node.op.ref(*arrays)
            except (ValueError, IndexError, TypeError, ArithmeticError):
                return [None] * len(specs)
        return [np.asarray(r) for r in (result if isinstance(result, tuple) else (result,))]

    def _lower(self, node: Node) -> None:
        if node in self._skipped or node in self._inner:
            return
        if all(self.specs[v].constant is not None for v in node.outputs):
            return
        self._current = node
        if node.op.pure and all(0 in self.shape(v) for v in node.outputs):
            for value in node.outputs:
                self.result(value)
            return
        rule, before = self._plans.get(node, self.rules.rules.get(type(node.op))), len(self._skipped)
        if rule is None or not rule(self, node):
            self._refer(node)
        elif self.steps and not isinstance(self.steps[-1], Reference) and self.steps[-1].node is node:
            self.steps[-1].along = tuple(n for n in islice(self._skipped, before, None) if n is not node)

    def _refer(self, node: Node) -> None:
        inputs = [self.read(v) for v in node.inputs]
        self.steps.append(Reference(node, inputs, [self.result(v) for v in node.outputs]))

    def _in(self, value: Value, layout: str) -> Tensor:
        found = self._tensors.setdefault(value, {})
        if not found:
            content = self.constant(value)
            if content is None:
                raise KeyError(f"'{value.name}' is read before it is computed")
            found[PLAIN] = self._constant_tensor(value, content)
        if layout not in found:
            source = next(iter(found.values()))
            found[layout] = self._converted(source, layout)
        return found[layout]

    def _constant_tensor(self, value: Value, content: np.ndarray) -> Tensor:
        if value.tensor is None:
            return self.literal(np.asarray(content, value.dtype))
        return Tensor(Buffer(content.nbytes, array=content), tuple(content.shape), content.dtype)

    # What products and attentions ask of a backend.

    @abstractmethod
    def in_panels(self, b: np.ndarray) -> np.ndarray:
        """Matrices [batch, k, n] of any strides as float32 [batch, panels, k, panel]: neighbouring columns together."""

    @abstractmethod
    def product(self, **arguments: Any) -> None:
        """Append a product; the arguments are those of the CPU's kernel `gemm_f32`."""

    @abstractmethod
    def take_back(self, tensor: Tensor, source: Tensor) -> bool:
        """Drop the step that made a tensor, which nobody else reads, if it only copied `source` in another order."""

    @abstractmethod
    def attends(self, depth: int, width: int) -> bool:
        """Whether there is a kernel for attention with keys and values of these sizes."""

    @abstractmethod
    def attention(self, **arguments: Any) -> None:
        """Append an attention; the arguments are those of the CPU's kernel, but for `capacity`."""

    @abstractmethod
    def copied(self, tensor: Tensor, view: np.ndarray) -> Tensor:
        """A plain tensor of the elements of a view of a phantom of `tensor`."""

    @abstractmethod
    def chained(self, chain: Chain, tensors: Sequence[Tensor]) -> Tensor:
        """The only result of a chain of element-wise functions of tensors: a plain float tensor."""

    @abstractmethod
    def _converted(self, source: Tensor, layout: str) -> Tensor:
        """The same value in another layout."""


def _activation(node: Node | None) -> tuple[int, float, float] | None:
    """Number, low and high of a node that is an activation kernels have in their epilogue."""
    op = None if node is None else node.op
    if isinstance(op, Unary) and op.function in ACTIVATIONS:
        return ACTIVATIONS[op.function], 0.0, 0.0
    if isinstance(op, ReLU6):
        return ACTIVATIONS["CLIP"], op.minimum, op.maximum
    if isinstance(op, ReLU):
        return (ACTIVATIONS["LEAKY"], op.slope, 0.0) if op.slope else (ACTIVATIONS["CLIP"], 0.0, math.inf)
    return None


def lifetimes(steps: Sequence[Any], results: Iterable[Tensor]) -> list[tuple[Buffer, int, int]]:
    """The buffers of the arena, each with the first and the last step that uses it; `results` are read at the end."""
    lives: dict[int, tuple[Buffer, int, int]] = {}
    uses = [(i, t) for i, step in enumerate(steps) for t in step.tensors]
    uses += [(len(steps), t) for t in results]
    for i, tensor in uses:
        buffer = tensor.buffer
        if buffer.placed:
            _, first, last = lives.get(id(buffer), (buffer, i, i))
            lives[id(buffer)] = (buffer, min(first, i), max(last, i))
    return list(lives.values())
