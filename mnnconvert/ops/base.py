"""What an op is: attributes, shape rule, numpy reference, MNN form, samples, together on one class.

The MNN form is declared once and used in both directions, so an op that can be written can be read. Names of op
types, parameter tables and enum members are those of the schema, as text; `schema/` turns them into numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar, dataclass_transform

import numpy as np

from mnnconvert.ir.tensor import Tensor
from mnnconvert.ir.types import Shape

Fields = Mapping[str, Any]  # contents of a parameter table: enum members by name, nested tables as mappings


@dataclass(frozen=True)
class Form:
    """How an op is written: OpType, parameter table (if any), and attribute -> field of the table.

    A dotted field (`common.strideX`) lies in a nested table. `fixed` fields are written with a constant value.
    `layout_format` is the op's `defaultDimentionFormat` where it matters.
    """

    type: str
    table: str | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    layout_format: str | None = None


@dataclass(frozen=True)
class Emission:
    """An op as it stands in a file: OpType, table name, contents of the table, default dimension format."""

    type: str
    table: str | None
    fields: dict[str, Any]
    layout_format: str | None = None


class Op:
    """Base of all ops. A subclass is a frozen dataclass whose fields are its attributes.

    `infer` and `ref` take one parameter per operand (`*rest` where there may be any number).
    """

    form: ClassVar[Form]
    pure: ClassVar[bool] = True  # same inputs, same results; may be folded, shared and dropped
    layout: ClassVar[str] = "nchw"  # "c4": input 0 and output are NC4HW4; "any": follows its inputs; else channel first
    commutative: ClassVar[bool] = False
    embedded: ClassVar[tuple[str, ...]] = ()  # fields that hold operands 1, 2, ... while these are constant
    samples: ClassVar[Any] = ()

    @property
    def kind(self) -> str:
        return type(self).__name__

    def __init__(self, *values: Any, **named: Any) -> None:
        names = self.__dataclass_fields__  # type: ignore[attr-defined]  # `register` made a dataclass of it
        given = dict(zip(names, values, strict=False), **named)
        if len(values) > len(names) or not given.keys() <= names.keys():
            raise TypeError(f"{self.kind} takes the attributes {', '.join(names)}, not {values} {named}")
        for name, field_ in names.items():
            if name not in given and field_.default is dataclasses.MISSING:
                raise TypeError(f"{self.kind} needs the attribute {name}")
            self.__dict__[name] = given.get(name, field_.default)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{self.kind} cannot be changed: make another with dataclasses.replace")

    def _compared(self) -> dict[str, Any]:
        fields_ = self.__dataclass_fields__  # type: ignore[attr-defined]
        return {name: value for name, value in vars(self).items() if fields_[name].compare}

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._compared() == other._compared()

    def __hash__(self) -> int:
        return hash((type(self), *self._compared().values()))

    def __repr__(self) -> str:
        return f"{self.kind}({', '.join(f'{name}={value!r}' for name, value in self._compared().items())})"

    def infer(self, *inputs: Any, **named: Any) -> Any:
        """Spec (or tuple of Specs) of the results from those of the operands; ValueError where these do not fit."""
        raise TypeError(f"{self.kind} has no shape rule")

    def ref(self, *arrays: Any, **named: Any) -> Any:
        """The definition of the op, in numpy."""
        raise TypeError(f"{self.kind} has no reference")

    def view(self, tensor: Tensor, shape: Any) -> Tensor | None:
        """The result, of a known shape, as a view of a constant first operand, so that coded weights stay coded.

        None where it is something else.
        """
        return None

    def subgraphs(self) -> tuple[str, ...]:
        """Names of the graphs that the op runs."""
        return ()

    def emit(self, *inputs: Any, **named: Any) -> Emission:
        """The op as it stands in a file; `inputs` are the specs of all operands, embedded ones included."""
        fields: dict[str, Any] = {}
        for name, path in self.form.attributes.items():
            _put(fields, path, getattr(self, name))
        for path, value in self.form.fixed.items():
            _put(fields, path, value)
        return Emission(self.form.type, self.form.table, fields, self.form.layout_format)

    @classmethod
    def reads(cls, fields: Fields) -> bool:
        """Whether `parse` makes an op of these table contents; what it does not stays opaque."""
        return True

    @classmethod
    def parse(cls, type: str, fields: Fields) -> Op:
        """The op that stands in a file under OpType `type` with these table contents."""
        attributes = {}
        for name, path in cls.form.attributes.items():
            value = _get(fields, path)
            if value is not None:
                attributes[name] = tuple(np.asarray(value).tolist()) if _is_vector(value) else value
        return cls(**attributes)

    def for_results(self, count: int) -> Op:
        """The op when it has `count` results in a file, for ops whose table does not tell."""
        return self

    def embedded_shapes(self, fields: Fields, counts: Mapping[str, int]) -> tuple[Shape, ...]:
        """Shapes of the operands found in the table, given how many elements each field holds."""
        return tuple((counts[name],) for name in self.embedded)


def _is_vector(value: Any) -> bool:
    return isinstance(value, list | tuple | np.ndarray)


def _put(fields: dict[str, Any], path: str, value: Any) -> None:
    *tables, name = path.split(".")
    for table in tables:
        fields = fields.setdefault(table, {})
    fields[name] = list(value) if isinstance(value, tuple) else value


def _get(fields: Any, path: str) -> Any:
    for name in path.split("."):
        if fields is None:
            return None
        fields = fields.get(name)
    return fields


def attribute_names(op: Op | type[Op]) -> tuple[str, ...]:
    """Names of the attributes, in order."""
    return tuple(f.name for f in dataclasses.fields(op))  # type: ignore[arg-type]


READERS: dict[str, type[Op]] = {}  # OpType name -> class that parses it
OPS: dict[str, type[Op]] = {}  # class name -> class


AnyOp = TypeVar("AnyOp", bound=Op)


@dataclass_transform(frozen_default=True)
def register(*types: str) -> Callable[[type[AnyOp]], type[AnyOp]]:
    """Class decorator: make a frozen dataclass of an op and let files with its OpType (and `types`) be read as it."""

    def add(cls: type[AnyOp]) -> type[AnyOp]:
        made = dataclass(init=False, eq=False, repr=False)(cls)  # `Op` has these: compiling them per class is slow
        for name in dict.fromkeys((made.form.type, *types)):
            if name in READERS:
                raise TypeError(f"{name} is read as {READERS[name].__name__} already")
            READERS[name] = made
        if made.__name__ in OPS:
            raise TypeError(f"two ops are named {made.__name__}")
        OPS[made.__name__] = made
        return made

    return add


def sorted_ops() -> Iterator[type[Op]]:
    """All ops by name."""
    return iter(sorted(OPS.values(), key=lambda c: c.__name__))
