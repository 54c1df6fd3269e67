"""Equal copies of ONNX models that onnxruntime accepts, for the few legal models that it refuses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx

Sizes = dict[str, list[int | None]]


def with_unique_node_names(model: onnx.ModelProto) -> onnx.ModelProto:
    """Node names are only labels in ONNX, but onnxruntime wants them unique within a graph. Changes `model`."""
    for graph in graphs_of(model.graph):
        taken: set[str] = set()
        for index, node in enumerate(graph.node):
            if node.name in taken:
                node.name = _unused(f"{node.name}__{index}", taken)
            if node.name:
                taken.add(node.name)
    return model


def _unused(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name


def graphs_of(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """The graph and all graphs inside its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                if inner.node:
                    yield from graphs_of(inner)


def with_explicit_pads(model: onnx.ModelProto, feeds: Mapping[str, tuple[int, ...]]) -> onnx.ModelProto:
    """Writes out the padding of `auto_pad = SAME_UPPER / SAME_LOWER` on dilated Convs. Changes `model`.

    The amount depends on the input's size, so it is right only for feeds of the shapes given. A Conv whose size even
    these leave open stays as it is.
    """
    for value in model.graph.input:
        if value.name in feeds:
            _fix_shape(value, feeds[value.name])
    sizes = _sizes(onnx.shape_inference.infer_shapes(model, data_prop=True))
    for graph in graphs_of(model.graph):
        for node in graph.node:
            if node.op_type == "Conv" and node.input[0] in sizes:
                _pad_conv(node, sizes[node.input[0]], sizes.get(node.input[1]))
    return model


def _fix_shape(value: onnx.ValueInfoProto, shape: tuple[int, ...]) -> None:
    sizes = value.type.tensor_type.shape
    del sizes.dim[:]
    for size in shape:
        sizes.dim.add().dim_value = size


def _sizes(model: onnx.ModelProto) -> Sizes:
    """Known sizes of every value of the main graph and of all initializers."""
    found: Sizes = {}
    for value in (*model.graph.input, *model.graph.value_info):
        dims = value.type.tensor_type.shape.dim
        found[value.name] = [dim.dim_value if dim.HasField("dim_value") else None for dim in dims]
    for tensor in model.graph.initializer:
        found[tensor.name] = list(tensor.dims)
    return found


def _pad_conv(node: onnx.NodeProto, data: list[int | None], weight: list[int | None] | None) -> None:
    attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    mode = attributes.get("auto_pad", b"NOTSET")
    kernel = attributes.get("kernel_shape") or (weight or [])[2:]
    known = [size for size in (*data[2:], *kernel) if size is not None]
    if mode not in (b"SAME_UPPER", b"SAME_LOWER") or not kernel or len(known) != 2 * len(kernel):
        return
    rank = len(kernel)
    strides, dilations = attributes.get("strides") or [1] * rank, attributes.get("dilations") or [1] * rank
    totals = [_total(*facts) for facts in zip(known[:rank], known[rank:], strides, dilations, strict=True)]
    small, large = [total // 2 for total in totals], [total - total // 2 for total in totals]
    pads = [*small, *large] if mode == b"SAME_UPPER" else [*large, *small]
    kept = [attribute for attribute in node.attribute if attribute.name not in ("auto_pad", "pads")]
    del node.attribute[:]
    node.attribute.extend([*kept, onnx.helper.make_attribute("pads", pads)])


def _total(size: int, kernel: int, stride: int, dilation: int) -> int:
    """Padding of both ends together that makes the output ceil(size / stride) long."""
    outputs = -(-size // stride)
    return max((outputs - 1) * stride + (kernel - 1) * dilation + 1 - size, 0)
