"""Memory layout of values: conversion between layouts, and the copy that changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from mnnconvert.ir.types import Spec
from mnnconvert.ops.base import Form, Op, register
from mnnconvert.ops.samples import grid

CHANNEL_FIRST = ("NCHW", "NC4HW4")


def axis_order(source: str, dest: str, rank: int) -> tuple[int, ...]:
    """Axis order of the result in terms of the operand; the identity between channel-first layouts."""
    if rank < 3 or source == dest or (source in CHANNEL_FIRST) == (dest in CHANNEL_FIRST):
        return tuple(range(rank))
    if dest in CHANNEL_FIRST:
        return (0, rank - 1, *range(1, rank - 1))
    return (0, *range(2, rank), 1)


@register()
class ConvertTensor(Op):
    """The same values in another layout: NCHW, NHWC, or NC4HW4, which is stored in blocks but is read as NCHW."""

    source: str = "NCHW"
    dest: str = "NC4HW4"

    form = Form("ConvertTensor", "TensorConvertInfo", {"source": "source", "dest": "dest"})

    def infer(self, x: Spec) -> Spec:
        if x.shape is None:
            return Spec(x.dtype)
        return Spec(x.dtype, tuple(x.shape[i] for i in axis_order(self.source, self.dest, len(x.shape))))

    def ref(self, x: np.ndarray) -> np.ndarray:
        return np.transpose(x, axis_order(self.source, self.dest, x.ndim))

    samples = grid(x=[(2, 3, 4, 5), (2, 3)], source=["NCHW", "NHWC"], dest=["NC4HW4", "NHWC", "NCHW"])


@register()
class Identity(Op):
    """y = x."""

    form = Form("Identity")
    layout = "any"

    def infer(self, x: Spec) -> Spec:
        return x

    def ref(self, x: np.ndarray) -> np.ndarray:
        return x

    samples = grid(x=[(2, 3), ()])


class Opaque(Op):
    """An op of a file that this package does not compute; kept so that the file can still be described.

    `type` is the number of the OpType, `main` the parameter table as it was read.
    """

    type: int
    name: str
    main: Any
    results: int

    def __init__(self, type: int, name: str, main: Any, results: int):
        self.__dict__.update(type=type, name=name, main=main, results=results)

    pure = False
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @property
    def kind(self) -> str:
        return self.name

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        return tuple(Spec(np.dtype(np.float32)) for _ in range(self.results))


def same_values(op: object) -> bool:
    """Whether an op hands on its operand as it is: between channel-first layouts, or as Identity."""
    if isinstance(op, ConvertTensor):
        return (op.source in CHANNEL_FIRST) == (op.dest in CHANNEL_FIRST)
    return isinstance(op, Identity)
