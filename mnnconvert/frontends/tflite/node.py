"""What an import rule sees of a TFLite operator: operands as values, options with defaults, a way to refuse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mnnconvert.errors import ConversionError
from mnnconvert.frontends.tflite.model import ABSENT, BAD, SourceOperator, SourceTensor, enum_names
from mnnconvert.ir import Builder, Value

if TYPE_CHECKING:
    from mnnconvert.frontends.tflite.importer import Scope


class TfliteNode:
    """One operator being translated. Quantized operands arrive as the float32 numbers that their codes stand for."""

    broken = BAD

    def __init__(self, scope: Scope, operator: SourceOperator):
        self.scope = scope
        self.operator = operator

    @property
    def op(self) -> str:
        return self.operator.name

    @property
    def name(self) -> str:
        """The name of the first result: operators have none of their own."""
        outputs = self.operator.outputs
        return (self.scope.tensor(outputs[0]).name if outputs else "") or self.op

    @property
    def input_count(self) -> int:
        return len(self.operator.inputs)

    @property
    def output_count(self) -> int:
        return len(self.operator.outputs)

    def has(self, index: int) -> bool:
        """Whether operand `index` is given."""
        return index < len(self.operator.inputs) and self.operator.inputs[index] != ABSENT

    def input(self, index: int) -> Value:
        """Operand `index` as a value of the graph."""
        return self.scope.value(self._place(index))

    @property
    def inputs(self) -> list[Value]:
        """All operands that are given."""
        return [self.input(i) for i in range(self.input_count) if self.has(i)]

    def _place(self, index: int) -> int:
        if not self.has(index):
            raise self.refuse(f"the operand {index} of {self.op} is missing", reference=BAD)
        return self.operator.inputs[index]

    def source(self, index: int) -> SourceTensor:
        """What the file says of operand `index`."""
        return self.scope.tensor(self._place(index))

    def result(self, index: int = 0) -> SourceTensor:
        """What the file says of result `index`."""
        if index >= self.output_count:
            raise self.refuse(f"the result {index} of {self.op} is missing", reference=BAD)
        return self.scope.tensor(self.operator.outputs[index])

    def constant(self, index: int) -> np.ndarray | None:
        """The content of operand `index` in its source type, or None where it is not known."""
        if not self.has(index):
            return None
        source = self.source(index)
        if source.data is not None and not source.quantized:
            return source.array()
        return self.input(index).constant

    def required_constant(self, index: int, what: str) -> np.ndarray:
        """As `constant`; refuses the operator when the content is not known."""
        array = self.constant(index)
        if array is None:
            raise self.refuse(f"{what} of {self.op} must be known when the model is converted")
        return array

    def ints(self, index: int, what: str) -> tuple[int, ...]:
        """The content of operand `index` as integers, in flat order."""
        return tuple(int(v) for v in self.required_constant(index, what).reshape(-1))

    def weight(self, b: Builder, index: int, order: Sequence[int], rows: int) -> Value:
        """Operand `index` with its axes in `order`, as a constant that keeps its codes or half-precision numbers.

        `rows` is the source axis of the output channels, along which scales may differ.
        """
        return self.scope.weight(b, self._place(index), tuple(order), rows)

    def update(self, index: int, value: Value) -> None:
        """Let a variable operand hold `value` from now on."""
        self.scope.values[self._place(index)] = value

    def option(self, name: str, default: Any = 0) -> Any:
        """An option by the name of its accessor; `default` where the operator has no options."""
        return self.operator.option(name, default)

    def option_ints(self, name: str) -> tuple[int, ...]:
        """An option that is a list of integers; empty where it is not there."""
        if not self.option(f"{name}Length"):
            return ()
        return tuple(int(v) for v in np.asarray(self.option(f"{name}AsNumpy")).reshape(-1))

    def choice(self, name: str, enum: str, default: str = "") -> str:
        """An option that is a member of an enum, by its name."""
        number = self.option(name, None)
        if number is None:
            return default
        known = enum_names(enum).get(int(number))
        if known is None:
            raise self.refuse(f"the option {name} of {self.op} is {number}, which is no {enum}")
        return known

    def refuse(self, message: str, hint: str = "", reference: str = "unsupported-attribute") -> ConversionError:
        """An error that names this operator; raise it."""
        return ConversionError.of(reference, message, hint=hint, node=self.name, op=self.op)
