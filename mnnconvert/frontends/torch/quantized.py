"""Products with the 8-bit weights of torchao, whose scales are applied behind the product: brought to coded weights."""

from __future__ import annotations

from typing import Any


def dequantized_rows(codes: Any, scale: Any) -> Any:
    """codes [n, k] int8 times scale [n, 1]: a weight, float32 [n, k]."""
    return codes.float() * scale


def gather_scales(graph: Any) -> None:
    """mm(x, float(codes^T)) * scale  ->  mm(x, (codes * scale)^T), for parameters `codes` and `scale`.

    So the codes reach the file as they are, instead of becoming floats.
    """
    import torch

    aten = torch.ops.aten
    for product in graph.find_nodes(op="call_function", target=aten.mm.default):
        codes = _codes(product.args[1])
        users = list(product.users)
        if codes is None or len(users) != 1 or users[0].target is not aten.mul.Tensor:
            continue
        scale = next(_source(x) for x in users[0].args if x is not product)
        if scale is None or scale.meta["val"].numel() != codes.meta["val"].shape[0]:
            continue
        with graph.inserting_before(product):
            column = graph.call_function(aten.view.default, (scale, [-1, 1]))
            column.meta["val"] = scale.meta["val"].view(-1, 1)
            weight = graph.call_function(dequantized_rows, (codes, column))
            weight.meta["val"] = dequantized_rows(codes.meta["val"], column.meta["val"])
            turned = graph.call_function(aten.permute.default, (weight, [1, 0]))
            turned.meta["val"] = weight.meta["val"].permute(1, 0)
        product.args = (product.args[0], turned)
        users[0].replace_all_uses_with(product)
        product.meta["from_node"] = users[0].meta.get("from_node", [])  # whose value it has now
        graph.erase_node(users[0])
    graph.eliminate_dead_code()


def _source(node: Any) -> Any:
    """The parameter that a node gives in another shape or type of float; None for anything else."""
    while getattr(node, "op", "") == "call_function" and _name(node) in _MOVES:
        node = node.args[0]
    return node if getattr(node, "op", "") == "placeholder" else None


def _codes(node: Any) -> Any:
    """The int8 parameter [n, k] that is turned and made float, for the second operand of a product; or None."""
    import torch

    source = _source(node)
    if source is None or source.meta["val"].dtype != torch.int8 or source.meta["val"].dim() != 2:
        return None
    return source if tuple(node.meta["val"].shape) == tuple(source.meta["val"].shape)[::-1] else None


_MOVES = {"t", "transpose", "permute", "view", "reshape", "flatten", "_to_copy", "convert_element_type", "clone", "to"}


def _name(node: Any) -> str:
    return str(node.target).split(".")[1] if "." in str(node.target) else ""
