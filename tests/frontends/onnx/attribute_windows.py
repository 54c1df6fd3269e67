"""Random windows and resizes: pooling, convolution and Resize with every attribute."""

from __future__ import annotations

from typing import Any

import numpy as np
from attribute_dice import Case, Dice, Operand

# Pooling and convolution -------------------------------------------------------------------------------------------


def _windows(d: Dice, dilated: bool, deep: bool = False) -> tuple[list[int], list[int], dict[str, Any]]:
    """Sizes of an image, of a kernel that fits in it, and the attributes of the window."""
    count = d.number(1, 3)
    sizes, kernel = d.numbers(count, 1, 7), d.numbers(count, 1, 3)
    strides = d.numbers(count, 1, 3) if d.chance(2) else [1] * count
    auto = d.pick("NOTSET", "NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
    # onnxruntime refuses padding SAME of dilated kernels, or does not reach the size that the standard states
    if auto[:4] == "SAME" and not deep:  # where it would have to crop it does
        strides = [min(s, k) for s, k in zip(strides, kernel, strict=True)]
    dilations = d.numbers(count, 1, 2) if dilated and auto[:4] != "SAME" and d.chance(3) else [1] * count
    extent = [(k - 1) * r + 1 for k, r in zip(kernel, dilations, strict=True)]
    attributes: dict[str, Any] = {} if auto == "NOTSET" and d.chance(2) else {"auto_pad": auto}
    pads = [d.number(0, e if deep else k - 1) for _ in range(2) for k, e in zip(kernel, extent, strict=True)]
    if auto == "NOTSET" and d.chance(2):
        attributes["pads"] = pads
    ends = zip(attributes.get("pads", [0] * count), attributes.get("pads", [0] * 2 * count)[count:], strict=False)
    sizes = [max(s, e - p - q) for s, e, (p, q) in zip(sizes, extent, ends, strict=True)]
    attributes |= {"strides": strides} if max(strides) > 1 or d.chance(2) else {}
    attributes |= {"dilations": dilations} if max(dilations) > 1 or (dilated and d.chance(4)) else {}
    return sizes, kernel, attributes


def _image(d: Dice, channels: int, sizes: list[int]) -> list[int]:
    return [0 if d.chance(30) else d.number(1, 2), channels, *sizes]


def pool(d: Dice) -> Case:
    op = d.pick("MaxPool", "AveragePool", "LpPool")
    opset = d.pick(*{"MaxPool": (8, 10, 11, 12, 22), "AveragePool": (7, 10, 11, 19, 22), "LpPool": (2, 11, 18, 22)}[op])
    dilated = opset >= {"MaxPool": 10, "AveragePool": 19, "LpPool": 18}[op]
    sizes, kernel, attributes = _windows(d, dilated)
    attributes["kernel_shape"] = kernel
    if dilated or (op == "AveragePool" and opset >= 10):
        # with VALID the standard does not round up, onnxruntime does
        attributes |= {"ceil_mode": 1} if d.chance(3) and attributes.get("auto_pad") != "VALID" else {}
    if op == "AveragePool":
        attributes |= {"count_include_pad": 1} if d.chance(2) else {}
    if op == "LpPool" and d.chance(2):
        attributes["p"] = d.number(1, 3)
    narrow = " int8 uint8 float64" if op == "MaxPool" and opset >= 12 else ""
    kind = d.kind("float32 float32" + " float16" * (opset > 6) + narrow)
    shape, indices = _image(d, d.number(1, 3), sizes), op == "MaxPool" and len(sizes) < 3 and d.chance(4)
    if indices:
        attributes |= {"storage_order": 1} if d.chance(2) else {}
        return Case(op, opset, (Operand(d.distinct(shape)),), attributes, 2, d.opened())
    return Case(op, opset, (Operand(d.array(shape, kind)),), attributes, 1, d.opened())


def conv(d: Dice) -> Case:
    sizes, kernel, attributes = _windows(d, dilated=True, deep=True)
    group, inside, outside = d.pick(1, 1, 2, 3), d.number(1, 3), d.number(1, 3)
    attributes |= {"group": group} if group > 1 else {}
    attributes |= {"kernel_shape": kernel} if d.chance(2) else {}
    image, weight = _image(d, group * inside, sizes), [group * outside, inside, *kernel]
    return _weighted(d, "Conv", attributes, image, weight, group * outside)


def _weighted(d: Dice, op: str, attributes: dict, image: list[int], weight: list[int], out: int) -> Case:
    opset = d.pick(1, 11, 22)
    kind = d.kind("float32" if opset < 11 else "float32 float32 float32 float16")
    bias = (Operand(d.array([out], kind), not d.chance(8)),) if d.chance(2) else ()
    operands = (Operand(d.array(image, kind)), Operand(d.array(weight, kind, -8, 8), not d.chance(8)), *bias)
    return Case(op, opset, operands, attributes, 1, d.opened())


def conv_transpose(d: Dice) -> Case:
    sizes, kernel, attributes = _windows(d, dilated=True)
    group, inside, outside = d.pick(1, 1, 2, 3), d.number(1, 3), d.number(1, 3)
    count = len(sizes)
    strides, dilations = attributes.get("strides", [1] * count), attributes.get("dilations", [1] * count)
    if d.chance(3):
        attributes["output_padding"] = [d.number(0, max(s, r) - 1) for s, r in zip(strides, dilations, strict=True)]
    if "pads" not in attributes and d.chance(5):
        full = [(n - 1) * s + (k - 1) * r + 1
                for n, s, k, r in zip(sizes, strides, kernel, dilations, strict=True)]  # fmt: skip
        attributes["output_shape"] = [max(1, f - d.number(0, k - 1)) for f, k in zip(full, kernel, strict=True)]
    attributes |= {"group": group} if group > 1 else {}
    attributes |= {"kernel_shape": kernel} if d.chance(2) else {}
    image, weight = _image(d, group * inside, sizes), [group * inside, outside, *kernel]
    return _weighted(d, "ConvTranspose", attributes, image, weight, group * outside)


# Resize ------------------------------------------------------------------------------------------------------------

TRANSFORMS = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "tf_half_pixel_for_nn")
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
SCALES = (1.0, 2.0, 0.5, 3.0, 1.5, 0.75, 0.6, 2.5, 0.3, 1.7)


