"""What an import rule sees of a Caffe layer: its operands as values, its settings with defaults, its trained blobs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from mnnconvert.errors import ConversionError
from mnnconvert.frontends.caffe.model import SourceLayer
from mnnconvert.frontends.caffe.text import BAD, Message, integer, number, truth
from mnnconvert.ir import Builder, Value

if TYPE_CHECKING:
    from mnnconvert.frontends.caffe.importer import Importer

FIX_SIZES = "give the sizes of the input with --input-shape"
MOST_NUMBERS = 1 << 24  # of a table that is made up here
NO_EFFECT = {
    "weight_filler", "bias_filler", "filler", "slope_filler", "shift_filler", "scale_filler", "engine",
    "force_nd_im2col",     "moving_average_fraction", "stable_prod_grad", "cudnn_deterministic", "momentum", "frozen",
    "debug_info",
}  # fmt: skip
"""Settings that only training or the choice of an implementation knows."""

Read = TypeVar("Read")


class Params:
    """The settings of one kind of a layer. Those that no rule asks for are refused (`CaffeNode.check_read`)."""

    def __init__(self, node: CaffeNode, name: str, message: Message):
        self.node = node
        self.name = name
        self.message = message
        self.message.asked.update(NO_EFFECT)

    def __contains__(self, name: str) -> bool:
        return name in self.message

    def integer(self, name: str, default: int) -> int:
        text = self.message.text(name)
        return integer(text, f"{name} of {self.node.op}") if text else default

    def integers(self, name: str) -> tuple[int, ...]:
        return tuple(integer(text, f"{name} of {self.node.op}") for text in self.message.texts(name))

    def number(self, name: str, default: float) -> float:
        text = self.message.text(name)
        return number(text, f"{name} of {self.node.op}") if text else default

    def numbers(self, name: str) -> tuple[float, ...]:
        return tuple(number(text, f"{name} of {self.node.op}") for text in self.message.texts(name))

    def flag(self, name: str, default: bool) -> bool:
        text = self.message.text(name)
        return truth(text, f"{name} of {self.node.op}") if text else default

    def text(self, name: str, default: str = "") -> str:
        return self.message.text(name, default)

    def choice(self, name: str, *words: str) -> str:
        """One of the words, which may also be given by number; the first where nothing is said."""
        text = self.message.text(name, words[0])
        if text.isdigit() and int(text) < len(words):
            return words[int(text)]
        if text.upper() not in words:
            raise self.node.refuse(f"{name} of {self.node.op} is {text}, not one of {', '.join(words)}")
        return text.upper()

    def params(self, name: str) -> Params:
        """Settings inside of these."""
        return Params(self.node, name, self.message.message(name))

    def ignore(self, *names: str) -> None:
        """Take note of settings that do not matter here."""
        self.message.asked.update(names)


class CaffeNode:
    """One layer being translated."""

    def __init__(self, importer: Importer, layer: SourceLayer):
        self.importer = importer
        self.layer = layer
        self._params: dict[str, Params] = {}

    @property
    def op(self) -> str:
        return self.layer.type

    @property
    def name(self) -> str:
        return self.layer.name or self.op

    @property
    def input_count(self) -> int:
        return len(self.layer.bottoms)

    @property
    def output_count(self) -> int:
        return len(self.layer.tops)

    def input(self, index: int = 0) -> Value:
        """Operand `index`."""
        if index >= self.input_count:
            raise self.refuse(f"{self.op} reads {self.input_count} blobs, where {index + 1} are needed", reference=BAD)
        return self.importer.value(self.layer.bottoms[index])

    @property
    def inputs(self) -> list[Value]:
        """All operands, at least one."""
        return [self.input(i) for i in range(max(1, self.input_count))]

    def takes(self, least: int, most: int | None = None) -> None:
        """Refuse another number of operands."""
        most = least if most is None else most
        if not least <= self.input_count <= most:
            wanted = str(least) if least == most else f"{least} to {most}"
            raise self.refuse(f"{self.op} reads {self.input_count} blobs, where {wanted} are meant", reference=BAD)

    def params(self, name: str) -> Params:
        """The settings under this name."""
        if name not in self._params:
            self._params[name] = Params(self, name, self.layer.settings.message(name))
        return self._params[name]

    def check_read(self) -> None:
        """Refuse settings that the rule knows nothing of: they are of a fork, and would be lost."""
        for name, params in self._params.items():
            if params.message.unread:
                unread = ", ".join(params.message.unread)
                raise self.refuse(f"the setting {unread} in {name} of {self.op} is not known")

    @property
    def blob_count(self) -> int:
        return len(self.layer.blobs)

    def weight(self, b: Builder, index: int, shape: Sequence[int], what: str = "weight") -> Value:
        """Blob `index` as a constant of this shape; sizes of 1 are of no account when they are compared."""
        shape = tuple(shape)
        if index >= self.blob_count:
            raise self.refuse(
                f"the {what} of {self.op} is not among the trained weights", reference="missing-weights",
                hint="is the .caffemodel that of this net? Weights are found by the name of their layer",
            )  # fmt: skip
        blob = self.layer.blobs[index]
        if [d for d in blob.shape if d != 1] != [d for d in shape if d != 1]:
            raise self.refuse(
                f"the {what} of {self.op} has the sizes {list(blob.shape)} instead of {list(shape)}", reference=BAD,
                hint="is the .caffemodel that of this net?",
            )  # fmt: skip
        return b.constant(blob.tensor(shape), f"{self.name}/{what}")

    def array(self, b: Builder, index: int, shape: Sequence[int], what: str) -> np.ndarray:
        """Blob `index` as numbers to compute with, in float64."""
        tensor = self.weight(b, index, shape, what).tensor
        assert tensor is not None  # a constant has one
        return tensor.numpy().astype(np.float64)

    def sizes(self, x: Value, first: int = 0, last: int | None = None) -> tuple[int, ...]:
        """Sizes first .. last - 1 of an operand (all by default), which must be known."""
        if x.shape is None:
            raise self.refuse(f"{self.op} needs to know the sizes of its operand", FIX_SIZES, "open-size")
        found = tuple(d for d in x.shape[first:last] if isinstance(d, int))
        if len(found) < len(x.shape[first:last]):
            raise self.refuse(f"{self.op} needs to know the sizes of its operand", FIX_SIZES, "open-size")
        return found

    def rank(self, x: Value, least: int = 1) -> int:
        """The number of axes of an operand."""
        if x.rank is None or x.rank < least:
            raise self.refuse(f"{self.op} of an operand of rank {x.rank}", reference=BAD)
        return x.rank

    def axis(self, axis: int, rank: int) -> int:
        """An axis counted from the start; refused outside of the rank."""
        if not -rank <= axis < rank:
            raise self.refuse(f"{self.op} names the axis {axis} of {rank}", reference=BAD)
        return axis % rank

    def limited(self, *sizes: int) -> None:
        """Refuse to make a table of so many numbers that no real model needs it."""
        if math.prod(sizes) > MOST_NUMBERS:
            raise self.refuse(f"{self.op} needs a table of {math.prod(sizes)} numbers", reference="too-large")

    def refuse(self, message: str, hint: str = "", reference: str = "unsupported-attribute") -> ConversionError:
        """An error that names this layer; raise it."""
        return ConversionError.of(reference, message, hint=hint, node=self.name, op=self.op)
