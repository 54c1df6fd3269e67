"""Pooling of planes and volumes."""

from __future__ import annotations

from typing import Any

import numpy as np

from mnnconvert.ir.types import I8, I32, Dim, Spec, add, ceildiv, floordiv
from mnnconvert.ops.base import Emission, Fields, Form, Op, register
from mnnconvert.ops.convolution import Pads, Pair, parse_pads
from mnnconvert.ops.samples import Operand, grid, integers
from mnnconvert.ops.windows import Ints, covered, fold_windows, pad_spatial, positive, same_pads

KINDS = ("MAXPOOL", "AVEPOOL")


def pool_out(size: Dim, kernel: int, stride: int, pads: int, ceil: bool) -> Dim:
    """floor or ceil of (size + pads - kernel) / stride, plus one."""
    rest = add(size, pads - kernel)
    out = add(ceildiv(rest, stride) if ceil else floordiv(rest, stride), 1)
    if isinstance(out, int) and out < 1:
        raise ValueError(f"the window of {kernel} does not fit the padded input of {add(size, pads)}")
    return out


def pooled(x: np.ndarray, kind: str, kernel: Ints, strides: Ints, begin: Ints, out: Ints, margin: Ints) -> np.ndarray:
    """Maximum, or mean, over windows; the mean divides by what a window covers of the image widened by `margin`."""
    sizes = x.shape[2:]
    end = [(o - 1) * s + k - b - size for o, s, k, b, size in zip(out, strides, kernel, begin, sizes, strict=True)]
    if kind == "MAXPOOL":
        lowest = float(np.finfo(np.float32).min) if x.dtype.kind == "f" else np.iinfo(x.dtype).min
        return fold_windows(np.maximum, pad_spatial(x, begin, end, lowest), kernel, strides, out)
    if x.dtype == I8:
        return _mean_of_codes(x, kernel, strides, begin, out)
    total = fold_windows(np.add, pad_spatial(x, begin, end), kernel, strides, out)
    total /= covered(sizes, kernel, strides, begin, out, margin)
    return total


