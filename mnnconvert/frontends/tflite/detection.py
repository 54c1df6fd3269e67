"""Import rule of the custom operator with which detectors turn anchors into boxes."""

from __future__ import annotations

from typing import Any

import numpy as np

from mnnconvert.frontends.common.compose import apply, calc, cast, reshape
from mnnconvert.frontends.common.moves import reduced, sliced, squeezed, unsqueezed
from mnnconvert.frontends.common.run_time import count_up, scalar
from mnnconvert.frontends.tflite.model import BAD, MISTAKES
from mnnconvert.frontends.tflite.node import TfliteNode
from mnnconvert.frontends.tflite.registry import tflite_op
from mnnconvert.ir import F32, Builder, Value
from mnnconvert.ops.arrange import Concat
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.reduction import ArgMax
from mnnconvert.ops.scatter import ScatterNd
from mnnconvert.ops.search import NonMaxSuppressionV2
from mnnconvert.ops.shape import ShapeOf


def flexbuffer(n: TfliteNode) -> dict[str, Any]:
    """The options of a custom operator, which are a map by name."""
    from flatbuffers import flexbuffers

    try:
        options = flexbuffers.Loads(bytearray(n.operator.custom_options))
    except MISTAKES as error:
        raise n.refuse(f"the options of {n.op} cannot be read: {error}", reference=BAD) from error
    if not isinstance(options, dict):
        raise n.refuse(f"the options of {n.op} are no map", reference=BAD)
    return options


def decoded_boxes(b: Builder, codes: Value, anchors: Value, scales: dict[str, float]) -> Value:
    """[n, (y, x, h, w)] relative to anchors as corners [n, (ymin, xmin, ymax, xmax)]."""
    y, x, h, w = (sliced(b, codes, 1, i, i + 1) for i in range(4))
    ay, ax, ah, aw = (sliced(b, anchors, 1, i, i + 1) for i in range(4))
    corners: list[list[Value]] = []
    for centre, size, a, extent, axis in ((y, h, ay, ah, "y"), (x, w, ax, aw, "x")):
        middle = calc(b, "ADD", calc(b, "MUL", calc(b, "REALDIV", centre, scales[axis]), extent), a)
        scale = scales["h" if axis == "y" else "w"]
        half = calc(b, "MUL", calc(b, "MUL", apply(b, "EXP", calc(b, "REALDIV", size, scale)), extent), 0.5)
        corners.append([calc(b, "SUB", middle, half), calc(b, "ADD", middle, half)])
    return b.add(Concat(1), corners[0][0], corners[1][0], corners[0][1], corners[1][1])


@tflite_op("TFLite_Detection_PostProcess", custom=True, limits="one class for each box; fast suppression")
def detection_postprocess(b: Builder, n: TfliteNode) -> tuple[Value, ...]:
    """Boxes [1,m,4], classes [1,m], scores [1,m] and how many, filled up with zeros to the largest number m.

    Every anchor stands for its best class; the boxes of all classes suppress each other.
    """
    options = flexbuffer(n)
    most, classes = int(options.get("max_detections", 0)), int(options.get("num_classes", 0))
    if int(options.get("max_classes_per_detection", 1)) != 1 or options.get("use_regular_nms", False):
        raise n.refuse(f"{n.op} with several classes for a box, or suppression by class, is not supported")
    if most < 1 or classes < 1:
        raise n.refuse(f"{n.op} gives {most} boxes of {classes} classes", reference=BAD)
    scales = {axis: float(options.get(f"{axis}_scale", 1.0)) for axis in "yxhw"}
    codes, every = (squeezed(b, n.input(i), 0) for i in (0, 1))
    boxes = decoded_boxes(b, codes, n.input(2), scales)
    count = every.shape[1] if every.shape else None
    if not isinstance(count, int):
        raise n.refuse(f"{n.op} needs the number of classes to be known")
    every = sliced(b, every, 1, count - classes)
    best = reduced(b, "MAXIMUM", every, 1, keep=False)
    least = np.nextafter(np.float32(options.get("nms_score_threshold", 0.0)), np.float32(-np.inf))
    limits = b.ints(most), b.floats(options.get("nms_iou_threshold", 0.5)), b.floats(least)
    kept = b.add(NonMaxSuppressionV2(), boxes, best, *limits)
    number = b.add(ShapeOf(), kept)
    places = reshape(b, count_up(b, scalar(b, number)), (-1, 1))
    results = []
    for table in (boxes, cast(b, b.add(ArgMax(1), every), F32), best):
        rows = b.add(GatherV2(), table, kept, b.ints(0))
        shape = (most, *(d for d in (table.shape or ())[1:] if isinstance(d, int)))
        filled = b.add(ScatterNd(), places, rows, b.ints(shape), b.floats(np.zeros(shape)))
        results.append(unsqueezed(b, filled, 0))
    return (*results, cast(b, number, F32))
