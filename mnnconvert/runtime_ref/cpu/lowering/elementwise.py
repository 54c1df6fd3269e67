"""Element-wise ops: as many as hang together become one call of the kernel `chain`.

A chain begins at the first node and takes in readers of its values, and their readers, as long as they have the same
shape and all that they read is there. What others read as well is a further result. Feature maps that lie blocked stay
so; operands with a number per channel, or per pixel, are then seen through views that broadcast against the blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mnnconvert.ir import F32, I32, Node, Value
from mnnconvert.ops.activation import ELU, PReLU, ReLU, ReLU6, Selu, Threshold
from mnnconvert.ops.elementwise import DATA_TYPES, Binary, Cast, CastLike, Select, Unary
from mnnconvert.ops.normalization import Eltwise, Scale
from mnnconvert.runtime_ref.cpu.chain import MOST_OPERANDS, MOST_RESULTS, Chain, Register
from mnnconvert.runtime_ref.cpu.lower import Lowering, lowers
from mnnconvert.runtime_ref.cpu.lowering.normalization import add_and_normalize
from mnnconvert.runtime_ref.lower import BLOCKED, PLAIN, Sizes, Tensor
from mnnconvert.runtime_ref.strided import phantom

MOST_NODES = 24
WORDS = (F32, I32)

ELTWISE = {"PROD": "MUL", "SUM": "ADD", "MAXIMUM": "MAXIMUM", "SUB": "SUB"}
FINITE = {
    "ABS", "NEG", "FLOOR", "CEIL", "SIN", "COS", "SIGN", "ROUND", "ERF", "SIGMOID", "TANH", "HARDSWISH", "GELU", "BNLL",
    "GELU_STANDARD", "SILU", "RELU", "ADD", "SUB", "MUL", "MINIMUM", "MAXIMUM", "LEAKY", "ELU", "CLIP", "THRESHOLD",
    "COPY", "MULADD",
}  # fmt: skip
"""Functions that make no infinity of ordinary numbers: safe on the unused lanes of blocked maps."""

Emit = Callable[["Builder", Node], Register]


@dataclass(eq=False)
class Builder:
    """A chain under construction: where its operands lie, and which functions it calls."""

    ctx: Lowering
    shape: Sizes
    layout: str
    chain: Chain = field(init=False)
    registers: dict[Value, Register] = field(default_factory=dict)
    sources: list[tuple[Value, Sizes]] = field(default_factory=list)
    _views: dict[tuple[Value, Sizes], Register] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.chain = Chain(self.ctx.stored(self.shape, self.layout))

    def read(self, value: Value, shape: Sizes | None = None) -> Register:
        """The register of a value, seen under another shape of as many elements if one is given."""
        if value in self.registers:
            return self.registers[value]
        shape = self.ctx.shape(value) if shape is None else shape
        content = self.ctx.constant(value) if math.prod(self.ctx.shape(value)) == 1 else None
        if content is not None and content.dtype in WORDS:
            return self.chain.constant(content.reshape(()))
        if (value, shape) not in self._views:
            self._views[value, shape] = self.chain.operand(phantom(self.stored(shape), value.dtype))
            self.sources.append((value, shape))
        return self._views[value, shape]

    def stored(self, shape: Sizes) -> Sizes:
        """How an operand that broadcasts to the chain's shape lies in memory."""
        if self.layout == PLAIN:
            return shape
        wide = (1,) * (len(self.shape) - len(shape)) + shape
        return self.ctx.stored(wide, BLOCKED) if wide[1] == self.shape[1] > 1 else (*wide, 1)

    def tensor(self, value: Value, shape: Sizes) -> Tensor:
        """The memory of an operand."""
        if self.layout == PLAIN or self.stored(shape)[-1] == 1:
            return self.ctx.read(value)
        if len(shape) == len(self.shape) and value.tensor is None:
            return self.ctx.read_blocked(value)
        return self.ctx.packed(value, ("channels", shape), lambda: self._channels(value, shape))

    def _channels(self, value: Value, shape: Sizes) -> np.ndarray:
        """A constant in blocks of channels, filled up with ones: one may divide by them."""
        content = np.asarray(self.ctx.constant(value)).reshape((1,) * (len(self.shape) - len(shape)) + shape)
        n, c, *rest = content.shape
        blocks = self.stored(shape)
        filled = np.ones((n, blocks[1] * self.ctx.lanes, *rest), content.dtype)
        filled[:, :c] = content
        split = filled.reshape(n, blocks[1], self.ctx.lanes, *rest)
        return np.moveaxis(split, 2, -1)

    def apply(self, function: str, *x: Register, integer: bool = False) -> Register:
        return self.chain.apply(f"{function}.i" if integer else function, *x)

    def number(self, value: float) -> Register:
        return self.chain.constant(np.float32(value))


