"""Tables that are looked up by index, stored as codes: the rows that are picked are decoded, and no others.

MNN has no coded form for constants, so the decoding is written out in ordinary ops. With codes c of the row and one
scale s (and minimum m, where there is one) per row or block,

    8 bits: y = gather(c) s + m
    4 bits: y = ([floor(p / 16), p - 16 floor(p / 16)] - 8) s,  p = gather(packed c)

where a byte of the table holds the codes of column i in its high and of column i + block/2 in its low half, so that
putting both halves one after the other restores the order. The released runtime computes with constants of uint8, and
not with those of int8 (which it reads 128 too high on x86).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from mnnconvert.ir import ArrayTensor, Builder, CodedTensor, CodedWeights, Graph, HalfTensor, Node, Value
from mnnconvert.ops.arrange import Concat
from mnnconvert.ops.elementwise import Binary, Cast, Unary
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.shape import Reshape
from mnnconvert.quantizers.plan import LayerPlan


def expand_tables(graph: Graph, layers: Iterable[LayerPlan]) -> None:
    """Write the lookups of all layers whose table has been coded as lookups of codes and what decodes them."""
    coded = [x for x in layers if x.is_table and isinstance(x.weight.tensor, CodedTensor)]
    tables = {x.node for x in coded if x.changed or x.precision != "float32"}
    stored: dict[CodedWeights, tuple[Value, ...]] = {}
    for inner in graph.graphs():
        if tables.intersection(inner.nodes):
            _expand(inner, tables, stored)


def _expand(graph: Graph, tables: set[Node], stored: dict[CodedWeights, tuple[Value, ...]]) -> None:
    builder, nodes, graph.nodes = Builder(graph), graph.nodes, []
    for node in nodes:
        if node not in tables:
            graph.nodes.append(node)
            continue
        tensor = node.inputs[0].tensor
        assert isinstance(tensor, CodedTensor)
        if tensor.coded not in stored:
            stored[tensor.coded] = tuple(_stored(builder, tensor.coded, node.inputs[0].name))
        with builder.at(node.name, *node.origin):
            rows = _decoded(builder, tensor.coded, stored[tensor.coded], node.inputs[1])
        _take_over(graph, builder, node, rows)


def _take_over(graph: Graph, builder: Builder, node: Node, rows: Value) -> None:
    """Let `rows` be what `node` made, under its name."""
    old = node.output
    graph.replace_value(old, rows)
    rows.name, old.name = old.name, builder.unique(f"{old.name}/float")
    assert rows.producer is not None
    rows.producer.name = rows.name
    for value in node.inputs:
        value.users.remove(node)


def _stored(b: Builder, coded: CodedWeights, name: str) -> Iterator[Value]:
    """The constants: codes [rows, columns] or packed [rows, blocks, block/2], then scale and minimum of each block."""
    rows = coded.shape[0]
    codes = (coded.codes.astype(np.int16) - coded.lowest).astype(np.uint8)
    if packs(coded):
        halves = codes.reshape(rows, coded.blocks, 2, -1)
        codes = halves[:, :, 0] << np.uint8(4) | halves[:, :, 1]
    codes = codes.reshape((rows, coded.blocks, -1) if coded.blocks > 1 else (rows, -1))
    yield b.constant(ArrayTensor(codes), f"{name}/codes")
    shape = (*codes.shape[:-1], 1)
    for part, numbers in (("scale", coded.scale), ("minimum", coded.minimum)):
        if numbers is not None:
            numbers = numbers.reshape(shape)
            tensor = HalfTensor(ArrayTensor(numbers.astype(np.float16))) if coded.half_scales else ArrayTensor(numbers)
            yield b.constant(tensor, f"{name}/{part}")


def packs(coded: CodedWeights) -> bool:
    """Whether two codes go into a byte."""
    return coded.bits <= 4 and coded.block % 2 == 0


def _decoded(b: Builder, coded: CodedWeights, constants: tuple[Value, ...], indices: Value) -> Value:
    """The rows of the table at `indices`."""
    codes, scale, *minimum = (b.add(GatherV2(0), constant, indices) for constant in constants)
    steps = b.add(Cast("DT_FLOAT"), codes)
    if packs(coded):
        high = b.add(Unary("FLOOR"), b.add(Binary("MUL"), steps, b.floats(1 / 16)))
        low = b.add(Binary("SUB"), steps, b.add(Binary("MUL"), high, b.floats(16)))
        steps = b.add(Concat(-1), high, low)
    if minimum:
        rows = b.add(Binary("ADD"), b.add(Binary("MUL"), steps, scale), minimum[0])
    else:
        rows = b.add(Binary("MUL"), b.add(Binary("ADD"), steps, b.floats(coded.lowest)), scale)
    if coded.blocks == 1:
        return rows
    assert indices.rank is not None
    return b.add(Reshape((0,) * indices.rank + (coded.shape[1],)), rows)
