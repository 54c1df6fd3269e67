"""Convolutions whose input channels no block size divides are cut in two, so that blocks stay as small as asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mnnconvert.ir import ArrayTensor, Builder, Graph, LazyTensor, Node, Tensor, Value
from mnnconvert.ir.coded import fitting_block
from mnnconvert.ops.activation import ReLU, ReLU6
from mnnconvert.ops.convolution import Convolution
from mnnconvert.ops.elementwise import Binary
from mnnconvert.ops.slicing import Slice
from mnnconvert.passes.base import GraphPass, Notes
from mnnconvert.passes.edit import replace_nodes


@dataclass(frozen=True)
class SplitChannels(GraphPass):
    """conv(x) -> conv(first channels of x) + conv(the rest), where the first part is a multiple of `block` channels.

    `block` may tell the size for each node; 0 leaves a node in one piece.
    """

    block: int | Callable[[Node], int] = 64

    name = "split-channels"
    after = ("convert-matmul",)

    def change(self, graph: Graph, notes: Notes) -> int:
        count = replace_nodes(graph, self._split)
        if count:
            notes.notes.append(f"{count} layers have channels that no block near the asked size divides: cut in two")
        return count

    def _split(self, b: Builder, node: Node) -> Sequence[Value] | None:
        op, weight = node.op, node.inputs[1] if len(node.inputs) > 1 else None
        if not isinstance(op, Convolution) or op.group != 1 or weight is None or weight.tensor is None:
            return None
        channels = int(weight.tensor.shape[1])
        block = self.block(node) if callable(self.block) else self.block
        if not block or fitting_block(channels, block) >= 0:
            return None
        first = channels // block * block
        parts = b.add(Slice(axis=1, sizes=(first, channels - first)), node.inputs[0], names=["", ""])
        plain = replace(op, activation="")
        bias = node.inputs[2] if len(node.inputs) > 2 else b.floats(np.zeros(weight.tensor.shape[0]))
        sides = (_channels(weight.tensor, 0, first), _channels(weight.tensor, first, channels))
        head, tail = (b.constant(s, f"{weight.name}/{part}") for s, part in zip(sides, ("head", "tail"), strict=True))
        first_sum = b.add(plain, parts[0], head, bias, name=f"{node.name}/head")
        rest_sum = b.add(plain, parts[1], tail, _zeros(b, bias), name=f"{node.name}/tail")
        return [_activated(b, b.add(Binary("ADD"), first_sum, rest_sum), op.activation)]


def _channels(tensor: Tensor, start: int, stop: int) -> Tensor:
    """Input channels [start, stop) of a weight [O, I, kH, kW]."""
    shape = (tensor.shape[0], stop - start, *tensor.shape[2:])
    return LazyTensor(
        tensor, lambda a: np.ascontiguousarray(a.reshape(tensor.shape)[:, start:stop]), tensor.dtype, shape
    )


def _zeros(b: Builder, bias: Value) -> Value:
    size = bias.shape[0] if bias.shape and isinstance(bias.shape[0], int) else 1
    return b.constant(ArrayTensor(np.zeros(size, np.float32)))


def _activated(b: Builder, y: Value, activation: str) -> Value:
    if not activation:
        return y
    return b.add(ReLU6() if activation == "relu6" else ReLU(), y)