def _op(node: Node) -> Any:
    """The op of a node, of the class that EMIT has the function for."""
    return node.op


def _unary(b: Builder, node: Node) -> Register:
    (x,) = node.inputs
    return b.apply(_op(node).function, b.read(x), integer=x.dtype == I32)


def _binary(b: Builder, node: Node) -> Register:
    left, right = (b.read(v) for v in node.inputs)
    y = _power(b, node, left)
    if y is None:
        y = b.apply(_op(node).function, left, right, integer=node.inputs[0].dtype == I32)
    return b.apply("RELU", y, integer=node.output.dtype == I32) if _op(node).activation else y


def _power(b: Builder, node: Node, x: Register) -> Register | None:
    """A small constant power as products."""
    exponent = None if node.inputs[1] in b.registers else b.ctx.constant(node.inputs[1])
    if _op(node).function != "POW" or exponent is None or exponent.size != 1 or exponent.dtype != F32:
        return None
    square = b.apply("SQUARE", x) if exponent.item() in (2, 3) else None
    return b.apply("MUL", square, x) if square is not None and exponent.item() == 3 else square


def _floats(b: Builder, node: Node) -> Register:
    """The register of the first operand, for functions that are there for floats alone."""
    if node.inputs[0].dtype != F32:
        raise ValueError(f"{node.op.kind} takes float32")
    return b.read(node.inputs[0])


def _relu(b: Builder, node: Node) -> Register:
    slope = _op(node).slope
    if node.inputs[0].dtype == I32 and not slope:
        return b.apply("RELU", b.read(node.inputs[0]), integer=True)
    x = _floats(b, node)
    return b.apply("LEAKY", x, b.number(slope)) if slope else b.apply("RELU", x)


def _relu6(b: Builder, node: Node) -> Register:
    return b.apply("CLIP", _floats(b, node), b.number(_op(node).minimum), b.number(_op(node).maximum))


def _elu(b: Builder, node: Node) -> Register:
    return b.apply("ELU", _floats(b, node), b.number(_op(node).alpha))


def _selu(b: Builder, node: Node) -> Register:
    return b.apply("MUL", _elu(b, node), b.number(_op(node).scale))


def _threshold(b: Builder, node: Node) -> Register:
    return b.apply("THRESHOLD", _floats(b, node), b.number(_op(node).alpha))


def _channels(b: Builder, value: Value) -> Register:
    """An operand [C] or [1] beside x [N,C,...]."""
    return b.read(value, (*b.ctx.shape(value), *(1,) * max(0, len(b.shape) - 2)))


def _prelu(b: Builder, node: Node) -> Register:
    return b.apply("LEAKY", _floats(b, node), _channels(b, node.inputs[1]))


def _scale(b: Builder, node: Node) -> Register:
    _, scale, bias = node.inputs
    return b.apply("MULADD", _floats(b, node), _channels(b, scale), _channels(b, bias))


def _select(b: Builder, node: Node) -> Register:
    condition, left, right = (b.read(v) for v in node.inputs)
    if node.inputs[0].dtype == F32:
        condition = b.apply("TO_BOOL", condition)
    return b.apply("SELECT", condition, left, right)


def _cast(b: Builder, node: Node) -> Register:
    source, x = node.inputs[0].dtype, b.read(node.inputs[0])
    if isinstance(node.op, Cast) and node.op.to == "DT_BOOL":
        return b.apply("TO_BOOL", x, integer=source != F32)
    target = DATA_TYPES[node.op.to] if isinstance(node.op, Cast) else node.inputs[1].dtype
    if (source == F32) == (target == F32):
        return b.apply("COPY", x)
    return b.apply("TO_INT", x) if source == F32 else b.apply("TO_FLOAT", x, integer=True)


def _eltwise(b: Builder, node: Node) -> Register:
    y, *others = (b.read(v) for v in node.inputs)
    for other in others:
        y = b.apply(ELTWISE[_op(node).operation], y, other, integer=node.output.dtype == I32)
    return y


EMIT: dict[type, Emit] = {
    Unary: _unary, Binary: _binary, ReLU: _relu, ReLU6: _relu6, ELU: _elu, Selu: _selu, Threshold: _threshold,
    PReLU: _prelu, Scale: _scale, Select: _select, Cast: _cast, CastLike: _cast, Eltwise: _eltwise,
}  # fmt: skip


@lowers(*EMIT)
def elementwise(ctx: Lowering, node: Node) -> bool:
    if add_and_normalize(ctx, node):
        return True
    for nodes in (_region(ctx, node), [node]):
        for layout in _layouts(ctx, nodes):
            built = _build(ctx, nodes, layout)
            if built is not None:
                _call(ctx, nodes, *built)
                return True
    return False


