"""Element-wise ops as chains: which nodes hang together, and what of a chain each of them is.

A chain begins at the first node and takes in readers of its values, and their readers, as long as they have the same
shape and all that they read is there. What others read as well is a further result. Feature maps that lie in the
layout of the backend stay so; operands with a number per channel, or per pixel, are then seen through views.
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
from mnnconvert.runtime_ref.chain import MOST_OPERANDS, MOST_RESULTS, Chain, Register
from mnnconvert.runtime_ref.lower import LAST, PLAIN, Lowering, Sizes, Tensor
from mnnconvert.runtime_ref.strided import phantom

MOST_NODES = 24
WORDS = (F32, I32)

ELTWISE = {"PROD": "MUL", "SUM": "ADD", "MAXIMUM": "MAXIMUM", "SUB": "SUB"}

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
        if wide[1] == self.shape[1] > 1:
            return self.ctx.stored(wide, self.layout)
        return (wide[0], *wide[2:], 1) if self.layout == LAST else (*wide, 1)

    def tensor(self, value: Value, shape: Sizes) -> Tensor:
        """The memory of an operand."""
        if self.layout == PLAIN or self.stored(shape)[-1] == 1:
            return self.ctx.read(value)
        if len(shape) == len(self.shape) and value.tensor is None:
            return self.ctx.read_map(value)
        return self.ctx.packed(value, ("channels", shape), lambda: self._channels(value, shape))

    def _channels(self, value: Value, shape: Sizes) -> np.ndarray:
        """A constant in the layout of maps, channels that are not there filled up with ones: one may divide by them."""
        content = np.asarray(self.ctx.constant(value)).reshape((1,) * (len(self.shape) - len(shape)) + shape)
        n, c, *rest = content.shape
        filled = np.ones((n, -(-c // self.ctx.lanes) * self.ctx.lanes, *rest), content.dtype)
        filled[:, :c] = content
        if self.layout == LAST:
            return np.moveaxis(filled, 1, -1)
        return np.moveaxis(filled.reshape(n, -1, self.ctx.lanes, *rest), 2, -1)

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


def region(ctx: Lowering, first: Node) -> list[Node]:
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
    while len(results(ctx, nodes)) > MOST_RESULTS:
        nodes.pop()
    return nodes


def _fits(ctx: Lowering, node: Node, nodes: Sequence[Node]) -> bool:
    """Whether a node can be computed together with others; bytes would not be rounded between two of them."""
    if type(node.op) not in EMIT or node.output not in ctx.specs or ctx.is_ready(node.output) or ctx.is_planned(node):
        return False
    inside = {n.output for n in nodes}
    same = ctx.shape(node.output) == ctx.shape(nodes[0].output)
    return same and all(v.dtype in WORDS if v in inside else ctx.is_ready(v) for v in node.inputs)


def results(ctx: Lowering, nodes: Sequence[Node]) -> list[Value]:
    """The values that others need."""
    inside = set(nodes)
    return [n.output for n in nodes if n.output in ctx.wanted or not n.output.users or set(n.output.users) - inside]


def layouts(ctx: Lowering, nodes: Sequence[Node]) -> Sequence[str]:
    shape = ctx.shape(nodes[0].output)
    operands = {v for n in nodes for v in n.inputs}
    lies_blocked = any(set(ctx.layouts(v)) == {ctx.map_layout} and ctx.shape(v) == shape for v in operands)
    return (ctx.map_layout, PLAIN) if lies_blocked else (PLAIN,)


def build(ctx: Lowering, nodes: Sequence[Node], layout: str) -> Builder | None:
    """The chain of these nodes, before anything is called; None where it cannot be one in this layout."""
    builder = Builder(ctx, ctx.shape(nodes[0].output), layout)
    try:
        for node in nodes:
            builder.registers[node.output] = EMIT[type(node.op)](builder, node)
        for value in results(ctx, nodes):
            builder.chain.result(builder.registers[value], value.dtype)
    except (ValueError, KeyError):
        return None
    return builder if layout == PLAIN or _stays_a_map(ctx, nodes, builder) else None


def _stays_a_map(ctx: Lowering, nodes: Sequence[Node], builder: Builder) -> bool:
    """Whether operands have a form beside maps, and results are float maps."""
    for value, shape in builder.sources:
        per_channel = builder.stored(shape)[-1] > 1
        if value.dtype != F32 or (per_channel and len(ctx.shape(value)) != len(builder.shape) and value.tensor is None):
            return False
    return all(v.dtype == F32 for v in results(ctx, nodes))
