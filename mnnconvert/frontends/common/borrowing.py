"""Values of an outer graph as values of a graph that it runs."""

from __future__ import annotations

from mnnconvert.ir import Builder, Value


def borrowed(builder: Builder, outer: Value, captured: dict[Value, Value]) -> Value:
    """A constant that shares its data, or an input, of which `captured` keeps one for each outer value."""
    if outer.tensor is not None:
        return builder.constant(outer.tensor, outer.name)
    if outer.constant is not None:
        return builder.constant(outer.constant)
    if outer not in captured:
        inner = builder.input(outer.name, outer.dtype, outer.shape)
        inner.spec.content = outer.spec.content
        captured[outer] = inner
    return captured[outer]