def _region(ctx: Lowering, first: Node) -> list[Node]:
    """The nodes of a chain, in an order in which they can be computed."""
    nodes, operands = [first], set(first.inputs)
    waiting = list(first.output.users)
    while waiting and len(nodes) < MOST_NODES:
        node = waiting.pop(0)
        if node in nodes or not _fits(ctx, node, nodes):
            continue
        values = {n.output for n in nodes}
        if len(operands | set(node.inputs) - values) > MOST_OPERANDS:
            continue
        nodes.append(node)
        operands |= set(node.inputs) - values
        waiting += node.output.users
    while len(_results(ctx, nodes)) > MOST_RESULTS:
        nodes.pop()
    return nodes


def _fits(ctx: Lowering, node: Node, nodes: Sequence[Node]) -> bool:
    """Whether a node can be computed together with others; bytes would not be rounded between two of them."""
    if type(node.op) not in EMIT or node.output not in ctx.specs or ctx.is_ready(node.output) or ctx.is_planned(node):
        return False
    inside = {n.output for n in nodes}
    same = ctx.shape(node.output) == ctx.shape(nodes[0].output)
    return same and all(v.dtype in WORDS if v in inside else ctx.is_ready(v) for v in node.inputs)


def _results(ctx: Lowering, nodes: Sequence[Node]) -> list[Value]:
    """The values that others need."""
    inside = set(nodes)
    return [n.output for n in nodes if n.output in ctx.wanted or not n.output.users or set(n.output.users) - inside]


def _layouts(ctx: Lowering, nodes: Sequence[Node]) -> Sequence[str]:
    shape = ctx.shape(nodes[0].output)
    operands = {v for n in nodes for v in n.inputs}
    lies_blocked = any(set(ctx.layouts(v)) == {BLOCKED} and ctx.shape(v) == shape for v in operands)
    return (BLOCKED, PLAIN) if lies_blocked else (PLAIN,)


def _build(ctx: Lowering, nodes: Sequence[Node], layout: str) -> tuple[Builder, np.ndarray, np.ndarray] | None:
    """The program of a chain, before anything is called; None where the kernel cannot do it."""
    builder = Builder(ctx, ctx.shape(nodes[0].output), layout)
    try:
        for node in nodes:
            builder.registers[node.output] = EMIT[type(node.op)](builder, node)
        for value in _results(ctx, nodes):
            builder.chain.result(builder.registers[value], value.dtype)
        if layout == BLOCKED and not _stays_blocked(ctx, nodes, builder):
            return None
        return builder, *builder.chain.encode(ctx.library)
    except (ValueError, KeyError):
        return None


def _stays_blocked(ctx: Lowering, nodes: Sequence[Node], builder: Builder) -> bool:
    """Whether operands have a form beside blocks, results are float maps, and unused lanes stay finite."""
    for value, shape in builder.sources:
        per_channel = builder.stored(shape)[-1] > 1
        if value.dtype != F32 or (per_channel and len(ctx.shape(value)) != len(builder.shape) and value.tensor is None):
            return False
    functions = {i.function for i in builder.chain.instructions}
    full = builder.shape[1] % ctx.lanes == 0
    return all(v.dtype == F32 for v in _results(ctx, nodes)) and (full or functions <= FINITE)


def _call(ctx: Lowering, nodes: Sequence[Node], builder: Builder, code: np.ndarray, constants: np.ndarray) -> None:
    operands = [builder.tensor(value, shape) for value, shape in builder.sources]
    values = _results(ctx, nodes)
    over = _overwritten(builder, operands) if len(values) == 1 else None
    results = [ctx.result(v, builder.layout, over if v.dtype in WORDS else None) for v in values]
    named: dict[str, Tensor | None] = {f"x{i}": None for i in range(MOST_OPERANDS)}
    named |= {f"y{i}": None for i in range(MOST_RESULTS)}
    named |= {f"x{i}": t for i, t in enumerate(operands)} | {f"y{i}": t for i, t in enumerate(results)}
    count = math.prod(builder.chain.shape)
    ctx.call("chain", code=ctx.literal(code), constants=ctx.literal(constants), count=count, **named)
    ctx.skip(*nodes)


def _overwritten(builder: Builder, operands: Sequence[Tensor]) -> Tensor | None:
    """An operand whose place the result may take: it is read once, element by element."""
    for (value, shape), tensor in zip(builder.sources, operands, strict=True):
        alone = sum(t.buffer is tensor.buffer for t in operands) == 1
        if alone and shape == builder.shape and value.dtype in WORDS and tensor.layout == builder.layout:
            return tensor
    return None
