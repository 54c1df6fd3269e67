"""Steps of values in a file: what an integer engine wants to know of tensors, and of the convolutions between them."""

from __future__ import annotations

import numpy as np

from mnnconvert.errors import ConversionError
from mnnconvert.ir import I8, Node, Steps, Value
from mnnconvert.ops.convolution import Convolution
from mnnconvert.ops.steps import on_codes
from mnnconvert.schema import tables

TYPES: dict[np.dtype, int] = {I8: tables.DataType.DT_INT8, np.dtype("int16"): tables.DataType.DT_INT16}
DTYPES = {number: dtype for dtype, number in TYPES.items()}


def describe_value(value: Value, index: int) -> tables.TensorDescribe | None:
    """The entry of `extraTensorDescribe` for a value at a tensor index; None without steps."""
    steps = value.steps
    if steps is None:
        return None
    info = tables.TensorQuantInfo(
        scale=steps.scale, zero=steps.zero, min=steps.low, max=steps.high, type=TYPES[steps.dtype]
    )
    return tables.TensorDescribe(index=index, quantInfo=info)


def read_value(value: Value, info: tables.TensorQuantInfo | None) -> None:
    """Give a value the steps of its description; descriptions without any say nothing. `bad-mnn-file` for nonsense."""
    dtype = None if info is None else DTYPES.get(info.type)
    if info is None or dtype is None:
        return
    numbers = (info.scale, info.zero, info.min, info.max)
    held = all(np.iinfo(dtype).min <= n <= np.iinfo(dtype).max for n in numbers[1:])  # not so for NaN
    if not (held and np.isfinite(np.float32(info.scale)) and info.scale > 0 and info.min < info.max):
        raise ConversionError.of("bad-mnn-file", f"the steps of the tensor '{value.name}' make no sense: {numbers}")
    value.steps = Steps(info.scale, info.zero, int(info.min), int(info.max), dtype)


def describe_convolution(node: Node, table: object) -> None:
    """Tell the table of a convolution, beside its coded weight, in which steps its operand and its result are."""
    if not isinstance(node.op, Convolution) or not isinstance(table, tables.Convolution2D) or not on_codes(node):
        return
    x, y, quan = node.inputs[0].steps, node.output.steps, table.quanParameter
    assert x is not None and y is not None and quan is not None
    quan.scaleIn, quan.scaleOut = x.scale, y.scale
    table.symmetricQuan = tables.QuantizedFloatParam(
        zeroPoint=round(x.zero), outputZeroPoint=round(y.zero), clampMin=y.low, clampMax=y.high
    )
