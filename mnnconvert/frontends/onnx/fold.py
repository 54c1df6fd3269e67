"""Col2Im of any number of axes, and of image and block shapes that only a run knows.

Every element of the image is the sum of those elements of the columns that lie over it: of one per element of the
block, where the window that would put it there exists.
"""

from __future__ import annotations

from mnnconvert.frontends.common.compose import calc, cast, chain
from mnnconvert.frontends.common.run_time import count_up, element, scalar_size, spread, vector_of
from mnnconvert.frontends.onnx.node import OnnxNode
from mnnconvert.frontends.onnx.spatial import vector
from mnnconvert.ir import F32, Builder, Value
from mnnconvert.ops.arrange import Concat
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.reduction import Reduction
from mnnconvert.ops.shape import Reshape


def columns_to_image(b: Builder, n: OnnxNode, count: int) -> Value:
    """Col2Im over `count` axes: x [N, C * block, columns] becomes [N, C, *image]."""
    x = n.input(0)
    image, block = ([element(b, n.input(i), axis) for axis in range(count)] for i in (1, 2))
    pixels, elements = chain(b, "MUL", image), chain(b, "MUL", block)
    place, inside = _sources(b, n, image, block)
    columns = scalar_size(b, x, 2)
    own = calc(b, "MUL", spread(b, count_up(b, elements), 0, 2), columns)
    flat = calc(b, "MUL", calc(b, "ADD", own, place), inside)
    minus = b.ints(-1)
    rows = b.add(Reshape(), x, vector_of(b, [scalar_size(b, x, 0), minus, calc(b, "MUL", elements, columns)]))
    picked = b.add(GatherV2(), rows, b.add(Reshape((-1,)), flat), b.ints(2))
    picked = b.add(Reshape(), picked, vector_of(b, [scalar_size(b, x, 0), minus, elements, pixels]))
    total = b.add(Reduction("SUM", (2,), False), calc(b, "MUL", picked, cast(b, inside, F32)))
    return b.add(Reshape(), total, b.add(Concat(0), vector_of(b, [scalar_size(b, x, 0), minus]), vector_of(b, image)))


def _sources(b: Builder, n: OnnxNode, image: list[Value], block: list[Value]) -> tuple[Value, Value]:
    """For every element of the block and of the image [block, image]: the column that it is in, and if there is one."""
    count = len(image)
    strides, dilations = (vector(n, name, count, 1) for name in ("strides", "dilations"))
    pads = vector(n, "pads", 2 * count, 0)
    pixel, part = count_up(b, chain(b, "MUL", image)), count_up(b, chain(b, "MUL", block))
    place, inside, windows = None, None, b.ints(1)
    for axis in reversed(range(count)):
        at = spread(b, calc(b, "MOD", pixel, image[axis]), 1, 2)
        offset = calc(b, "MUL", spread(b, calc(b, "MOD", part, block[axis]), 0, 2), dilations[axis])
        pixel, part = calc(b, "FLOORDIV", pixel, image[axis]), calc(b, "FLOORDIV", part, block[axis])
        start = calc(b, "SUB", calc(b, "ADD", at, pads[axis]), offset)
        window = calc(b, "FLOORDIV", start, strides[axis])
        extent = calc(b, "MUL", calc(b, "SUB", block[axis], 1), dilations[axis])
        spare = calc(b, "SUB", calc(b, "ADD", image[axis], pads[axis] + pads[axis + count] - 1), extent)
        fits = calc(b, "ADD", calc(b, "FLOORDIV", spare, strides[axis]), 1)
        exact = calc(b, "EQUAL", calc(b, "MUL", window, strides[axis]), start)
        held = calc(b, "MUL", calc(b, "GREATER_EQUAL", window, 0), calc(b, "LESS", window, fits))
        held = calc(b, "MUL", held, exact)
        term = calc(b, "MUL", window, windows)
        place = term if place is None else calc(b, "ADD", place, term)
        inside = held if inside is None else calc(b, "MUL", inside, held)
        windows = calc(b, "MUL", windows, fits)
    if place is None or inside is None:
        raise n.refuse("Col2Im of an image without axes")
    return place, inside