def _mean_of_codes(x: np.ndarray, kernel: Ints, strides: Ints, begin: Ints, out: Ints) -> np.ndarray:
    """((sum of code + 128) * floor(2^24 / count) >> 24) - 128 over the elements of the image: as MNN 3.6.1 divides."""
    sizes = x.shape[2:]
    end = [(o - 1) * s + k - b - size for o, s, k, b, size in zip(out, strides, kernel, begin, sizes, strict=True)]
    total = fold_windows(np.add, pad_spatial(x.astype(np.int64) + 128, begin, end), kernel, strides, out)
    count = covered(sizes, kernel, strides, begin, out, (0,) * len(sizes)).astype(np.int64)
    return ((total * ((1 << 24) // count) >> 24) - 128).astype(I8)


def positions(x: np.ndarray, kernel: Pair, strides: Pair, begin: Pair, out: Pair) -> np.ndarray:
    """Where the maximum of each window lies in its plane, as row * W + column; the first of equal ones."""
    (_, width), (sy, sx), (top, left) = x.shape[2:], strides, begin
    end = [
        (o - 1) * s + k - b - size for o, s, k, b, size in zip(out, strides, kernel, begin, x.shape[2:], strict=True)
    ]
    padded = pad_spatial(x, begin, end, -np.inf)
    rows, columns = np.arange(out[0])[:, None] * sy - top, np.arange(out[1]) * sx - left
    best = np.full((*x.shape[:2], *out), -np.inf, np.float32)
    found = np.broadcast_to(np.maximum(rows, 0) * width + np.maximum(columns, 0), best.shape).astype(np.int32)
    for ky in range(kernel[0]):
        for kx in range(kernel[1]):
            part = padded[:, :, ky : ky + (out[0] - 1) * sy + 1 : sy, kx : kx + (out[1] - 1) * sx + 1 : sx]
            better = part > best
            np.copyto(best, part, where=better)
            np.copyto(
                found, np.broadcast_to((rows + ky) * width + columns + kx, found.shape), where=better, casting="unsafe"
            )
    return found


def _codes(low: int, high: int) -> Operand:
    return integers(2, 3, 7, 6, low=low, high=high, dtype="int8")


@register()
class Pooling(Op):
    """Maximum or mean over windows of x [N,C,H,W]; the maximum ignores padding.

    `pads` (top, left, bottom, right) hold for `pad_mode` CAFFE, where `ceil` rounds the output size up, even if the
    last window then starts in the padding. SAME: out = ceil(in/s), the smaller half of the pads first. The window is
    first limited to the padded size. `whole` pools the whole plane. A mean with `count` EXCLUDE_PADDING divides by the
    real elements of the window; INCLUDE_PADDING also counts those within the top (left) pad on either side.
    A mean of int8 codes divides by the real elements alone, rounds towards -infinity, and may be one less than that.
    With `indices` there is a second result, int32: the position of the maximum in its plane, row * W + column.
    """

    function: str = "MAXPOOL"
    kernel: Pair = (1, 1)
    strides: Pair = (1, 1)
    pads: Pads = (0, 0, 0, 0)
    pad_mode: str = "CAFFE"
    ceil: bool = False
    count: str = "EXCLUDE_PADDING"
    whole: bool = False
    indices: bool = False

    form = Form("Pooling", "Pool")
    layout = "c4"

    def infer(self, x: Spec) -> Spec | tuple[Spec, ...]:
        if x.shape is not None and len(x.shape) != 4:
            raise ValueError("2-D pooling needs x of rank 4")
        n, c, *sizes = x.shape or (None,) * 4
        result = Spec(x.dtype, (n, c, *(self._out(i, size) for i, size in enumerate(sizes))))
        return (result, Spec(I32, result.shape)) if self.indices else result

    def window(self, axis: int, size: int) -> tuple[int, int, int, int]:
        """Kernel, stride, pad in front and output size along one axis."""
        if self.whole:
            return size, 1, 0, 1
        kernel, stride = self.kernel[axis], self.strides[axis]
        if self.pad_mode == "SAME":
            kernel = min(kernel, size)
            return kernel, stride, same_pads(size, kernel, stride)[0], -(-size // stride)
        begin = self.pads[axis]
        kernel = min(kernel, size + begin + self.pads[axis + 2])
        return kernel, stride, begin, int(self._out(axis, size))  # type: ignore[arg-type]

    def _out(self, axis: int, size: Dim) -> Dim:
        if self.whole:
            return 1
        if self.pad_mode == "SAME":
            return ceildiv(size, self.strides[axis])
        pads = self.pads[axis] + self.pads[axis + 2]
        kernel = min(self.kernel[axis], size + pads) if isinstance(size, int) else self.kernel[axis]
        return pool_out(size, kernel, self.strides[axis], pads, self.ceil)

    def ref(self, x: np.ndarray) -> Any:
        kernel, strides, begin, out = zip(*(self.window(i, x.shape[i + 2]) for i in (0, 1)), strict=True)
        margin = begin if self.count == "INCLUDE_PADDING" else (0, 0)
        y = pooled(x, self.function, kernel, strides, begin, out, margin)
        return (y, positions(x, kernel, strides, begin, out)) if self.indices else y

    def for_results(self, count: int) -> Pooling:
        """The op when it is known to have `count` results."""
        return Pooling(**{**self.__dict__, "indices": count > 1})

    def emit(self, x: Spec) -> Emission:
        fields: dict[str, Any] = {
            "type": self.function,
            "kernelX": self.kernel[1],
            "kernelY": self.kernel[0],
            "strideX": self.strides[1],
            "strideY": self.strides[0],
            "padType": self.pad_mode,
            "ceilModel": self.ceil,
            "countType": self.count,
            "isGlobal": self.whole,
        }
        if self.pad_mode == "CAFFE":
            fields |= {"pads": list(self.pads), "padX": self.pads[1], "padY": self.pads[0]}
        return Emission("Pooling", "Pool", fields)

    @classmethod
    def parse(cls, type: str, fields: Fields) -> Pooling:
        mode, count, whole = fields["padType"], fields["countType"], bool(fields["isGlobal"])
        if count == "DEFAULT":
            count = "INCLUDE_PADDING" if mode == "CAFFE" and fields.get("pads") is None else "EXCLUDE_PADDING"
        kernel, strides = (fields["kernelY"], fields["kernelX"]), (fields["strideY"], fields["strideX"])
        if whole:  # what the window would be is of no consequence
            strides = max(1, strides[0]), max(1, strides[1])
        else:
            positive(*kernel, *strides)
        return cls(
            function=fields["type"],
            kernel=kernel,
            strides=strides,
            pads=parse_pads(fields) if mode == "CAFFE" else (0, 0, 0, 0),
            pad_mode="SAME" if mode == "SAME" else "CAFFE",
            ceil=bool(fields["ceilModel"]) and mode == "CAFFE",
            count=count,
            whole=whole,
        )

    samples = (
        grid(
            x=[(1, 2, 7, 6)],
            function=list(KINDS),
            kernel=[(3, 2), (1, 1)],
            strides=[(2, 2), (1, 3)],
            pads=[(0, 0, 0, 0), (1, 0, 1, 0)],
            ceil=[False, True],
        )
        + grid(
            x=[(2, 2, 7, 6)],
            function=["AVEPOOL"],
            kernel=[(3, 3)],
            strides=[(2, 2)],
            pads=[(1, 1, 1, 1), (1, 0, 0, 1)],
            ceil=[False, True],
            count=["INCLUDE_PADDING", "EXCLUDE_PADDING"],
        )
        + grid(x=[(2, 2, 7, 6)], function=list(KINDS), kernel=[(3, 2)], strides=[(2, 1)], pad_mode=["SAME"])
        + grid(x=[(2, 2, 7, 6)], function=list(KINDS), whole=[True])
        + grid(x=[(1, 2, 3, 6)], function=["MAXPOOL"], kernel=[(5, 2)], strides=[(2, 2)])
        + grid(x=[_codes(0, 128)], function=["MAXPOOL"], kernel=[(3, 2)], strides=[(2, 1)], pads=[(1, 0, 1, 0)])
        + grid(x=[_codes(-128, 128)], function=["AVEPOOL"], kernel=[(3, 3), (2, 2)], strides=[(2, 1)], pads=[(1,) * 4])
        + grid(x=[_codes(-128, 128)], function=["AVEPOOL"], whole=[True])
    )  # MNN 3.6.1 takes the wrong maximum where codes have both signs


@register()
class Pooling3D(Op):
    """Maximum or mean over windows of x [N,C,D,H,W] with symmetric pads; neither sees the padding.

    `whole` pools everything behind the channels, whatever the rank.
    """

    function: str = "MAXPOOL"
    kernel: Ints = (1, 1, 1)
    strides: Ints = (1, 1, 1)
    pads: Ints = (0, 0, 0)
    pad_mode: str = "CAFFE"
    whole: bool = False

    form = Form(
        "Pooling3D",
        "Pool3D",
        {
            "function": "type",
            "kernel": "kernels",
            "strides": "strides",
            "pads": "pads",
            "pad_mode": "padType",
            "whole": "isGlobal",
        },
    )
    layout = "c4"

    def infer(self, x: Spec) -> Spec:
        if x.shape is None:
            return Spec(x.dtype)
        n, c, *sizes = x.shape
        if self.whole:
            return Spec(x.dtype, (n, c, *(1 for _ in sizes)))
        if len(sizes) != 3:
            raise ValueError("3-D pooling needs x of rank 5")
        return Spec(x.dtype, (n, c, *(self._out(i, size) for i, size in enumerate(sizes))))

    def _out(self, axis: int, size: Dim) -> Dim:
        if self.pad_mode == "SAME":
            return ceildiv(size, self.strides[axis])
        return pool_out(size, self.kernel[axis], self.strides[axis], 2 * self._pads()[axis], False)

    def _pads(self) -> Ints:
        return self.pads if self.pad_mode == "CAFFE" and self.pads else (0, 0, 0)

    def ref(self, x: np.ndarray) -> np.ndarray:
        if self.whole:
            axes = tuple(range(2, x.ndim))
            return (
                x.max(axes, keepdims=True)
                if self.function == "MAXPOOL"
                else x.mean(axes, keepdims=True, dtype=np.float32)
            )
        out: Any = tuple(self._out(i, size) for i, size in enumerate(x.shape[2:]))
        begin = self._pads()
        if self.pad_mode == "SAME":
            begin = tuple(same_pads(*p)[0] for p in zip(x.shape[2:], self.kernel, self.strides, strict=True))
        return pooled(x, self.function, self.kernel, self.strides, begin, out, (0, 0, 0))

    samples = grid(
        x=[(1, 2, 5, 6, 7)],
        function=list(KINDS),
        kernel=[(2, 3, 3)],
        strides=[(1, 1, 1), (2, 1, 2)],
        pads=[(0, 0, 0), (1, 1, 1)],
        pad_mode=["CAFFE", "SAME"],
    ) + grid(x=[(1, 2, 5, 6, 7), (1, 2, 5, 6)], function=list(KINDS), whole=[True])
