"""Import rules that change the size of images."""

from __future__ import annotations

from mnnconvert.frontends.caffe.node import CaffeNode, Params
from mnnconvert.frontends.caffe.pooling import unpooled
from mnnconvert.frontends.caffe.registry import caffe_op
from mnnconvert.frontends.common.moves import sliced
from mnnconvert.ir import Builder, Value
from mnnconvert.ops.resample import LINEAR, NEAREST, Interp


@caffe_op("Interp")
def interp(b: Builder, n: CaffeNode) -> Value:
    """Bilinear, corner pixels on corner pixels; pads, which are not positive, cut the image first.

    The size is given, that of a second operand, or made by a factor (s - 1) * zoom - zoom + s or (s - 1) / shrink + 1.
    """
    n.takes(1, 2)
    p, x = n.params("interp_param"), n.input()
    begin, end = p.integer("pad_beg", 0), p.integer("pad_end", 0)
    height, width = n.sizes(x, 2, 4)
    if begin > 0 or end > 0 or min(height, width) + begin + end < 1:
        raise n.refuse(f"Interp with pads of {begin} and {end} around {height} x {width}")
    if begin or end:
        x = sliced(b, sliced(b, x, 2, -begin, height + end), 3, -begin, width + end)
    out = [_resized(n, p, size + begin + end, name) for size, name in ((height, "height"), (width, "width"))]
    if n.input_count == 2:
        out = list(n.sizes(n.input(1), 2, 4))
    return b.add(Interp(LINEAR, "AlignCorners", out_width=out[1], out_height=out[0]), x)


def _resized(n: CaffeNode, p: Params, size: int, name: str) -> int:
    given, zoom, shrink = p.integer(name, 0), p.integer("zoom_factor", 1), p.integer("shrink_factor", 1)
    if min(given, zoom - 1, shrink - 1) < 0:
        raise n.refuse(f"Interp to {name} {given}, zoom_factor {zoom}, shrink_factor {shrink}")
    size = (size - 1) // shrink + 1
    return given or size + (size - 1) * (zoom - 1)


@caffe_op("Upsample", limits="whole factors")
def upsample(b: Builder, n: CaffeNode) -> Value:
    """Pixels repeated; with a second operand, of places, maxima put back where they were before pooling."""
    n.takes(1, 2)
    p, x = n.params("upsample_param"), n.input()
    height, width = n.sizes(x, 2, 4)
    scale = p.integer("scale", 2)
    down, across = p.integer("scale_h", scale), p.integer("scale_w", scale)
    cut_h, cut_w = (int(p.flag(f"pad_out_{letter}", False)) for letter in "hw")
    sizes = p.integer("upsample_h", height * down - cut_h), p.integer("upsample_w", width * across - cut_w)
    if n.input_count == 2:
        return unpooled(b, n, x, n.input(1), sizes)
    if sizes != (height * down, width * across) or min(down, across) < 1:
        raise n.refuse(f"Upsample of {height} x {width} to {sizes[0]} x {sizes[1]}")
    return b.add(Interp(NEAREST, "Asymmetric", out_width=sizes[1], out_height=sizes[0]), x)
