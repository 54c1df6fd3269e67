"""Equal copies of ONNX models with 8-bit products, on which onnxruntime computes the exact sums.

Where one operand is unsigned and the other signed, onnxruntime's kernels for x64 processors without VNNI add pairs of
products in int16, which saturates: 2 * 255 * 127 does not fit. The kernels for operands of one kind do not, so a signed
operand and its zero point are moved up by 128, which leaves their difference as it is.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from mnnconvert.verify.onnx_repair import graphs_of

SHIFT = 128
Types = Mapping[str, int]


@dataclass(frozen=True)
class _Product:
    """Inputs of an op that multiplies: (operand, zero point) of the left and the right sides.

    A left side of None is quantized inside, to uint8. The types of the QLinear ops' left sides are those of their
    results, so only their right sides can be moved.
    """

    left: tuple[int, int] | None
    right: tuple[tuple[int, int], ...]
    movable_left: bool = False


_PRODUCTS = {
    "MatMulInteger": _Product((0, 2), ((1, 3),), movable_left=True),
    "ConvInteger": _Product((0, 2), ((1, 3),), movable_left=True),
    "QLinearConv": _Product((0, 2), ((3, 5),)),
    "QLinearMatMul": _Product((0, 2), ((3, 5),)),
    "MatMulIntegerToFloat": _Product((0, 4), ((1, 5),), movable_left=True),
    "QGemm": _Product((0, 2), ((3, 5),)),
    "QAttention": _Product((0, 6), ((1, 7),)),
    "DynamicQuantizeMatMul": _Product(None, ((1, 3),)),
    "DynamicQuantizeLSTM": _Product(None, ((1, 9), (2, 11))),
}


def may_saturate(path: Path) -> bool:
    """Whether the file mentions one of the ops: a quick look that spares most models the parsing."""
    if not path.is_file() or not path.stat().st_size:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return any(data.find(op.encode()) >= 0 for op in _PRODUCTS)


def with_unsigned_factors(model: onnx.ModelProto) -> list[str]:
    """Moves the signed operand of every mixed product to uint8; the op types of the nodes. Changes `model`."""
    graphs = list(graphs_of(model.graph))
    if not any(node.op_type in _PRODUCTS for graph in graphs for node in graph.node):
        return []
    types = _element_types(onnx.shape_inference.infer_shapes(model))
    changed: list[str] = []
    for graph in reversed(graphs):  # the inner ones first: nodes that carry graphs are copied
        nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            for operand, zero in _signed_sides(node, types):
                nodes += _unsigned(node, operand, zero)
                changed.append(node.op_type)
            nodes.append(node)
        if len(nodes) > len(graph.node):
            del graph.node[:]
            graph.node.extend(nodes)
    return changed


def _element_types(model: onnx.ModelProto) -> dict[str, int]:
    types: dict[str, int] = {}
    for graph in graphs_of(model.graph):
        for value in (*graph.input, *graph.value_info, *graph.output):
            types[value.name] = value.type.tensor_type.elem_type
        types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    return types


def _signed_sides(node: onnx.NodeProto, types: Types) -> list[tuple[int, int]]:
    """The sides of mixed products that have to be moved."""
    product = _PRODUCTS.get(node.op_type)
    if product is None or node.domain not in ("", "ai.onnx", "com.microsoft"):
        return []
    left = TensorProto.UINT8 if product.left is None else types.get(node.input[product.left[0]])
    right = [types.get(node.input[operand]) for operand, _ in product.right]
    if left == TensorProto.UINT8:
        return [side for side, kind in zip(product.right, right, strict=True) if kind == TensorProto.INT8]
    if product.movable_left and product.left is not None and (left, right) == (TensorProto.INT8, [TensorProto.UINT8]):
        return [product.left]
    return []


def _unsigned(node: onnx.NodeProto, operand: int, zero: int) -> list[onnx.NodeProto]:
    """The nodes that make an operand of `node` and its zero point (0 when left out) unsigned. `node` reads theirs."""
    node.input.extend([""] * (zero + 1 - len(node.input)))
    prefix = f"{next(name for name in node.output if name)}__unsigned_{operand}"
    shift = helper.make_tensor("shift", TensorProto.INT32, [], [SHIFT])
    added = [helper.make_node("Constant", [], [f"{prefix}_shift"], value=shift)]
    for index in (operand, zero):
        name = f"{prefix}_{index}"
        if node.input[index]:
            added += [
                helper.make_node("Cast", [node.input[index]], [f"{name}_wide"], to=TensorProto.INT32),
                helper.make_node("Add", [f"{name}_wide", f"{prefix}_shift"], [f"{name}_moved"]),
                helper.make_node("Cast", [f"{name}_moved"], [name], to=TensorProto.UINT8),
            ]
        else:
            added.append(helper.make_node("Cast", [f"{prefix}_shift"], [name], to=TensorProto.UINT8))
        node.input[index] = name
    return added
