"""Element types of the source, followed from node to node: what the graph holds is wider (bool as int32, and so on).

Most models declare the types of few values. The ONNX standard says of each op which results have the type of which
operand, and which have a type of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from mnnconvert.frontends.onnx.functions import schema_of
from mnnconvert.frontends.onnx.tensors import NAMES

TypeOf = Callable[[str], str]
Source = int | str  # the operand that a result has the type of, or the type; "" where neither is known

# attributes that name the type of the first result
NAMED = {
    "Cast": "to", "QuantizeLinear": "output_dtype", "HannWindow": "output_datatype", "HammingWindow": "output_datatype",
    "BlackmanWindow": "output_datatype", "MelWeightMatrix": "output_datatype",
}  # fmt: skip
BODIES = {"If": ("then_branch", 0), "Loop": ("body", 1), "Scan": ("body", 0)}  # the graph, and what it returns first
CONSTANTS = {"value_int": "int64", "value_ints": "int64", "value_float": "float32", "value_floats": "float32"}
ELEMENTS = {"SequenceAt", "SplitToSequence", "ConcatFromSequence"}  # a sequence counts as of the type of its tensors
SPELLED = {"float": "float32", "double": "float64"}


def result_types(proto: Any, domain: str, opset: int, type_of: TypeOf) -> list[str]:
    """The element types of a node's results by their ONNX names, "" where unknown; `type_of` tells operands' types."""
    attributes = {a.name: a for a in proto.attribute}
    if proto.op_type in BODIES and not domain:
        return _of_body(proto, attributes)
    types = [_type(source, proto, type_of) for source in sources(proto.op_type, domain, opset, len(proto.output))]
    named = attributes.get(NAMED.get(proto.op_type, "dtype"))
    if named is not None and named.type == 2 and types:
        types[0] = NAMES.get(named.i, types[0])
    if proto.op_type == "QuantizeLinear" and types and not types[0]:
        types[0] = "uint8"
    if proto.op_type in ("Constant", "ConstantOfShape") and not domain:
        types[0] = _of_constant(proto.op_type, attributes)
    return types


def _type(source: Source, proto: Any, type_of: TypeOf) -> str:
    if isinstance(source, str):
        return source
    name = proto.input[source] if source < len(proto.input) else ""
    return type_of(name) if name else ""


def _of_body(proto: Any, attributes: dict[str, Any]) -> list[str]:
    """What the graph inside declares of its results."""
    name, first = BODIES[proto.op_type]
    outputs = attributes[name].g.output if name in attributes else ()
    types = [NAMES.get(o.type.tensor_type.elem_type, "") for o in outputs][first:]
    return [*types, *[""] * len(proto.output)][: len(proto.output)]


def _of_constant(op: str, attributes: dict[str, Any]) -> str:
    if "value" in attributes:
        return NAMES.get(attributes["value"].t.data_type, "")
    return next((kind for name, kind in CONSTANTS.items() if name in attributes), "float32" if "Of" in op else "")


@cache
def sources(op: str, domain: str, opset: int, count: int) -> tuple[Source, ...]:
    """Where the types of the first `count` results of an op come from."""
    if op in ELEMENTS and not domain:
        return (0,)
    schema = schema_of(domain, op, opset)
    if schema is None:
        return ("",) * count
    allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    operands = {formal.type_str: i for i, formal in reversed(list(enumerate(schema.inputs)))}
    formals = [*schema.outputs, *schema.outputs[-1:] * count][:count]
    return tuple(_source(formal.type_str, operands, allowed) for formal in formals)


def _source(text: str, operands: dict[str, int], allowed: dict[str, Any]) -> Source:
    texts = list(allowed.get(text, (text,)))
    if len(texts) == 1:
        return _element(texts[0])
    return operands.get(text, "")


def _element(text: str) -> str:
    """`tensor(float)` -> float32."""
    inner = text.removeprefix("tensor(").removesuffix(")")
    return SPELLED.get(inner, inner) if text.startswith("tensor(") else ""
