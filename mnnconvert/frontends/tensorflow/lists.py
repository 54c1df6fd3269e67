"""Import rules of lists of tensors, of both generations. A TensorArray travels as its flow; its handle says nothing."""

from __future__ import annotations

import numpy as np

from mnnconvert.frontends.common.compose import cast
from mnnconvert.frontends.common.moves import part, reshaped, sliced, unsqueezed
from mnnconvert.frontends.common.nodes import known_rank
from mnnconvert.frontends.common.run_time import scalar, scalar_size
from mnnconvert.frontends.tensorflow.node import TfNode
from mnnconvert.frontends.tensorflow.registry import tf_op
from mnnconvert.frontends.tensorflow.tensor_list import TensorList
from mnnconvert.frontends.tensorflow.types import graph_type
from mnnconvert.ir import I32, Builder, Shape, Value
from mnnconvert.ops.arrange import Concat, Tile
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.generators import Range
from mnnconvert.ops.scatter import ScatterNd
from mnnconvert.ops.shape import ShapeOf

EQUAL_PARTS = "elements of one shape"


def _list(n: TfNode, index: int) -> TensorList:
    found = n.any_input(index)
    if not isinstance(found, TensorList):
        raise n.refuse(f"{n.op} takes a list of tensors", reference=n.broken)
    return found


def _element(n: TfNode, index: int) -> Shape | None:
    """The element shape that an operand declares; None where not even its rank."""
    sizes = n.constant(index)
    if sizes is None:
        known = n.sizes(index)
        return None if known is None or n.input(index).rank == 0 else tuple(known)
    return tuple(int(d) if d >= 0 else None for d in sizes) if sizes.ndim else None


def _declared(n: TfNode) -> Shape | None:
    """The attribute element_shape."""
    shape = n.attr("element_shape")
    return None if shape is None else tuple(d if d >= 0 else None for d in shape)


@tf_op("TensorListFromTensor", gives="variant")
def from_tensor(b: Builder, n: TfNode) -> TensorList:
    return TensorList.of(n.input(0))


@tf_op("TensorListReserve", gives="variant")
def reserve(b: Builder, n: TfNode) -> TensorList:
    dtype = graph_type(n.type("element_dtype"), n.name)
    return TensorList.reserved(n, dtype, _element(n, 0), n.input(1))


@tf_op("EmptyTensorList", gives="variant")
def empty(b: Builder, n: TfNode) -> TensorList:
    return TensorList(graph_type(n.type("element_dtype"), n.name), _element(n, 0), items=[])


@tf_op("TensorListGetItem", gives="element_dtype")
def get_item(b: Builder, n: TfNode) -> Value:
    return _list(n, 0).get(b, n, n.input(1))


@tf_op("TensorListSetItem", gives="variant")
def set_item(b: Builder, n: TfNode) -> TensorList:
    return _list(n, 0).set(b, n, n.input(1), n.input(2))


@tf_op("TensorListPushBack", gives="variant")
def push_back(b: Builder, n: TfNode) -> TensorList:
    return _list(n, 0).push(b, n, n.input(1))


@tf_op("TensorListPopBack", results=("output_handle", "tensor"), gives="variant element_dtype")
def pop_back(b: Builder, n: TfNode) -> tuple[TensorList, Value]:
    found = _list(n, 0)
    if found.items:
        last = found.get(b, n, b.ints(len(found.items) - 1))
        return TensorList(found.dtype, found.shape, items=found.items[:-1]), last
    rows = found.tensor(b, n)
    return TensorList.of(sliced(b, rows, 0, 0, -1)), b.add(GatherV2(), rows, b.ints(-1), b.ints(0))


@tf_op("TensorListStack", gives="element_dtype")
def stack(b: Builder, n: TfNode) -> Value:
    return _list(n, 0).tensor(b, n)


@tf_op("TensorListLength", gives="int32")
def length(b: Builder, n: TfNode) -> Value:
    return _list(n, 0).length(b)


@tf_op("TensorListGather", gives="element_dtype")
def gather(b: Builder, n: TfNode) -> Value:
    return b.add(GatherV2(), _list(n, 0).tensor(b, n), n.input(1), b.ints(0))


@tf_op("TensorListScatterV2", "TensorListScatter", gives="variant")
def scatter(b: Builder, n: TfNode) -> TensorList:
    """Rows at their places; of a longer list the rest is zeros."""
    length = n.input(3) if n.has(3) else None
    return _scattered(b, n, n.input(0), n.input(1), length)


@tf_op("TensorListElementShape", gives="shape_type")
def element_shape(b: Builder, n: TfNode) -> Value:
    return b.add(ShapeOf(1, None), _list(n, 0).tensor(b, n))