def _moved(d: Dice, mode: str, rank: int) -> list[int]:
    """The axes that onnxruntime resizes in this mode."""
    if mode == "nearest":
        return d.subset(rank, 1)
    last = 2 if mode == "cubic" or rank < 5 else 3
    return list(range(max(0, rank - last), rank))


def resize(d: Dice) -> Case:
    opset, mode = d.pick(10, 11, 13, 18, 19), d.pick("nearest", "linear", "cubic")
    mode = "linear" if opset == 10 and mode == "cubic" else mode
    rank = d.number(1, 5) if mode == "nearest" else d.pick(2, 4) if mode == "cubic" else d.pick(2, 3, 4, 5)
    sizes, moved = d.numbers(rank, 1, 5), sorted(_moved(d, mode, rank))
    moved = [2] if rank == 3 and d.chance(2) else moved
    kind = d.kind("float32 float32 float16 int32 uint8 int8" if mode == "nearest" else "float32 float32 float16")
    x = Operand(d.array(sizes, kind))
    by_sizes = opset > 10 and d.chance(2)
    scales = [d.pick(*(s for s in SCALES if sizes[i] * s >= 1)) if i in moved else 1.0 for i in range(rank)]
    outs = [d.number(1, 8) if i in moved else sizes[i] for i in range(rank)]
    attributes = {"mode": mode, **(_sampling(d, mode, opset) if opset > 10 else {})}
    axes = list(range(rank))
    if opset >= 18 and d.chance(3):
        axes = moved
        attributes["axes"] = [d.signed(a, rank) for a in axes]
    if by_sizes and opset >= 18 and len(axes) <= len(moved) and d.chance(2):
        attributes["keep_aspect_ratio_policy"] = d.pick("stretch", "not_larger", "not_smaller")
        attributes |= {"axes": axes} if "axes" in attributes else {}  # onnxruntime leaves out axes from the end
    given = d.parameter([outs[a] for a in axes]) if by_sizes else d.parameter([scales[a] for a in axes], "f4")
    if not given.stored and rank in (3, 4) and min(moved) < 2:
        given = Operand(given.array, True)  # batch and channels are taken to stay where sizes are computed
    if opset == 10:
        return Case("Resize", 10, (x, given), attributes, 1, d.opened())
    roi = None if opset >= 13 else Operand(np.zeros(0, np.float32), True)
    if attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        changed = [outs[a] != sizes[a] if by_sizes else scales[a] != 1 for a in axes]  # or onnxruntime does not crop
        roi = Operand(np.float32(_region(d, changed)), True)
    empty = () if not by_sizes else (None,) if opset >= 13 else (Operand(np.zeros(0, np.float32), True),)
    return Case("Resize", opset, (x, roi, *empty, given), attributes, 1, d.opened())


def _sampling(d: Dice, mode: str, opset: int) -> dict[str, Any]:
    names = [*TRANSFORMS[: 5 if opset < 13 else 4], "tf_crop_and_resize", *(["half_pixel_symmetric"] * (opset >= 19))]
    result: dict[str, Any] = {"coordinate_transformation_mode": d.pick(*names)} if d.chance(2) else {}
    if mode == "nearest":
        return result | ({"nearest_mode": d.pick(*ROUNDINGS)} if d.chance(2) else {})
    if mode == "cubic":
        result |= {"cubic_coeff_a": d.pick(-0.75, -0.5)} if d.chance(3) else {}
        result |= {"exclude_outside": 1} if d.chance(3) else {}
    if opset >= 18 and d.chance(4):
        result["antialias"] = 1
    return result | ({"extrapolation_value": d.pick(0.0, 10.0)} if d.chance(2) else {})


def _region(d: Dice, moved: list[bool]) -> list[float]:
    """Starts and ends of what is shown of each axis; no sample lies exactly between rows, or on the border."""
    starts = [d.number(-2, 5) / 10 + 0.017 if m else 0.0 for m in moved]
    return starts + [s + d.number(2, 9) / 10 + 0.0041 if m else 1.0 for s, m in zip(starts, moved, strict=True)]
