"""Operators of torch as compositions of others, where torch's exporter has no translation or a wrong one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
    """The decompositions of this file by overload."""
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
    import torch.nn.functional as F

    def attend(y: Any) -> Any:
        return _self_attention(y, heads, qkv_weight, qkv_bias, out_weight, out_bias, mask, mask_type)

    def feed(y: Any) -> Any:
        activate = F.gelu if gelu else F.relu
        return F.linear(activate(F.linear(y, weight_1, bias_1)), weight_2, bias_2)

    for layer, weight, bias in ((attend, norm_weight_1, norm_bias_1), (feed, norm_weight_2, norm_bias_2)):
        if norm_first:
            x = x + layer(F.layer_norm(x, (width,), weight, bias, eps))
        else:
            x = F.layer_norm(x + layer(x), (width,), weight, bias, eps)
    return x


def _self_attention(
    x: Any, heads: int, qkv_weight: Any, qkv_bias: Any, out_weight: Any, out_bias: Any, mask: Any, mask_type: int | None
) -> Any:
    """Attention of x [batch, length, width] to itself; a mask of True excludes (type 0 [n, n], 1 [batch, n])."""
    import torch.nn.functional as F

    batch, length, width = x.shape
    projected = F.linear(x, qkv_weight, qkv_bias).view(batch, length, 3, heads, width // heads)
    q, k, v = (projected[:, :, i].transpose(1, 2) for i in range(3))
    if mask is not None and mask_type == 1:
        mask = mask.view(batch, 1, 1, length)
    if mask is not None:
        mask = mask.logical_not() if not mask.dtype.is_floating_point else mask
    y = F.scaled_dot_product_attention(q, k, v, mask)
    return F.linear(y.transpose(1, 2).reshape(batch, length, width), out_weight, out_bias)


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