@tf_op("TensorListConcatV2", "TensorListConcat", results=("tensor", "lengths"), gives="element_dtype int64",
       limits=EQUAL_PARTS)  # fmt: skip
def concat(b: Builder, n: TfNode) -> tuple[Value, Value]:
    return _concatenated(b, n, _list(n, 0))


def _concatenated(b: Builder, n: TfNode, found: TensorList) -> tuple[Value, Value]:
    """The elements along their first axis, and how much each of them adds."""
    rows = found.tensor(b, n)
    rank = known_rank(n, rows)
    rest = [part(rows, i) for i in range(2, rank)]
    lengths = b.add(ShapeOf(1, 2), rows)
    return reshaped(b, rows, [-1, *rest]), b.add(Tile(), lengths, unsqueezed(b, found.length(b), 0))


@tf_op("TensorArrayV3", results=("handle", "flow"), gives="resource float32")
def tensor_array(b: Builder, n: TfNode) -> tuple[TensorList, TensorList]:
    dtype = graph_type(n.type("dtype"), n.name)
    made = TensorList.reserved(n, dtype, _declared(n), n.input(0))
    return made, made


@tf_op("TensorArrayReadV3", gives="dtype")
def array_read(b: Builder, n: TfNode) -> Value:
    return _list(n, 2).get(b, n, n.input(1))


@tf_op("TensorArrayWriteV3", gives="float32")
def array_write(b: Builder, n: TfNode) -> TensorList:
    return _list(n, 3).set(b, n, n.input(1), n.input(2))


@tf_op("TensorArrayGatherV3", gives="dtype")
def array_gather(b: Builder, n: TfNode) -> Value:
    rows, indices = _list(n, 2).tensor(b, n), n.input(1)
    return rows if _counts_up(indices, rows) else b.add(GatherV2(), rows, indices, b.ints(0))


@tf_op("TensorArrayScatterV3", gives="float32")
def array_scatter(b: Builder, n: TfNode) -> TensorList:
    return _scattered(b, n, n.input(2), n.input(1), _list(n, 3).length(b))


@tf_op("TensorArraySizeV3", gives="int32")
def array_size(b: Builder, n: TfNode) -> Value:
    return _list(n, 1).length(b)


@tf_op("TensorArrayConcatV3", results=("value", "lengths"), gives="dtype int64", limits=EQUAL_PARTS)
def array_concat(b: Builder, n: TfNode) -> tuple[Value, Value]:
    return _concatenated(b, n, _list(n, 1))


@tf_op("TensorArraySplitV3", gives="float32", limits="equal lengths that are known")
def array_split(b: Builder, n: TfNode) -> TensorList:
    value, lengths = n.input(1), n.ints(2, "the lengths")
    if len(set(lengths)) != 1:
        raise n.refuse(f"{n.op} into the lengths {list(lengths)} is not supported")
    rank = known_rank(n, value)
    rest = [part(value, i) for i in range(1, rank)]
    return TensorList.of(reshaped(b, value, [len(lengths), lengths[0], *rest]))


@tf_op("TensorArrayCloseV3")
def array_close(b: Builder, n: TfNode) -> tuple[Value, ...]:
    return ()


def _counts_up(indices: Value, rows: Value) -> bool:
    """Whether indices name all rows in order, as far as that can be seen."""
    known, size = indices.constant, rows.shape[0] if rows.shape else None
    if known is not None:
        return size == known.size and np.array_equal(known.reshape(-1), np.arange(known.size))
    made = indices.producer
    if made is None or not isinstance(made.op, Range):
        return False
    start, step = made.inputs[0].constant, made.inputs[2].constant
    return start is not None and step is not None and int(start.reshape(-1)[0]) == 0 and int(step.reshape(-1)[0]) == 1


def _scattered(b: Builder, n: TfNode, rows: Value, indices: Value, length: Value | None) -> TensorList:
    """A list with rows at the places `indices`, of `length` elements (or as many as there are rows)."""
    count = None if length is None else length.constant
    exact = length is None or (count is not None and int(count.reshape(-1)[0]) in (-1, _rows_of(rows)))
    if _counts_up(indices, rows) and (exact or indices.constant is None):
        return TensorList.of(rows)
    size = scalar_size(b, rows, 0) if exact or length is None else length
    shape = b.add(Concat(0), unsqueezed(b, scalar(b, size), 0), b.add(ShapeOf(1, None), rows))
    places = unsqueezed(b, cast(b, indices, I32), 1)
    return TensorList.of(b.add(ScatterNd(), places, rows, shape))


def _rows_of(rows: Value) -> int:
    size = rows.shape[0] if rows.shape else None
    return size if isinstance(size, int) else -2
