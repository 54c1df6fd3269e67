"""Ops that the ONNX standard defines through simpler ones: the function body that its schema has for a node.

An op without an import rule is expanded into it, as a model's own function is. Some bodies depend on the types of the
operands, so the schema makes them for one node at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from mnnconvert.frontends.onnx.tensors import NAMES
from mnnconvert.ir import Shape

NUMBERS = {name: number for number, name in NAMES.items()}
NEVER = 1 << 30  # an opset that there will not be
TypeOf = tuple[str, Shape | None]  # source element type and shape of an operand; ("", None) where it is left out


@cache
def is_function(domain: str, op: str, opset: int) -> bool:
    """Whether the standard defines this op, in force at `opset`, through others."""
    return _body_opset(schema_of(domain, op, opset), opset) > 0


def defined() -> dict[tuple[str, str], int]:
    """All ops of the standard that have a function body, by domain and name, and the opset since which they have it."""
    from onnx import defs

    found: dict[tuple[str, str], int] = {}
    for schema in defs.get_all_schemas_with_history():
        key = (schema.domain, schema.name)
        if not schema.deprecated:
            found[key] = min([*_versions(schema), found.get(key, NEVER)])
    return {key: since for key, since in found.items() if since < NEVER}


def body(node: Any, domain: str, opset: int, types: Sequence[TypeOf]) -> Any:
    """The FunctionProto of a node of an op for which `is_function` holds."""
    from onnx import FunctionProto

    schema = schema_of(domain, node.op_type, opset)
    version = _body_opset(schema, opset)
    if version in schema.function_opset_versions:
        return FunctionProto.FromString(schema.get_function_with_opset_version(version))
    operands = [_type_proto(*each).SerializeToString() for each in types]
    text = schema.get_context_dependent_function_with_opset_version(version, node.SerializeToString(), operands)
    return FunctionProto.FromString(text)


def defaults(domain: str, op: str, opset: int) -> Mapping[str, Any]:
    """The attributes of an op that have a default, as AttributeProtos."""
    attributes = schema_of(domain, op, opset).attributes
    return {name: formal.default_value for name, formal in attributes.items() if formal.default_value.type}


def instance(node: Any, attributes: Mapping[str, Any], absent: set[str]) -> Any:
    """A node of a function body for one call: with the attributes of the call, and without operands that it leaves out.

    What refers to an attribute that the call does not give is left out too. A node that refers to nothing is itself.
    """
    if not _refers(node, absent):
        return node
    copy = type(node)()
    copy.CopyFrom(node)
    copy.input[:] = ["" if name in absent else name for name in node.input]
    del copy.attribute[:]
    for attribute in node.attribute:
        actual = attributes.get(attribute.ref_attr_name) if attribute.ref_attr_name else attribute
        if actual is not None:
            copy.attribute.add().CopyFrom(actual)
            copy.attribute[-1].name = attribute.name
    for graph in _graphs(copy):
        inner = [instance(each, attributes, absent) for each in graph.node]
        del graph.node[:]
        graph.node.extend(inner)
    return copy


def _refers(node: Any, absent: set[str]) -> bool:
    return (
        not absent.isdisjoint(node.input)
        or any(a.ref_attr_name for a in node.attribute)
        or any(_refers(inner, absent) for graph in _graphs(node) for inner in graph.node)
    )


def _graphs(node: Any) -> list[Any]:
    return [g for a in node.attribute for g in ([a.g] if a.HasField("g") else a.graphs)]


def schema_of(domain: str, op: str, opset: int) -> Any:
    """The OpSchema in force at an opset, or None."""
    from onnx import defs

    try:
        return defs.get_schema(op, opset, domain)
    except defs.SchemaError:
        return None


def _body_opset(schema: Any, opset: int) -> int:
    """The opset of the newest body that is not newer than `opset`; 0 if there is none."""
    if schema is None:
        return 0
    return max((v for v in _versions(schema) if v <= opset), default=0)


def _versions(schema: Any) -> tuple[int, ...]:
    """The opsets that the function bodies of a schema are written in."""
    return (*schema.function_opset_versions, *schema.context_dependent_function_opset_versions)


def _type_proto(element: str, shape: Shape | None) -> Any:
    from onnx import TypeProto, helper

    if not element:
        return TypeProto()
    return helper.make_tensor_type_proto(NUMBERS[element], shape)
