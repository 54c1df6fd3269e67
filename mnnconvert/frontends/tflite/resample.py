"""Import rules of resizing, and of blocks of pixels."""

from __future__ import annotations

from mnnconvert.frontends.common import channels_last as planes
from mnnconvert.frontends.common.channels_last import channels_first, channels_last
from mnnconvert.frontends.tflite.node import TfliteNode
from mnnconvert.frontends.tflite.registry import tflite_op
from mnnconvert.ir import Builder, Value
from mnnconvert.ops.vision import DepthToSpace, SpaceToDepth


def _flags(n: TfliteNode) -> tuple[bool, bool]:
    """Whether corners are aligned, and whether the centers of pixels are."""
    return bool(n.option("AlignCorners", False)), bool(n.option("HalfPixelCenters", False))


@tflite_op("RESIZE_BILINEAR")
def resize_bilinear(b: Builder, n: TfliteNode) -> Value:
    return planes.resized_bilinear(b, n, n.input(0), n.input(1), *_flags(n))


@tflite_op("RESIZE_NEAREST_NEIGHBOR", moves=True, limits="aligned corners need known sizes")
def resize_nearest(b: Builder, n: TfliteNode) -> Value:
    return planes.resized_nearest(b, n, n.input(0), n.input(1), n.constant(1), *_flags(n))


@tflite_op("DEPTH_TO_SPACE", moves=True)
def depth_to_space(b: Builder, n: TfliteNode) -> Value:
    return channels_last(b, b.add(DepthToSpace(int(n.option("BlockSize", 1))), channels_first(b, n, n.input(0))))


@tflite_op("SPACE_TO_DEPTH", moves=True)
def space_to_depth(b: Builder, n: TfliteNode) -> Value:
    return channels_last(b, b.add(SpaceToDepth(int(n.option("BlockSize", 1))), channels_first(b, n, n.input(0))))


@tflite_op("SPACE_TO_BATCH_ND", moves=True, limits="blocks and sizes must be known")
def space_to_batch(b: Builder, n: TfliteNode) -> Value:
    return planes.space_to_batch(b, n, n.input(0), n.ints(1, "the blocks"), n.ints(2, "the pads"))


@tflite_op("BATCH_TO_SPACE_ND", moves=True, limits="blocks and sizes must be known")
def batch_to_space(b: Builder, n: TfliteNode) -> Value:
    return planes.batch_to_space(b, n, n.input(0), n.ints(1, "the blocks"), n.ints(2, "the crops"))
