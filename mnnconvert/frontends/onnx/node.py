"""What an import rule sees of an ONNX node: operands as values, attributes with defaults, a way to refuse."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mnnconvert.errors import ConversionError
from mnnconvert.frontends.common.nodes import limited
from mnnconvert.ir import Value

if TYPE_CHECKING:
    from mnnconvert.frontends.onnx.importer import Scope


class ValueList(Sequence[Value]):
    """A sequence whose length is known, or (with `absent`) an optional value that is not there.

    It exists only while a model is imported: MNN has tensors, so sequences must resolve into those by then.
    """

    constant = None  # as a value answers when its content is not known
    dtype = "sequence"

    def __init__(self, values: Iterable[Value] = (), absent: bool = False):
        self.values = list(values)
        self.absent = absent

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: Any) -> Any:
        return self.values[index]


class OnnxNode:
    """One node being translated. Omitted optional operands and outputs have an empty name in ONNX."""

    broken = "bad-onnx-file"

    def __init__(self, scope: Scope, proto: Any, opset: int):
        self.scope = scope
        self.proto = proto
        self.opset = opset
        self._attributes = {a.name: a for a in proto.attribute}

    @property
    def op_type(self) -> str:
        return self.proto.op_type

    op = op_type

    @property
    def name(self) -> str:
        """The node's name, or its first output's where it has none."""
        return self.proto.name or next((o for o in self.proto.output if o), self.proto.op_type)

    def has(self, index: int) -> bool:
        """Whether operand `index` is given."""
        return index < len(self.proto.input) and bool(self.proto.input[index])

    def input(self, index: int) -> Value:
        """Operand `index` as a value of the graph."""
        if not self.has(index):
            raise self.refuse(f"the operand {index} of {self.op_type} is missing")
        return self._tensor_value(self.proto.input[index])

    def _tensor_value(self, name: str) -> Value:
        value = self.scope.value(name)
        if isinstance(value, ValueList):
            what = f"the operand '{name}' of {self.op_type} is a sequence or an absent optional"
            raise self.refuse(what, reference="unsupported-type")
        return value

    def any_input(self, index: int) -> Value | ValueList:
        """Operand `index`, which may be a sequence."""
        return self.scope.value(self.proto.input[index])

    def sequence(self, index: int) -> ValueList:
        """Operand `index` as a sequence whose length is known."""
        value = self.any_input(index)
        if not isinstance(value, ValueList) or value.absent:
            what = f"the operand {index} of {self.op_type} is not a sequence of known length"
            raise self.refuse(what, reference="unsupported-type")
        return value

    def optional(self, index: int) -> Value | None:
        """Operand `index`, or None when it is left out."""
        return self.input(index) if self.has(index) else None

    @property
    def inputs(self) -> list[Value]:
        """All operands that are given."""
        return [self._tensor_value(name) for name in self.proto.input if name]

    def constant(self, index: int) -> np.ndarray | None:
        """The content of operand `index` in its source element type (int64 stays int64), or None if not known."""
        return self.scope.constant(self.proto.input[index]) if self.has(index) else None

    def vector(self, index: int) -> np.ndarray | None:
        """As `constant`, for a list of numbers: refuses a content of another rank."""
        array = self.constant(index)
        if array is not None and array.ndim != 1:
            raise self.refuse(
                f"the operand {index} of {self.op_type} has {array.ndim} axes, not 1", reference="bad-onnx-node"
            )
        return array

    def required_constant(self, index: int, what: str) -> np.ndarray:
        """As `constant`; refuses the node when the content is not known."""
        array = self.constant(index)
        if array is None:
            raise self.refuse(f"{what} of {self.op_type} must be known when the model is converted")
        return array

    def tensor(self, index: int) -> Any:
        """The stored source tensor of operand `index` when it is an initializer, else None; nothing is loaded."""
        return self.scope.source_tensor(self.proto.input[index]) if self.has(index) else None

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute: int, float, str, tuple of those, numpy array for tensors, GraphProto for graphs."""
        proto = self._attributes.get(name)
        if proto is None:
            return default
        value = self.scope.attribute(proto)
        if not _alike(value, default):
            raise self.refuse(f"the attribute '{name}' of {self.op_type} is {value!r:.40}", reference="bad-onnx-node")
        return value

    def required(self, name: str, kind: type) -> Any:
        """An attribute that must be there, of this kind; for ops whose signature the standard does not tell."""
        value = self.attr(name)
        if not isinstance(value, kind):
            raise self.refuse(f"the attribute '{name}' of {self.op_type} is {value!r:.40}", reference="bad-onnx-node")
        return value

    def has_attr(self, name: str) -> bool:
        return name in self._attributes

    def limited(self, *sizes: Any) -> None:
        """Refuse to make a table of so many numbers that no real model needs it (sizes that are not known count 1)."""
        limited(self, *sizes)

    def source_type(self, index: int) -> str:
        """The source element type of operand `index` by its ONNX name ("int64", "bool", ...), where it is declared."""
        return self.scope.source_type(self.proto.input[index]) if self.has(index) else ""

    def wants(self, index: int) -> bool:
        """Whether output `index` is asked for."""
        return index < len(self.proto.output) and bool(self.proto.output[index])

    @property
    def output_count(self) -> int:
        return len(self.proto.output)

    def refuse(self, message: str, hint: str = "", reference: str = "unsupported-attribute") -> ConversionError:
        """An error that names this node; raise it."""
        return ConversionError.of(
            reference,
            message,
            hint=hint,
            node=self.name,
            op=self.op_type,
            opset=self.opset,
            domain=self.proto.domain or "ai.onnx",
        )


def _alike(value: Any, default: Any) -> bool:
    """Whether an attribute has the kind of its default; where that does not tell, the signature of the op does."""
    if isinstance(default, float):
        return isinstance(value, int | float)
    if isinstance(default, int | str | tuple):
        return isinstance(value, type(default))
    return True
