"""Operators of torch as compositions of others, where torch's exporter has no translation or a wrong one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mnnconvert.errors import ConversionError

DECOMPOSITIONS: dict[str, Callable[..., Any]] = {}
"""By name, such as "aten::ceil"; NotImplemented where the operator can stay as it is."""


def decomposes(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        DECOMPOSITIONS.update(dict.fromkeys(names, function))
        return function

    return register


def overload_of(name: str) -> Any:
    """The overload of a name, such as "aten::add.Tensor"; None where this torch does not know it."""
    import torch

    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    operator = getattr(getattr(torch.ops, namespace), packet, None)
    return getattr(operator, overload or "default", None)


def table() -> dict[Any, Callable[..., Any]]:
    """The decompositions of this folder by overload."""
    from mnnconvert.frontends.torch import (  # noqa: F401  (register theirs)
        decompositions_recurrent,
        decompositions_resize,
        decompositions_windows,
    )

    found = {overload_of(name): function for name, function in DECOMPOSITIONS.items()}
    return {target: function for target, function in found.items() if target is not None}


@decomposes("aten::ceil", "aten::floor", "aten::round", "aten::trunc")
def rounding(x: Any, *_: Any, **__: Any) -> Any:
    """Integers stay; ONNX rounds floats only."""
    return NotImplemented if x.dtype.is_floating_point else x.clone()


@decomposes("aten::_transformer_encoder_layer_fwd")
def encoder_layer(
    x: Any, width: int, heads: int, qkv_weight: Any, qkv_bias: Any, out_weight: Any, out_bias: Any, gelu: bool,
    norm_first: bool, eps: float, norm_weight_1: Any, norm_bias_1: Any, norm_weight_2: Any, norm_bias_2: Any,
    weight_1: Any, bias_1: Any, weight_2: Any, bias_2: Any, mask: Any = None, mask_type: int | None = None,
) -> Any:  # fmt: skip
    """The fast path of nn.TransformerEncoderLayer: attention and two linear layers, each with a norm and a skip."""
    from torch.nn import functional

    def attend(y: Any) -> Any:
        return _self_attention(y, heads, qkv_weight, qkv_bias, out_weight, out_bias, mask, mask_type)

    def feed(y: Any) -> Any:
        activate = functional.gelu if gelu else functional.relu
        return functional.linear(activate(functional.linear(y, weight_1, bias_1)), weight_2, bias_2)

    for layer, weight, bias in ((attend, norm_weight_1, norm_bias_1), (feed, norm_weight_2, norm_bias_2)):
        if norm_first:
            x = x + layer(functional.layer_norm(x, (width,), weight, bias, eps))
        else:
            x = functional.layer_norm(x + layer(x), (width,), weight, bias, eps)
    return x


def _self_attention(
    x: Any, heads: int, qkv_weight: Any, qkv_bias: Any, out_weight: Any, out_bias: Any, mask: Any, mask_type: int | None
) -> Any:
    """Attention of x [batch, length, width] to itself; a mask of True excludes (type 0 [n, n], 1 [batch, n])."""
    from torch.nn import functional

    batch, length, width = x.shape
    projected = functional.linear(x, qkv_weight, qkv_bias).view(batch, length, 3, heads, width // heads)
    q, k, v = (projected[:, :, i].transpose(1, 2) for i in range(3))
    if mask is not None and mask_type == 1:
        mask = mask.view(batch, 1, 1, length)
    if mask is not None:
        mask = mask.logical_not() if not mask.dtype.is_floating_point else mask
    y = functional.scaled_dot_product_attention(q, k, v, mask)
    return functional.linear(y.transpose(1, 2).reshape(batch, length, width), out_weight, out_bias)


@decomposes("aten::_native_multi_head_attention")
def native_attention(
    q: Any, k: Any, v: Any, width: int, heads: int, qkv_weight: Any, qkv_bias: Any, out_weight: Any, out_bias: Any,
    mask: Any = None, need_weights: bool = True, average: bool = True, mask_type: int | None = None,
) -> Any:  # fmt: skip
    """The fast path of nn.MultiheadAttention, which is taken for self attention; its weights are not given back."""
    if need_weights or k is not q or v is not q:
        return NotImplemented
    y = _self_attention(q, heads, qkv_weight, qkv_bias, out_weight, out_bias, mask, mask_type)
    return y, y.new_empty(0)


@decomposes("aten::softmax.int")
def softmax(x: Any, axis: int, dtype: Any = None) -> Any:
    """In another element type; that of integers needs one."""
    return NotImplemented if dtype is None or x.dtype == dtype else x.to(dtype).softmax(axis)


@decomposes("aten::log_softmax.int")
def log_softmax(x: Any, axis: int, dtype: Any = None) -> Any:
    return NotImplemented if dtype is None or x.dtype == dtype else x.to(dtype).log_softmax(axis)


@decomposes("aten::signbit", "prims::signbit")
def signbit(x: Any) -> Any:
    """Of -0.0, too, whose reciprocal is -inf."""
    return (x < 0) | (x.reciprocal() < 0) if x.dtype.is_floating_point else x < 0


@decomposes("aten::copysign.Tensor")
def copysign(x: Any, sign: Any) -> Any:
    size = x.abs() if x.dtype.is_floating_point else x.abs().float()
    return size * (1 - 2 * signbit(sign).to(size.dtype))


@decomposes("aten::fmax", "prims::fmax")
def fmax(a: Any, b: Any) -> Any:
    """The larger one, or the one that is no NaN."""
    return _but_nan(a, b, a.maximum(b))


@decomposes("aten::fmin", "prims::fmin")
def fmin(a: Any, b: Any) -> Any:
    """The smaller one, or the one that is no NaN."""
    return _but_nan(a, b, a.minimum(b))


def _but_nan(a: Any, b: Any, y: Any) -> Any:
    if not y.dtype.is_floating_point:
        return y
    return _where(a != a, b, _where(b != b, a, y))


def _where(condition: Any, a: Any, b: Any) -> Any:
    import torch

    return torch.where(condition, a, b)


@decomposes("prims::prod")
def product(x: Any, axes: Any, *, output_dtype: Any = None) -> Any:
    for axis in sorted((a % x.dim() for a in axes), reverse=True) if axes is not None else range(x.dim())[::-1]:
        x = x.prod(axis)
    return x if output_dtype is None else x.to(output_dtype)


@decomposes("aten::cummax")
def cummax(x: Any, axis: int) -> Any:
    return _running(x, axis, True)


@decomposes("aten::cummin")
def cummin(x: Any, axis: int) -> Any:
    return _running(x, axis, False)


def _running(x: Any, axis: int, largest: bool) -> Any:
    """For every place the extreme of what is up to there, and the last place that has it."""
    import torch

    if x.dim() == 0:
        return x.clone(), torch.zeros((), dtype=torch.int64)
    moved = x.movedim(axis, -1)
    count = moved.shape[-1]
    reached = torch.ones(count, count, dtype=torch.bool).tril()
    start = moved.amin(-1, keepdim=True) if largest else moved.amax(-1, keepdim=True)
    masked = torch.where(reached, moved.unsqueeze(-2), start.unsqueeze(-1))
    values = masked.amax(-1) if largest else masked.amin(-1)
    holds = (masked == values.unsqueeze(-1)) & reached
    places = torch.where(holds, torch.arange(count), -1).amax(-1)
    return values.movedim(-1, axis), places.movedim(-1, axis)


@decomposes("aten::masked_select")
def masked_select(x: Any, mask: Any) -> Any:
    import torch

    x, mask = torch.broadcast_tensors(x, mask)
    return x.reshape(-1)[mask.reshape(-1).nonzero().squeeze(1)]


@decomposes("aten::searchsorted.Tensor")
def searchsorted(
    borders: Any, values: Any, *, out_int32: bool = False, right: bool = False, side: str | None = None,
    sorter: Any = None,
) -> Any:  # fmt: skip
    """How many borders lie below a value (or, from the right, not above it)."""
    if sorter is not None:
        borders = borders.gather(-1, sorter)
    edges, x = borders.unsqueeze(-2) if borders.dim() > 1 else borders, values.unsqueeze(-1)
    below = edges <= x if right or side == "right" else edges < x
    count = below.sum(-1)
    return count.int() if out_int32 else count


@decomposes("aten::bucketize.Tensor")
def bucketize(values: Any, borders: Any, *, out_int32: bool = False, right: bool = False) -> Any:
    return searchsorted(borders, values, out_int32=out_int32, right=right)


@decomposes("aten::median")
def median(x: Any) -> Any:
    """The lower one of the two in the middle; NaN where there is any."""
    middle = x.reshape(-1).sort().values[(x.numel() - 1) // 2]
    return middle if not x.dtype.is_floating_point else _where((x != x).any(), float("nan"), middle)


@decomposes("aten::kthvalue")
def kthvalue(x: Any, k: int, axis: int = -1, keepdim: bool = False) -> Any:
    """Floats only: among equal integers any place may be given."""
    if not x.dtype.is_floating_point or x.dim() == 0:
        return NotImplemented
    values, places = x.sort(axis)
    result = [y.select(axis, k - 1) for y in (values, places)]
    return tuple(y.unsqueeze(axis) if keepdim else y for y in result)


@decomposes("aten::median.dim")
def median_along(x: Any, axis: int, keepdim: bool = False) -> Any:
    if not x.dtype.is_floating_point or x.dim() == 0:
        return NotImplemented
    return kthvalue(x, (x.shape[axis] - 1) // 2 + 1, axis, keepdim)


@decomposes("aten::_cdist_forward")
def distances(a: Any, b: Any, p: float, mode: int | None = None) -> Any:
    """p-norms of the differences of all rows of a [..., n, k] and b [..., m, k]."""
    apart = (a.unsqueeze(-2) - b.unsqueeze(-3)).abs()
    if p == 0:
        return (apart != 0).to(a.dtype).sum(-1)
    if p == float("inf"):
        return apart.amax(-1)
    return apart.sum(-1) if p == 1 else apart.pow(p).sum(-1).pow(1 / p)


@decomposes("aten::amax")
def amax(x: Any, axes: Any = (), keepdim: bool = False) -> Any:
    """Over all axes, which the exporter wants to be listed."""
    if not x.dim():
        return x.clone()
    return NotImplemented if axes else x.amax(tuple(range(x.dim())), keepdim)


@decomposes("aten::amin")
def amin(x: Any, axes: Any = (), keepdim: bool = False) -> Any:
    if not x.dim():
        return x.clone()
    return NotImplemented if axes else x.amin(tuple(range(x.dim())), keepdim)


@decomposes("aten::nanmedian")
def nanmedian(x: Any) -> Any:
    """The lower one in the middle of those that are numbers."""
    if not x.dtype.is_floating_point:
        return median(x)
    flat = x.reshape(-1)
    count = (flat == flat).sum()
    ordered = _where(flat == flat, flat, float("inf")).sort().values
    middle = ordered.gather(0, ((count - 1) // 2).clamp(min=0).reshape(1)).reshape(())
    return _where(count > 0, middle, float("nan"))


@decomposes("aten::diagonal_scatter")
def diagonal_scatter(x: Any, source: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """x with `source` in a diagonal."""
    import torch

    matrix = x.movedim((axis1, axis2), (-2, -1))
    rows, columns = matrix.shape[-2:]
    along = torch.arange(source.shape[-1])
    places = (along + max(0, -offset)) * columns + along + max(0, offset)
    flat = matrix.reshape(*matrix.shape[:-2], rows * columns)
    return flat.scatter(-1, places.expand(source.shape), source).view(matrix.shape).movedim((-2, -1), (axis1, axis2))


@decomposes("prims::scalar_tensor")
def scalar_tensor(number: Any, *, dtype: Any = None, device: Any = None) -> Any:
    import torch

    return torch.full((), number, dtype=dtype)


@decomposes("aten::angle")
def angle(x: Any) -> Any:
    """Of real numbers: pi below 0; NaN stays."""
    import math

    if x.dtype.is_complex:
        return NotImplemented
    y = _where(x < 0, math.pi, 0.0)
    return _where(x != x, x, y) if x.dtype.is_floating_point else y


@decomposes("aten::nonzero")
def nonzero(x: Any) -> Any:
    """Of a number torch gives a matrix without columns, which only its count of rows tells from nothing."""
    if x.dim():
        return NotImplemented
    raise ConversionError.of("unsupported-attribute", "nonzero takes a number, not a tensor", op="aten::nonzero")


@decomposes("aten::scatter_reduce.two")
def scatter_mean(x: Any, axis: int, index: Any, source: Any, reduce: str, *, include_self: bool = True) -> Any:
    """Of means: sums over counts; what nothing is scattered to stays."""
    if reduce != "mean":
        return NotImplemented
    total, count = x, x.new_ones(x.shape)
    if not include_self:
        total, count = (y.scatter(axis, index, 0) for y in (total, count))
    total = total.scatter_add(axis, index, source)
    count = count.scatter_add(axis, index, source.new_ones(source.shape))
    return total / count if x.dtype.is_floating_point else total.div(count, rounding_mode="floor")


@decomposes("aten::special_log_ndtr")
def log_ndtr(x: Any) -> Any:
    """Its tail is the logarithm of a number that float32 does not have."""
    raise ConversionError.of("unsupported-op", "there is no translation of the operator aten::special_log_ndtr")


@decomposes("aten::linalg_vector_norm")
def vector_norm(x: Any, order: Any = 2, axes: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Of all numbers, with axes of size 1 that are kept."""
    import torch

    if axes or not keepdim:
        return NotImplemented
    return torch.linalg.vector_norm(x, order, tuple(range(x.dim())), keepdim, dtype=dtype)


@decomposes("aten::scaled_dot_product_attention")
def attention(q: Any, k: Any, v: Any, mask: Any = None, dropout: float = 0, causal: bool = False, **named: Any) -> Any:
    """Without an axis of heads, or with more than [batch, heads, length, size]."""
    from torch.nn import functional

    rank, shape = q.dim(), (*q.shape[:-1], v.shape[-1])
    if rank == 4 or not rank == k.dim() == v.dim() or (rank > 4 and mask is not None and mask.dim() > 2):
        return NotImplemented
    heads = q.shape[-3] if rank > 4 else 1
    q, k, v = (x.reshape(-1, heads, *x.shape[-2:]) for x in (q, k, v))
    mask = mask.unsqueeze(1) if mask is not None and mask.dim() == 3 else mask
    return functional.scaled_dot_product_attention(q, k, v, mask, dropout, causal, **named).reshape(shape)


@decomposes("aten::sort.stable")
def stable_sort(x: Any, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    """What `sort` becomes takes the first of equal values first, whatever the direction."""
    return x.sort(dim, descending)
