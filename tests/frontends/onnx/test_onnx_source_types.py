"""Narrow, unsigned and boolean types of values that the model does not declare."""

import numpy as np
import pytest
from onnx import helper
from onnx_cases import check, model

from mnnconvert.frontends.onnx.importer import Importer, Scope
from mnnconvert.frontends.onnx.source_types import result_types
from mnnconvert.ir import Builder

WIDE = np.array([65535, 300, 7, 40000])
WRAPPED = np.array([65535, 300, 7, 40000], "uint16") * np.uint16(3) + np.uint16(5)
CASES = {
    "wraps around": (
        "(float[4] x) => (float[4] y) <uint16[1] k = {3}, uint16[1] c = {5}> {"
        " a = Cast <to=4>(x) m = Mul(a, k) s = Add(m, c) y = Cast <to=1>(s) }",
        WRAPPED.astype("float32"),
    ),
    "signed wraps around": (
        "(float[4] x) => (float[4] y) { a = Cast <to=5>(x) m = Mul(a, a) i = Identity(m) s = Add(i, i)"
        " y = Cast <to=1>(s) }",
        None,
    ),
    "unsigned complement": (
        "(float[4] x) => (float[4] y) { a = Cast <to=4>(x) i = Identity(a) n = BitwiseNot(i) y = Cast <to=1>(n) }",
        (~WIDE.astype("uint16")).astype("float32"),
    ),
    "truth": (
        "(float[4] x) => (float[4] y) <float k = {1000}> { a = Less(x, k) n = Not(a) o = Xor(a, n) b = Cast <to=9>(o)"
        " y = Cast <to=1>(b) }",
        np.ones(4, "float32"),
    ),
    "in a function": (
        "(float[4] x) => (float[4] y) { a = Cast <to=4>(x) f = local.double(a) y = Cast <to=1>(f) }"
        '<domain: "local", opset_import: ["" : 18]> double (p) => (q) { q = Add(p, p) }',
        (WIDE.astype("uint16") * np.uint16(2)).astype("float32"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_types_follow_the_nodes(name):
    text, want = CASES[name]
    x = (WIDE % 30000 if name == "signed wraps around" else WIDE).astype("float32")
    if want is None:
        half = x.astype("int16") * x.astype("int16")
        want = (half + half).astype("float32")
    check(text, {"x": x}, opset=18, domains=("local",), rtol=0, want={"y": want})


def types(op, *operands, count=1, opset=18, **attributes):
    node = helper.make_node(op, [f"o{i}" for i in range(len(operands))], [f"r{i}" for i in range(count)], **attributes)
    return result_types(node, "", opset, dict(zip(node.input, operands, strict=True)).__getitem__)


def test_the_standard_says_which_type_a_result_has():
    assert types("Add", "uint16", "uint16") == ["uint16"]
    assert types("Where", "bool", "int64", "int64") == ["int64"]
    assert types("TopK", "float16", "int64", count=2) == ["float16", "int64"]
    assert types("Split", "bool", count=3) == ["bool"] * 3
    assert types("Equal", "int64", "int64") == ["bool"]
    assert types("Cast", "float32", to=10) == ["float16"]
    assert types("CastLike", "float32", "bool") == ["bool"]
    assert types("QuantizeLinear", "float32", "float32") == ["uint8"]
    assert types("QuantizeLinear", "float32", "float32", "int8") == ["int8"]
    assert types("Dropout", "float16", count=2) == ["float16", "bool"]
    assert types("Constant", value_ints=[1, 2]) == ["int64"]
    assert types("ConstantOfShape", "int64") == ["float32"]
    assert types("NoSuchOp", "int64", count=2) == ["", ""]


def test_what_is_declared_wins():
    proto, _ = model("(float[2] x) => (float[2] y) { a = Shape(x) b = Cast <to=9>(x) y = Relu(x) }")
    proto.graph.value_info.append(helper.make_tensor_value_info("a", 6, [1]))
    importer = Importer(proto, None)
    scope = Scope(importer, Builder())
    scope.declare(proto.graph)
    importer._input(scope, proto.graph.input[0])
    scope.translate(proto.graph.node)
    assert [scope.source_type(name) for name in "xaby"] == ["float32", "int32", "bool", "float32"]
