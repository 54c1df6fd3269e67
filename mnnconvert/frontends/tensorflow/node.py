"""What an import rule sees of a TensorFlow node: operands as values, attributes with defaults, a way to refuse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mnnconvert.errors import ConversionError
from mnnconvert.frontends.common.nodes import FIX_SIZES
from mnnconvert.frontends.tensorflow.model import SourceNode
from mnnconvert.frontends.tensorflow.wire import BAD
from mnnconvert.ir import Builder, Dim, Value

if TYPE_CHECKING:
    from mnnconvert.frontends.tensorflow.importer import Scope


class TfNode:
    """One node being translated."""

    broken = BAD

    def __init__(self, scope: Scope, source: SourceNode):
        self.scope = scope
        self.source = source

    @property
    def op(self) -> str:
        return self.source.op

    @property
    def name(self) -> str:
        return self.scope.path(self.source.name)

    @property
    def input_count(self) -> int:
        return len(self.source.operands)

    def has(self, index: int) -> bool:
        """Whether operand `index` is given."""
        return index < len(self.source.operands)

    def reference(self, index: int) -> str:
        """What operand `index` refers to."""
        if not self.has(index):
            raise self.refuse(f"the operand {index} of {self.op} is missing", reference=BAD)
        return self.source.operands[index]

    def any_input(self, index: int) -> Any:
        """Operand `index`: a value, or a list of values that exists during import only."""
        return self.scope.get(self.reference(index))

    def input(self, index: int) -> Value:
        """Operand `index` as a value of the graph."""
        return self.tensor(self.any_input(index))

    def tensor(self, found: Any) -> Value:
        if not isinstance(found, Value):
            raise self.refuse(
                f"{self.op} on lists of tensors, complex numbers or strings is not supported",
                reference="unsupported-type",
            )
        return found

    @property
    def inputs(self) -> list[Value]:
        return [self.input(i) for i in range(self.input_count)]

    def constant(self, index: int) -> np.ndarray | None:
        """The content of operand `index`, that of a stored constant in its source type, or None if it is not known."""
        if not self.has(index):
            return None
        stored = self.scope.stored(self.reference(index))
        return stored.array() if stored is not None else self.input(index).constant

    def required_constant(self, index: int, what: str) -> np.ndarray:
        """As `constant`; refuses the node when the content is not known."""
        array = self.constant(index)
        if array is None:
            raise self.refuse(f"{what} of {self.op} must be known when the model is converted", hint=FIX_SIZES)
        return array

    def ints(self, index: int, what: str) -> tuple[int, ...]:
        """The content of operand `index` as integers, in flat order."""
        return tuple(int(v) for v in self.required_constant(index, what).reshape(-1))

    def sizes(self, index: int) -> list[Dim] | None:
        """The content of operand `index` as sizes that may be known only in part."""
        return self.input(index).sizes

    def weight(self, b: Builder, index: int, order: Sequence[int]) -> Value:
        """Operand `index` with its axes in `order`; a constant stays one, and is reordered when it is written."""
        return self.scope.weight(b, self.input(index), tuple(order))

    def attr(self, name: str, default: Any = None) -> Any:
        return self.source.attribute(name, default)

    def flag(self, name: str, default: bool = False) -> bool:
        return bool(self.source.attribute(name, default))

    def text(self, name: str, default: str = "") -> str:
        return self.source.text(name, default)

    def int_attr(self, name: str, default: int = 0) -> int:
        return int(self.source.attribute(name, default))

    def float_attr(self, name: str, default: float = 0.0) -> float:
        return float(self.source.attribute(name, default))

    def ints_attr(self, name: str) -> tuple[int, ...]:
        """An attribute that is a list of integers; empty where it is not there."""
        return tuple(int(v) for v in self.source.attribute(name, None) or ())

    def type(self, name: str = "T", default: str = "float32") -> str:
        """An attribute that is an element type."""
        return str(self.source.attribute(name, default))

    def refuse(self, message: str, hint: str = "", reference: str = "unsupported-attribute") -> ConversionError:
        """An error that names this node; raise it."""
        return ConversionError.of(reference, message, hint=hint, node=self.name, op=self.op)
