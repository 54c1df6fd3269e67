"""What will happen to each weight, decided before anything is computed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mnnconvert.errors import ConversionError, Diagnostic, UsageError
from mnnconvert.ir import CodedTensor, Graph, HalfTensor, Node, Tensor, Value
from mnnconvert.ir.coded import fitting_block
from mnnconvert.ir.tensor import equal, reshaped
from mnnconvert.ops.gather import Gather, GatherV2
from mnnconvert.ops.matmul import CONVERTED
from mnnconvert.quantizers.recipe import Recipe, Setting

TABLE_METHOD = "lsq"
SMALL_TABLE = 250_000  # bytes of float32 up to which a table stays as it is unless a rule names it
INTERNAL = ("node", "operand", "setting", "half")


@dataclass
class LayerPlan:
    """One weight: where it is, what it becomes, and its size in bytes before and after (scales included).

    `node` reads the weight as its operand number `operand`. `rows` runs of `columns` weights have scales of their own;
    `block` counts columns (0: one scale per run) and `block_channels` input channels; `half_scales` stores scales as
    float16.
    `setting` is what was asked for this layer; `reason` says why a weight is left as it is. `error` is the root mean
    square of the change relative to that of the weight, known after the work (`predicted` is an estimate before it);
    where calibration data were given, `weighted_error` is the same on the outputs of the layer that they lead to, and
    `sqnr` the signal to noise ratio of these in dB. `notes` are what a person should know beside the numbers.
    """

    name: str
    op: str
    node: Node = field(repr=False)
    operand: int = 1
    setting: Setting = field(default_factory=Setting)
    half: bool = False
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
    predicted: float | None = None
    weighted_error: float | None = None
    sqnr: float | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def weight(self) -> Value:
        return self.node.inputs[self.operand]

    @property
    def is_table(self) -> bool:
        """Whether the weight is a table whose rows are looked up by index."""
        return _reads_table(self.node)

    @property
    def is_convolution(self) -> bool:
        """Whether the weight has the coded form of convolutions."""
        return _is_convolution(self.node)

    @property
    def resolved(self) -> Setting:
        """The setting with the block in columns and the scales as they are stored."""
        return replace(self.setting, block=self.block, half_scales=self.half_scales)

    def to_dict(self) -> dict[str, Any]:
        data = {name: value for name, value in vars(self).items() if name not in INTERNAL}
        data["bits"] = self.setting.bits if self.changed and not self.half else None
        data["symmetric"] = self.setting.symmetric if data["bits"] else None
        data["block"] = self.block_channels or None
        return data

    @property
    def changed(self) -> bool:
        """Whether the weight is stored in another way than in the float conversion."""
        return bool(not self.reason and (self.half or self.setting.bits))


def plan_weights(graph: Graph, recipe: Recipe) -> list[LayerPlan]:
    """The plan for every weight of a graph, its subgraphs included.

    Raises `unmatched-rule` for rules of the recipe that fit no layer, and `block-does-not-fit` with every layer whose
    channels cannot be cut into blocks of at most the asked size. A block is never larger than asked; where the size
    does not divide the channels, the largest divisor below it is taken, with scales as float16, so that more blocks do
    not make the file larger than what was asked for.
    """
    nodes = [node for inner in graph.graphs() for node in inner.nodes if _has_weight(node)]
    tables = [n for inner in graph.graphs() for n in inner.nodes if _reads_table(n)]
    tables = [n for n in tables if recipe.codes_weights or isinstance(n.inputs[0].tensor, CodedTensor)]
    _refuse_unmatched([*nodes, *tables], recipe)
    layers = [layer_plan(node, recipe) for node in (*tables, *nodes)]
    _note_tied(layers)
    problems = [_does_not_fit(layer) for layer in layers if layer.block < 0]
    if problems:
        raise ConversionError(problems)
    return layers


def layer_plan(node: Node, recipe: Recipe) -> LayerPlan:
    """The plan for a node that holds a weight or looks one up; its `block` is below 0 where none of that size fits."""
    return _table(node, recipe) if _reads_table(node) else _layer(node, recipe)


def holds_weight(node: Node) -> bool:
    """Whether a node has a plan."""
    return _has_weight(node) or _reads_table(node)


def _note_tied(layers: Sequence[LayerPlan]) -> None:
    """Say of tables that are also the weight of a product that the file holds them twice."""
    for table in layers:
        if table.is_table and table.changed and any(_tied(table, x) for x in layers):
            table.notes.append(
                "a product reads this table too, and has codes of its own: MNN has no form that serves both"
            )


def _tied(table: LayerPlan, layer: LayerPlan) -> bool:
    """Whether a layer multiplies by the numbers of a table, whose rows are its outputs."""
    if layer.is_table or tuple(layer.weight.shape or ())[:2] != (table.rows, table.columns):
        return False
    ours, theirs = table.weight.tensor, layer.weight.tensor
    return ours is not None and theirs is not None and equal(ours, reshaped(theirs, tuple(ours.shape)))


def _refuse_unmatched(nodes: Sequence[Node], recipe: Recipe) -> None:
    """A rule that fits nothing was meant to fit something: a misspelt name must not pass in silence."""
    problems = [
        Diagnostic(
            "unmatched-rule",
            f"the rule '{rule}' fits no layer of the model",
            {},
            "--plan lists the layers by name",
        )
        for rule in recipe.rules
        if not any(rule.fits(names_of(n), kinds_of(n), weight_bytes(n)) for n in nodes)
    ]
    if problems:
        raise UsageError(problems)


def names_of(node: Node) -> set[str]:
    """The names by which a rule may know a layer: its own, those in the source, and that of its weight."""
    name = node.name.removesuffix("/head").removesuffix("/tail")  # of a layer that was cut in two
    sources = (name.removesuffix(CONVERTED), *node.origin)
    weight = _weight_of(node).name
    if CONVERTED in name:
        weight = re.sub(r"_\d+$", "", weight)  # it could not have the name of what it was made from
    return {node.name, name, *sources, *(f"{s}{CONVERTED}" for s in sources), weight}


def weight_bytes(node: Node) -> int:
    """Bytes of the weight of a layer as float32, as the size bounds of rules count it."""
    return 4 * _size(_weight_of(node))


def kinds_of(node: Node) -> set[str]:
    """The kinds of operator by which a rule may know a layer."""
    more = {"MatMul"} if CONVERTED in node.name else {"Gather"} if _reads_table(node) else set()
    return {node.op.kind} | more


def _weight_of(node: Node) -> Value:
    return node.inputs[0 if _reads_table(node) else 1]


def _has_weight(node: Node) -> bool:
    """Layers that hold a matrix of constants: convolutions, and products or recurrences with a constant."""
    if len(node.inputs) < 2 or node.inputs[1].tensor is None or node.inputs[1].dtype.kind != "f":
        return False
    form = getattr(node.op, "form", None)
    tables = ("Convolution2D", "Convolution3D", "MatMul", "LSTM", "RNNParam")
    return form is not None and form.table in tables


def _reads_table(node: Node) -> bool:
    """Whether a node picks rows of a constant matrix of floats by index."""
    if not isinstance(node.op, Gather | GatherV2) or node.inputs[0].tensor is None:
        return False
    table, axis = node.inputs[0], node.op.axis
    if len(node.inputs) > 2:
        given = node.inputs[2].constant
        axis = -1 if given is None else int(given.reshape(-1)[0])
    return table.dtype.kind == "f" and table.rank == 2 and axis in (0, -2)


def _table(node: Node, recipe: Recipe) -> LayerPlan:
    """What the recipe makes of a table.

    8 bits have one scale and minimum per row. 4 bits have blocks as the weights, and no minimum: scales of blocks of 32
    err as much as scales and minima of blocks of 64, which take as many bytes. The numbers are always float16.
    """
    size, tensor = weight_bytes(node), node.inputs[0].tensor
    layer = LayerPlan(node.name, "Gather", node, 0, bytes_before=size, bytes_after=size)
    number = recipe.rule_for(names_of(node), kinds_of(node), size)
    wanted = recipe.default if number is None else recipe.rules[number].setting(recipe.default)
    bits = recipe.embedding if number is None and recipe.embedding is not None else wanted.bits
    layer.rows, layer.columns = (d if isinstance(d, int) else 0 for d in node.inputs[0].shape or ())
    kept = isinstance(tensor, CodedTensor) and (tensor.coded.blocks == 1 or node.inputs[1].rank is not None)
    if isinstance(tensor, CodedTensor) and kept and recipe.embedding != 0:
        return _coded_table(layer, tensor)
    if number is not None and not bits:
        layer.reason = f"the rule '{recipe.rules[number]}' leaves it"
    elif not bits:
        layer.reason = "tables stay as they are" if recipe.default.bits else "no rule asks for it"
    elif number is None and size <= SMALL_TABLE:
        layer.reason = "a small table"
    if layer.reason:
        return layer
    blocked = wanted.block and bits <= 4 and node.inputs[1].rank is not None  # which the shape of the result needs
    block = max(0, fitting_block(layer.columns, wanted.block)) if blocked else 0
    nibbles = bits <= 4 and (block or layer.columns) % 2 == 0
    layer.setting = replace(wanted, bits=4 if nibbles else 8, block=block, symmetric=nibbles, method=TABLE_METHOD)
    layer.block, layer.block_channels, layer.half_scales = block, block, True
    layer.precision, layer.method = f"{layer.setting.bits} bit", TABLE_METHOD
    layer.bytes_after = coded_bytes(layer)
    return layer


def _coded_table(layer: LayerPlan, tensor: CodedTensor) -> LayerPlan:
    """A table that the source holds as codes keeps them."""
    coded = tensor.coded
    layer.precision, layer.method, layer.reason = f"{coded.bits} bit", "as in the source", "coded in the source already"
    layer.block = layer.block_channels = coded.block if coded.blocks > 1 else 0
    layer.bytes_after = tensor.nbytes
    return layer


def _layer(node: Node, recipe: Recipe) -> LayerPlan:
    """What the recipe, in this order its rules, the operator and the stored form of the weight, makes of a layer."""
    size = weight_bytes(node)
    layer = LayerPlan(node.name, node.op.kind, node, half=recipe.half, bytes_before=size, bytes_after=size)
    tensor = _stored(node)
    if isinstance(tensor, CodedTensor):
        layer.precision, layer.method = f"{tensor.coded.bits} bit", "as in the source"
        layer.rows, layer.columns = tensor.coded.shape
        layer.block = tensor.coded.block if tensor.coded.blocks > 1 else 0
        layer.bytes_after = tensor.nbytes
    elif isinstance(tensor, HalfTensor):
        layer.precision, layer.bytes_after = "float16", tensor.nbytes
    number = recipe.rule_for(names_of(node), kinds_of(node), size)
    layer.setting = recipe.default if number is None else recipe.rules[number].setting(recipe.default)
    if not recipe.changes_weights:
        return layer
    layer.reason = _reason(layer, tensor, number, recipe)
    if not layer.reason:
        _half(layer) if recipe.half else _coded(layer)
    return layer


def _reason(layer: LayerPlan, tensor: Tensor | None, rule: int | None, recipe: Recipe) -> str:
    """Why a weight is left as it is; empty when it is not.

    Codes of the source with as many bits as wanted stay, whatever their blocks: to round them again could only lose.
    """
    if not recipe.half and not layer.setting.bits:
        return "no rule asks for it" if rule is None else f"the rule '{recipe.rules[rule]}' leaves it"
    if not _is_convolution(layer.node):
        return f"weights of {layer.op} have no coded form"
    if isinstance(tensor, CodedTensor) and (recipe.half or layer.setting.bits == tensor.coded.bits):
        return "coded in the source already"
    return ""


def _stored(node: Node) -> Tensor | None:
    """The weight as the file will hold it: codes whose scales are not per output channel become floats."""
    tensor = node.inputs[1].tensor
    if isinstance(tensor, CodedTensor) and (not _is_convolution(node) or tensor.coded.shape[0] != _rows(node)):
        return None
    return tensor


def _rows(node: Node) -> int:
    """The number of output channels of a convolution."""
    shape = [d if isinstance(d, int) else 1 for d in node.inputs[1].shape or ()]
    return shape[1] * getattr(node.op, "group", 1) if "Deconvolution" in node.op.kind else shape[0]


def _is_convolution(node: Node) -> bool:
    form = getattr(node.op, "form", None)
    return form is not None and form.table == "Convolution2D"


def _size(weight: Value) -> int:
    size = 1
    for d in weight.shape or ():
        size *= d if isinstance(d, int) else 1
    return size


def _half(layer: LayerPlan) -> None:
    layer.precision, layer.bytes_after = "float16", layer.bytes_before // 2


def _coded(layer: LayerPlan) -> None:
    setting = layer.setting
    shape = [d for d in layer.weight.shape or () if isinstance(d, int)]
    layer.rows = _rows(layer.node)
    layer.columns = _size(layer.weight) // layer.rows
    layer.block = 0
    if setting.block and "Deconvolution" not in layer.op:
        channels, area = shape[1], shape[2] * shape[3]
        layer.block_channels = fitting_block(channels, setting.block)
        layer.block = layer.block_channels * area
    layer.precision, layer.method = f"{setting.bits} bit", setting.method
    layer.half_scales = setting.half_scales or layer.block_channels not in (0, setting.block)
    layer.bytes_after = coded_bytes(layer)


def coded_bytes(layer: LayerPlan) -> int:
    """Bytes of packed codes and scales."""
    blocks = layer.rows * (layer.columns // layer.block if layer.block > 0 else 1)
    numbers = blocks * (1 if layer.setting.symmetric else 2)
    return -(-layer.rows * layer.columns * layer.setting.bits // 8) + numbers * (2 if layer.half_scales else 4)


def _does_not_fit(layer: LayerPlan) -> Diagnostic:
    shape, block = layer.weight.shape or (), layer.setting.block
    channels = str(shape[1]) if len(shape) > 1 else "?"
    return Diagnostic(
        "block-does-not-fit",
        f"the {channels} input channels of '{layer.name}' cannot be cut into blocks of at most {block}",
        {"weight": layer.weight.name, "channels": channels, "block": str(block)},
        "choose another --weightQuantBlock, or 0 for one scale per output channel",
    )


def total(layers: Iterable[LayerPlan]) -> tuple[int, int]:
    """Bytes of all weights before and after; a weight that several layers share counts once."""
    unique = {id(layer.weight.tensor): layer for layer in layers}.values()
    return sum(x.bytes_before for x in unique), sum(x.bytes_after for x in unique)
