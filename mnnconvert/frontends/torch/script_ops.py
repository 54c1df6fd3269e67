"""Operators of TorchScript: those on Python values in Python, all others by calling torch's own."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from mnnconvert.errors import ConversionError
from mnnconvert.frontends.torch.packed_sequences import find_packed


def find_python(node: Any, operands: list[Any]) -> Callable[..., Any] | None:
    """What computes a node in Python: scalars, lists, texts and sizes. None for operators of torch."""
    import torch

    schema = node.schema()
    name = schema.split("(")[0]
    packed = find_packed(name, operands)
    if packed is not None:
        return packed
    if name in EXACT:
        return EXACT[name]
    kind = node.kind()
    takes_tensors = "Tensor" in schema.split("->")[0]
    numbers = all(isinstance(x, int | float | bool | torch.SymInt | torch.SymFloat | torch.SymBool) for x in operands)
    return PYTHON.get(kind) if numbers or not takes_tensors else None


def call_operator(node: Any, operands: list[Any]) -> Any:
    """Call the operator of torch that a node names, with operands of the types that it takes."""
    import torch

    schema = node.schema()
    if schema == "(no schema)" or node.kind().startswith("prim::"):
        raise ConversionError.of("unsupported-op", f"the script uses {node.kind()}", op=node.kind())
    namespace, _, rest = schema.split("(")[0].partition("::")
    name, _, overload = rest.partition(".")
    try:
        target = getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")
    except AttributeError:
        raise ConversionError.of("unsupported-op", f"there is no operator {namespace}::{rest} here") from None
    arguments: list[Any] = []
    named: dict[str, Any] = {}
    for argument, operand in zip(target._schema.arguments, operands, strict=True):
        value = _typed(operand, str(getattr(argument, "real_type", argument.type)))
        if argument.kwarg_only:
            named[argument.name] = value
        else:
            arguments.append(value)
    return target(*arguments, **named)


def _typed(value: Any, kind: str) -> Any:
    """An operand as an operator takes it: TorchScript has integers for types, and numbers may be tensors here."""
    import torch

    kind = kind.removesuffix("?").removeprefix("Optional[").removesuffix("]")
    if value is None:
        return None
    if kind == "ScalarType":
        return value if isinstance(value, torch.dtype) else dtype_of(value)
    if kind == "Layout":
        return torch.strided
    if kind == "Device":
        return torch.device("cpu")  # where the model was saved from does not matter
    if kind == "MemoryFormat":
        return _MEMORY_FORMATS(value)
    if kind == "Tensor":
        return value if isinstance(value, torch.Tensor) else _scalar_tensor(value)
    if isinstance(value, torch.Tensor) and kind in ("int", "SymInt", "float", "number", "Scalar", "bool"):
        return value.item()
    if isinstance(value, list) and kind in ("List[int]", "List[SymInt]", "int[]", "SymInt[]"):
        return [v.item() if isinstance(v, torch.Tensor) else v for v in value]
    return value


def _scalar_tensor(value: Any) -> Any:
    import torch

    kind = torch.bool if isinstance(value, bool) else torch.float32 if isinstance(value, float) else torch.int64
    return torch.scalar_tensor(value, dtype=kind)


DTYPES = (
    "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex32", "complex64", "complex128",
    "bool", "qint8", "quint8", "qint32", "bfloat16",
)  # fmt: skip
"""Element types by the number that TorchScript has for each."""


def dtype_of(number: int) -> Any:
    import torch

    return getattr(torch, DTYPES[number])


def _dtype_number(dtype: Any) -> int:
    return DTYPES.index(str(dtype).removeprefix("torch."))


def _MEMORY_FORMATS(number: Any) -> Any:
    import torch

    return (torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d)[number]


def _not(value: Any) -> Any:
    import torch

    return torch.logical_not(value) if isinstance(value, torch.Tensor) else not value


def _truth(value: Any) -> Any:
    """A condition: a tensor of the run stays one, of type bool and rank 0."""
    import torch

    return value.reshape(()).to(torch.bool) if isinstance(value, torch.Tensor) else bool(value)


def _number(kind: type) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        import torch

        if isinstance(value, torch.Tensor):
            return value.reshape(()).to(torch.int64 if kind is int else torch.float32)
        if isinstance(value, torch.SymInt | torch.SymFloat):
            return torch.sym_int(value) if kind is int else torch.sym_float(value)
        return kind(value)

    return convert


def _both(a: Any, b: Any) -> Any:
    return a & b


def _append(items: list[Any], item: Any) -> list[Any]:
    items.append(item)
    return items


def _set_item(items: Any, index: Any, item: Any) -> Any:
    items[index] = item
    return items


def _extend(items: list[Any], more: list[Any]) -> None:
    items.extend(more)


def _slice(items: Any, start: Any = None, end: Any = None, step: Any = 1) -> Any:
    return items[start:end:step]


def _range_length(low: Any, high: Any, step: Any) -> Any:
    return max(0, (high - low + step - (1 if step > 0 else -1)) // step)


def _div(a: Any, b: Any, *rounding: Any) -> Any:
    if rounding and rounding[0] == "floor":
        return a // b
    return int(a / b) if rounding and rounding[0] == "trunc" else a / b


def _unsqueezed(value: Any) -> Any:
    return value


def _least(*values: Any) -> Any:
    return _extreme(min, values)


def _greatest(*values: Any) -> Any:
    return _extreme(max, values)


def _extreme(of: Any, values: tuple[Any, ...]) -> Any:
    import torch

    numbers = values[0] if len(values) == 1 else values
    if any(isinstance(v, torch.SymInt | torch.SymFloat) for v in numbers):
        symbolic = torch.sym_min if of is min else torch.sym_max
        result = numbers[0]
        for number in numbers[1:]:
            result = symbolic(result, number)
        return result
    return of(numbers)


def _convolution(*operands: Any) -> Any:
    """The traced form has flags of a library behind the nine operands of a convolution."""
    import torch

    return torch.ops.aten.convolution.default(*operands[:9])


EXACT: dict[str, Callable[..., Any]] = {
    "aten::_convolution": _convolution,
    "aten::_convolution.deprecated": _convolution,
    "aten::size": lambda x: list(x.shape),
    "aten::size.int": lambda x, axis: x.shape[axis],
    "aten::dim": lambda x: x.dim(),
    "aten::numel": lambda x: x.numel(),
    "aten::len.Tensor": lambda x: x.shape[0],
    "aten::Int.Tensor": _number(int),
    "aten::IntImplicit": _number(int),
    "aten::Float.Tensor": _number(float),
    "aten::FloatImplicit": _number(float),
    "aten::ScalarImplicit": lambda x: x,
    "aten::item": lambda x: x,
    "aten::Bool.Tensor": _truth,
    "aten::is_floating_point": lambda x: x.is_floating_point(),
    "aten::is_complex": lambda x: x.is_complex(),
    "aten::append.t": _append,
    "aten::extend.t": _extend,
    "aten::insert.t": lambda items, index, item: items.insert(index, item),
    "aten::pop.t": lambda items, index: items.pop(index),
    "aten::_set_item.t": _set_item,
    "aten::__getitem__.t": lambda items, index: items[index],
    "aten::len.t": len,
    "aten::list.t": list,
    "aten::slice.t": _slice,
    "aten::add.t": operator.add,
    "aten::add_.t": operator.iadd,
    "aten::mul.left_t": operator.mul,
    "aten::copy.t": list,
    "aten::reverse.t": lambda items: items.reverse(),
    "prim::NumToTensor.Scalar": lambda x: x,
    "prim::NumToTensor.bool": lambda x: x,
    "prim::data": lambda x: x.detach(),
    "prim::device": lambda x: x.device,
    "prim::dtype": lambda x: _dtype_number(x.dtype),
    "prim::layout": lambda x: 0,
    "prim::is_cuda": lambda x: False,
    "prim::requires_grad": lambda x: False,
    "prim::shape": lambda x: list(x.shape),
    "aten::__range_length": _range_length,
    "aten::__derive_index": lambda index, start, step: start + index * step,
    "aten::format": lambda text, *values: text.format(*values),
}
"""By name and overload: operators that give Python values, or work on lists."""

PYTHON: dict[str, Callable[..., Any]] = {
    "aten::add": lambda a, b, alpha=1: a + alpha * b if not isinstance(a, str) else a + b,
    "aten::sub": lambda a, b, alpha=1: a - alpha * b,
    "aten::mul": operator.mul,
    "aten::div": _div,
    "aten::floordiv": operator.floordiv,
    "aten::floor_divide": operator.floordiv,
    "aten::remainder": operator.mod,
    "aten::fmod": math.fmod,
    "aten::pow": operator.pow,
    "aten::neg": operator.neg,
    "aten::abs": abs,
    "prim::abs": abs,
    "prim::min": _least,
    "prim::max": _greatest,
    "aten::sqrt": math.sqrt,
    "aten::log": math.log,
    "aten::log2": math.log2,
    "aten::exp": math.exp,
    "aten::ceil": math.ceil,
    "aten::floor": math.floor,
    "aten::round": round,
    "aten::eq": operator.eq,
    "aten::ne": operator.ne,
    "aten::lt": operator.lt,
    "aten::le": operator.le,
    "aten::gt": operator.gt,
    "aten::ge": operator.ge,
    "aten::__and__": _both,
    "aten::__or__": operator.or_,
    "aten::__xor__": operator.xor,
    "aten::__not__": _not,
    "aten::__is__": operator.is_,
    "aten::__isnot__": operator.is_not,
    "aten::Int": _number(int),
    "aten::Float": _number(float),
    "aten::Bool": _truth,
    "aten::to": _unsqueezed,
    "aten::len": len,
    "aten::__getitem__": lambda items, index: items[index],
    "aten::__contains__": lambda items, item: item in items,
    "aten::_set_item": _set_item,
    "aten::keys": lambda items: list(items),
    "aten::values": lambda items: list(items.values()),
    "aten::items": lambda items: list(items.items()),
    "aten::get": lambda items, key, default=None: items.get(key, default),
    "aten::index": lambda items, item: items.index(item),
    "aten::slice": _slice,
    "aten::str": str,
    "aten::join": lambda text, items: text.join(items),
    "prim::unchecked_cast": lambda x: x,
    "prim::unchecked_unwrap_optional": lambda x: x,
    "aten::_unwrap_optional": lambda x: x,
    "prim::TupleIndex": lambda items, index: items[index],
    "prim::Uninitialized": lambda: None,
}
"""By name: operators on Python values, for the overloads without a tensor (or with numbers in its place)."""
