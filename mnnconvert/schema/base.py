"""What the generated classes of `tables.py` are made of: `Field`, `Table` and the `Payload` of a large vector."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, NamedTuple, Protocol, TypeAlias, dataclass_transform

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector: TypeAlias = "NDArray[np.generic] | Payload"


class Payload(Protocol):
    """The elements of a scalar vector that need not be in memory at once.

    One with a true attribute `made_once` is too dear to be written only to compare it with others. An attribute `like`
    is a tensor of the same elements, some of which are cheap to look at.
    """

    @property
    def nbytes(self) -> int:
        """Size of all elements in bytes."""

    def write_to(self, stream: BinaryIO) -> None:
        """Write the little-endian bytes of all elements: exactly `nbytes`, the same ones each time."""


class Field(NamedTuple):
    """One field of a table: its vtable slot, its IDL type (`int`, `[Op]`, `PadMode`...) and its default."""

    name: str
    slot: int
    type: str
    default: Any


@dataclass_transform(kw_only_default=True)
class TableType(type):
    """Turns the fields of a class body into slots; type checkers see keyword arguments with defaults."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> TableType:
        names = tuple(field.name for field in namespace["FIELDS"])
        body = {key: value for key, value in namespace.items() if key not in names}
        return super().__new__(cls, name, bases, body | {"__slots__": names})


class Table(metaclass=TableType):
    """A FlatBuffers table as a plain object: keyword construction, equality by value, no unknown attributes.

    A vector of scalars is a numpy array of the schema's element type or a `Payload`; a vector of strings or tables
    is a list; an absent string, table or vector is None. An enum field holds a member, or a plain int where the
    number has no name. A union field holds a table, whose class is the tag.
    """

    FIELDS: ClassVar[tuple[Field, ...]] = ()

    def __init__(self, **values: Any) -> None:
        for name, _, _, default in self.FIELDS:
            setattr(self, name, values.pop(name, default))
        if values:
            raise TypeError(f"{type(self).__name__} has no field {', '.join(values)}")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(_same(getattr(self, field.name), getattr(other, field.name)) for field in self.FIELDS)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        pairs = ((field, getattr(self, field.name)) for field in self.FIELDS)
        shown = ", ".join(f"{field.name}={value!r}" for field, value in pairs if not _same(value, field.default))
        return f"{type(self).__name__}({shown})"


def _same(left: Any, right: Any) -> bool:
    """Equality as the file sees it: floats in single precision, arrays by their bytes (so NaN equals NaN)."""
    if left is right:
        return True
    if isinstance(left, float) and isinstance(right, float):
        import numpy as np

        return left == right or np.float32(left).tobytes() == np.float32(right).tobytes()
    if getattr(left, "ndim", 0) or getattr(right, "ndim", 0):
        return bool(type(left) is type(right) and left.dtype == right.dtype and left.tobytes() == right.tobytes())
    return bool(left == right)
