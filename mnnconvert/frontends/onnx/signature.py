"""Whether a node keeps the signature of its op, as the ONNX standard declares it: operands, results, attributes.

Import rules rely on it: an attribute that is there has the type of the standard, and so has what must be given. Ops of
other domains have no signature here; their attributes are held to the type of their default when they are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

KINDS = {
    0: "no type", 1: "a number", 2: "an integer", 3: "text", 4: "a tensor", 5: "a graph", 6: "a list of numbers",
    7: "a list of integers", 8: "a list of texts", 9: "a list of tensors", 10: "a list of graphs",
    11: "a sparse tensor", 12: "a list of sparse tensors", 13: "a type", 14: "a list of types",
}  # fmt: skip

FLOATS = ("tensor(float", "tensor(double", "tensor(bfloat")


def faults(proto: Any, domain: str, opset: int) -> list[str]:
    """What of a NodeProto contradicts the standard, in sentences; nothing for an op that the standard does not have."""
    attributes = tuple((a.name, a.type, a.ref_attr_name) for a in proto.attribute)
    form = (proto.op_type, domain, opset, tuple(map(bool, proto.input)), len(proto.output), attributes)
    if form in _SOUND:  # the nodes of a model have few forms
        return []
    found = _faults(proto, domain, opset)
    if not found:
        _SOUND.add(form)
    return found


_SOUND: set[Any] = set()


def _faults(proto: Any, domain: str, opset: int) -> list[str]:
    schema = _schema(proto.op_type, domain, opset)
    found = [f"the attribute '{name}' is given twice" for name in _repeated(a.name for a in proto.attribute)]
    found += [f"the attribute '{a.name}' refers to a function around it" for a in proto.attribute if a.ref_attr_name]
    if schema is None:
        return found
    return [*found, *_operand_faults(proto, schema), *_attribute_faults(proto, schema)]


@cache
def float_operands(op: str, domain: str, opset: int) -> tuple[bool, ...]:
    """For each operand of the standard, whether it takes nothing but floats."""
    schema = _schema(op, domain, opset)
    if schema is None:
        return ()
    return tuple(all(t.startswith(FLOATS) for t in formal.types) for formal in schema.inputs)


@cache
def _schema(op: str, domain: str, opset: int) -> Any:
    """The OpSchema in force at an opset, or None."""
    from onnx import defs

    try:
        return defs.get_schema(op, opset, domain)
    except defs.SchemaError:
        return None


def _repeated(names: Iterator[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def _operand_faults(proto: Any, schema: Any) -> Iterator[str]:
    for what, given, least, most in (
        ("operands", len(proto.input), schema.min_input, schema.max_input),
        ("results", len(proto.output), schema.min_output, schema.max_output),
    ):
        if not least <= given <= most:
            yield f"it has {given} {what} and takes {least}" + (f" to {most}" if most != least else "")
    for name, formal in zip(proto.input, schema.inputs, strict=False):
        if not name and formal.option == formal.option.Single:
            yield f"the operand '{formal.name}' is left out"


def _attribute_faults(proto: Any, schema: Any) -> Iterator[str]:
    declared = schema.attributes
    given = {a.name for a in proto.attribute}
    for attribute in proto.attribute:
        formal = declared.get(attribute.name)
        if formal is None:
            if not attribute.name.startswith("__"):  # by convention an exporter's own note
                yield f"there is no attribute '{attribute.name}'"
        elif attribute.type != int(formal.type.value):
            yield f"the attribute '{attribute.name}' is {KINDS[attribute.type]}, not {KINDS[int(formal.type.value)]}"
    for name, formal in declared.items():
        if formal.required and name not in given:
            yield f"the attribute '{name}' is missing"
