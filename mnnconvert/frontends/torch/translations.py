"""Our own translations of operators of torch into ONNX nodes, for those that torch's exporter lacks or gets wrong.

A translation is a function that writes nodes and gives their result. It is called while the exporter walks the program,
with values of onnx_ir for tensors and plain Python for all else, in the order of the operator's schema.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

TRANSLATIONS: dict[str, Callable[..., Any]] = {}
"""By name, such as "aten::add.Tensor"."""


def translates(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        TRANSLATIONS.update(dict.fromkeys(names, function))
        return function

    return register


def node(op: str, inputs: Sequence[Any], domain: str = "", **attributes: Any) -> Any:
    """The result of a node that is written here."""
    return nodes(op, inputs, 1, domain, **attributes)[0]


def nodes(op: str, inputs: Sequence[Any], count: int, domain: str = "", **attributes: Any) -> Sequence[Any]:
    """The results of a node that has several."""
    import onnx_ir as ir
    from torch.onnx._internal.exporter import _core

    tracer = _core.current_tracer
    version = 1 if domain else tracer.opset.version
    made = ir.node(op, list(inputs), attributes, domain=domain, version=version, num_outputs=count)
    tracer.nodes.append(made)
    return list(made.outputs)


def coded(codes: Any, scale: Any, zero: Any, block: int, lowest: int = -128, highest: int = 127) -> Any:
    """(codes - zero) * scale for a matrix with a scale for every `block` numbers of a row; a constant keeps its codes.

    int8 codes within -8 .. 7 are marked as codes of 4 bits.
    """
    if (lowest, highest) == (-8, 7):
        codes.metadata_props["bits"] = "4"
    operands = (codes, scale) if zero is None else (codes, scale, zero)
    return node("DequantizeLinear", operands, "com.microsoft", axis=1, block_size=block)


@translates("torchao::dequantize_affine")
def dequantize_affine(
    codes: Any, block: Sequence[int], scale: Any, zero: Any, kind: int, lowest: int | None = None,
    highest: int | None = None, output: int = -1,
) -> Any:  # fmt: skip
    """Codes of a matrix with scales per row, or per block of a row."""
    if len(block) != 2 or block[0] != 1:
        raise ValueError(f"blocks of {list(block)} codes")
    return coded(codes, scale, zero, block[1], lowest or 0, highest or 0)


def constant(*numbers: int | float) -> Any:
    """A vector of int64 or float32."""
    import numpy as np
    import onnx_ir as ir

    whole = all(isinstance(n, int) for n in numbers)
    return node("Constant", (), value=ir.tensor(np.array(numbers, np.int64 if whole else np.float32)))


def columns(x: Any, start: int, end: int) -> Any:
    """x[:, start:end] of a matrix."""
    return node("Slice", (x, constant(start), constant(end), constant(1)))


MOST_BOXES = 2**31 - 1


@translates("torchvision::nms")
def nms(boxes: Any, scores: Any, threshold: float) -> Any:
    """Places of the boxes that stay, by falling score; corners may come in the order x, y as well as y, x."""
    batch = node("Unsqueeze", (boxes, constant(0))), node("Unsqueeze", (scores, constant(0, 1)))
    found = node("NonMaxSuppression", (*batch, constant(MOST_BOXES), constant(float(threshold))))
    return node("Reshape", (columns(found, 2, 3), constant(-1)))


@translates("torchvision::roi_align")
def roi_align(
    x: Any, rois: Any, scale: float, height: int, width: int, sampling_ratio: int = -1, aligned: bool = False
) -> Any:
    """Rows of `rois` are [picture, x1, y1, x2, y2]."""
    picture = node("Cast", (node("Reshape", (columns(rois, 0, 1), constant(-1))),), to=7)  # TensorProto.INT64
    return node(
        "RoiAlign", (x, columns(rois, 1, 5), picture), spatial_scale=float(scale), output_height=height,
        output_width=width, sampling_ratio=max(sampling_ratio, 0),
        coordinate_transformation_mode="half_pixel" if aligned else "output_half_pixel",
    )  # fmt: skip
