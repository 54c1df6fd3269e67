"""What will happen to each weight, decided before anything is computed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

from mnnconvert.errors import ConversionError, Diagnostic
from mnnconvert.ir import CodedTensor, Graph, HalfTensor, Node, Tensor, Value
from mnnconvert.ir.coded import fitting_block
from mnnconvert.quantizers.recipe import Recipe


@dataclass
class LayerPlan:
    """One weight: where it is, what it becomes, and its size in bytes before and after (scales included).

    `rows` runs of `columns` weights have scales of their own; `block` counts columns (0: one scale per run) and
    `block_channels` input channels; `half_scales` stores scales as float16. `reason` says why a weight is left as it
    is. `error` is the root mean square of the change relative to that of the weight, known after the work.
    """

    name: str
    op: str
    weight: Value = field(repr=False)
    precision: str = "float32"
    rows: int = 0
    columns: int = 0
    block: int = 0
    block_channels: int = 0
    half_scales: bool = False
    bytes_before: int = 0
    bytes_after: int = 0
    method: str = ""
    reason: str = ""
    error: float | None = None

    def to_dict(self) -> dict[str, Any]:
        data = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "weight"}
        data["block"] = self.block_channels or None
        return data


def plan_weights(graph: Graph, recipe: Recipe) -> list[LayerPlan]:
    """The plan for every weight of a graph, its subgraphs included.

    Raises `block-does-not-fit` with every layer whose channels cannot be cut into blocks of at most the asked size.
    A block is never larger than asked; where the size does not divide the channels, the largest divisor below it is
    taken, with scales as float16, so that more blocks do not make the file larger than what was asked for.
    """
    layers = [_layer(node, recipe) for inner in graph.graphs() for node in inner.nodes if _has_weight(node)]
    problems = [_does_not_fit(layer, recipe) for layer in layers if layer.block < 0]
    if problems:
        raise ConversionError(problems)
    return layers


def _has_weight(node: Node) -> bool:
    """Layers that hold a matrix of constants: convolutions, and products or recurrences with a constant."""
    if len(node.inputs) < 2 or node.inputs[1].tensor is None or node.inputs[1].dtype.kind != "f":
        return False
    form = getattr(node.op, "form", None)
    tables = ("Convolution2D", "Convolution3D", "MatMul", "LSTM", "RNNParam")
    return form is not None and form.table in tables


def _layer(node: Node, recipe: Recipe) -> LayerPlan:
    weight = node.inputs[1]
    tensor = _stored(node)
    layer = LayerPlan(node.name, node.op.kind, weight, bytes_before=4 * _size(weight), bytes_after=4 * _size(weight))
    if isinstance(tensor, CodedTensor):
        layer.precision, layer.method = f"{tensor.coded.bits} bit", "as in the source"
        layer.rows, layer.columns = tensor.coded.codes.shape
        layer.block = tensor.coded.block if tensor.coded.blocks > 1 else 0
        layer.bytes_after = tensor.nbytes
    elif isinstance(tensor, HalfTensor):
        layer.precision, layer.bytes_after = "float16", tensor.nbytes
    if not recipe.changes_weights:
        return layer
    if not _is_convolution(node):
        layer.reason = f"weights of {node.op.kind} have no coded form"
        return layer
    if isinstance(tensor, CodedTensor) and (recipe.half or _as_asked(tensor, recipe)):
        layer.reason = "coded in the source already"
        return layer
    return _half(layer) if recipe.half else _coded(layer, node, recipe)


def _stored(node: Node) -> Tensor | None:
    """The weight as the file will hold it: codes whose scales are not per output channel become floats."""
    tensor = node.inputs[1].tensor
    if isinstance(tensor, CodedTensor) and (not _is_convolution(node) or len(tensor.coded.codes) != _rows(node)):
        return None
    return tensor


def _rows(node: Node) -> int:
    """The number of output channels of a convolution."""
    shape = [d if isinstance(d, int) else 1 for d in node.inputs[1].shape or ()]
    return shape[1] * getattr(node.op, "group", 1) if "Deconvolution" in node.op.kind else shape[0]


def _as_asked(tensor: CodedTensor, recipe: Recipe) -> bool:
    """Whether the codes have the bits and the blocks that the recipe wants."""
    channels = tensor.shape[1] if len(tensor.shape) > 1 else 1
    block = channels // tensor.coded.blocks
    same = (
        tensor.coded.blocks == 1 if not recipe.block else block == (fitting_block(channels, recipe.block) or channels)
    )
    return recipe.bits == tensor.coded.bits and same


def _is_convolution(node: Node) -> bool:
    form = getattr(node.op, "form", None)
    return form is not None and form.table == "Convolution2D"


def _size(weight: Value) -> int:
    size = 1
    for d in weight.shape or ():
        size *= d if isinstance(d, int) else 1
    return size


def _half(layer: LayerPlan) -> LayerPlan:
    layer.precision, layer.bytes_after = "float16", layer.bytes_before // 2
    return layer


def _coded(layer: LayerPlan, node: Node, recipe: Recipe) -> LayerPlan:
    shape = [d for d in layer.weight.shape or () if isinstance(d, int)]
    transposed = "Deconvolution" in node.op.kind
    layer.rows = _rows(node)
    layer.columns = _size(layer.weight) // layer.rows
    if recipe.block and not transposed:
        channels, area = shape[1], shape[2] * shape[3]
        layer.block_channels = fitting_block(channels, recipe.block)
        layer.block = layer.block_channels * area
    layer.precision, layer.method = f"{recipe.bits} bit", recipe.method
    layer.half_scales = recipe.half_scales or layer.block_channels not in (0, recipe.block)
    layer.bytes_after = coded_bytes(layer, recipe)
    return layer


def coded_bytes(layer: LayerPlan, recipe: Recipe) -> int:
    """Bytes of packed codes and scales."""
    blocks = layer.rows * (layer.columns // layer.block if layer.block > 0 else 1)
    numbers = blocks * (1 if recipe.symmetric else 2)
    return -(-layer.rows * layer.columns * recipe.bits // 8) + numbers * (2 if layer.half_scales else 4)


def _does_not_fit(layer: LayerPlan, recipe: Recipe) -> Diagnostic:
    shape = layer.weight.shape or ()
    channels = str(shape[1]) if len(shape) > 1 else "?"
    return Diagnostic(
        "block-does-not-fit",
        f"the {channels} input channels of '{layer.name}' cannot be cut into blocks of at most {recipe.block}",
        {"weight": layer.weight.name, "channels": channels, "block": str(recipe.block)},
        "choose another --weightQuantBlock, or 0 for one scale per output channel",
    )


def total(layers: Iterable[LayerPlan]) -> tuple[int, int]:
    """Bytes of all weights before and after; a weight that several layers share counts once."""
    unique = {id(layer.weight.tensor): layer for layer in layers}.values()
    return sum(x.bytes_before for x in unique), sum(x.bytes_after for x in unique)
