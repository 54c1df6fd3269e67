"""Damaged models: tables that contradict each other end in a named error, soon."""

import random
import time

import flatbuffers
import numpy as np
import pytest
from tflite_cases import G, Op, T, build, const, import_bytes, one, refusal, schema

from mnnconvert.errors import MnnConvertError
from mnnconvert.frontends.tflite import importer
from mnnconvert.frontends.tflite.model import parse

SECONDS = 10
NUMBERS = [0, -1, 1, 2, 3, 7, -7, 100, 2**31 - 1]
STEPS = [[0.0], [-1.0], [1e38], [1e-40], [0.1, 0.2], [float("nan")]]
CODES = {"scale": 0.1, "zero": 3}
CONV = {"strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}
HANDLE = T((1,), "resource")


def ones(*shape, type="float32", **more):
    return const(np.ones(shape, type), **more)


def chain(count, calls):
    """Graphs of which each calls the next so many times."""
    ops = [Op("CALL", [i], [i + 1], "CallOptions") for i in range(calls)]
    graphs = []
    for number in range(count):
        made = [Op(o.name, o.inputs, o.outputs, o.options, {"subgraph": number + 1}) for o in ops]
        graphs.append(G([T((2,))] * (calls + 1), made, [0], [calls]))
    return build(*graphs, G([T((2,))] * 2, [Op("ABS", [0], [1])], [0], [1]))


MODELS = {
    "floats": build(G(
        [T((1, 6, 6, 3)), ones(4, 3, 3, 3), ones(4), T((1, 6, 6, 4)), const([1, 144]), T((1, 144)), ones(5, 144),
         ones(5), T((1, 5)), T((1, 5))],
        [Op("CONV_2D", [0, 1, 2], [3], "Conv2DOptions", CONV), Op("RESHAPE", [3, 4], [5]),
         Op("FULLY_CONNECTED", [5, 6, 7], [8], "FullyConnectedOptions"), Op("SOFTMAX", [8], [9], "SoftmaxOptions")],
        [0], [9],
    )),
    "codes": build(G(
        [T((1, 6, 6, 3), "int8", **CODES), ones(4, 3, 3, 3, type="int8", scale=[0.1] * 4),
         ones(4, type="int32", scale=[0.01] * 4), *[T((1, 6, 6, 4), "int8", **CODES)] * 2,
         T((1, 6, 6, 8), "int8", **CODES), T((1, 6, 6, 8))],
        [Op("CONV_2D", [0, 1, 2], [3], "Conv2DOptions", CONV), Op("ADD", [3, 3], [4], "AddOptions"),
         Op("CONCATENATION", [3, 4], [5], "ConcatenationOptions", {"axis": -1}), Op("DEQUANTIZE", [5], [6])],
        [0], [6],
    )),
    "control": build(
        G([T((2,)), T((), "bool"), T((2,)), T((2,))],
          [Op("IF", [1, 0], [2], "IfOptions", {"thenSubgraphIndex": 1, "elseSubgraphIndex": 2}),
           Op("CALL", [2], [3], "CallOptions", {"subgraph": 1})], [0, 1], [3]),
        G([T((2,))] * 2, [Op("ABS", [0], [1])], [0], [1]), G([T((2,))] * 2, [Op("NEG", [0], [1])], [0], [1]),
    ),
    "variables": build(
        G([HANDLE, T((2,)), T((2,)), T((2,))],
          [Op("CALL_ONCE", [], [], "CallOnceOptions", {"initSubgraphIndex": 1}),
           Op("VAR_HANDLE", [], [0], "VarHandleOptions", {"sharedName": "v"}), Op("READ_VARIABLE", [0], [2]),
           Op("ADD", [1, 2], [3], "AddOptions"), Op("ASSIGN_VARIABLE", [0, 3], [])], [1], [3]),
        G([HANDLE, ones(2)], [Op("VAR_HANDLE", [], [0], "VarHandleOptions", {"sharedName": "v"}),
                              Op("ASSIGN_VARIABLE", [0, 1], [])], [], []),
    ),
}  # fmt: skip


def entries(vector):
    return [] if vector is None else [int(i) for i in vector]


def change(pick, model):
    """One change of what the tables say."""
    graph = pick.choice(model.subgraphs)
    place, tensor = pick.randrange(-1, len(graph.tensors)), pick.choice(graph.tensors)
    operator, what = pick.choice(graph.operators), pick.randrange(9)
    if what < 3:
        field = ("inputs", "outputs")[what == 2]
        values = entries(getattr(operator, field))
        where = pick.randrange(len(values) + 1)
        setattr(operator, field, values[:where] + [place] * pick.randrange(2) + values[where + pick.randrange(2) :])
    elif what == 3 and operator.builtinOptions is not None and vars(operator.builtinOptions):
        field = pick.choice(list(vars(operator.builtinOptions)))
        if type(getattr(operator.builtinOptions, field)) is int:
            setattr(operator.builtinOptions, field, pick.randrange(6))
    elif what == 4:
        code = pick.choice(model.operatorCodes)
        code.builtinCode = pick.randrange(160)
        code.deprecatedBuiltinCode = min(127, code.builtinCode)
    elif what == 5:
        sizes = entries(tensor.shape)
        where = pick.randrange(len(sizes) + 1)
        tensor.shape = sizes[:where] + [pick.choice(NUMBERS)] * pick.randrange(2) + sizes[where + 1 :]
    elif what == 6:
        tensor.type, tensor.isVariable = pick.randrange(19), pick.random() < 0.3
    elif what == 7:
        tensor.quantization = schema.QuantizationParametersT()
        tensor.quantization.scale = np.array(pick.choice(STEPS), np.float32)
        tensor.quantization.zeroPoint = np.array([pick.choice(NUMBERS)], np.int64)
    else:
        tensor.buffer = pick.randrange(len(model.buffers))


@pytest.mark.parametrize("name", MODELS)
def test_changed_tables(name):
    pick = random.Random(name)
    for _ in range(200):
        model = schema.ModelT.InitFromPackedBuf(bytearray(MODELS[name]), 0)
        for _ in range(pick.choice([1, 1, 2])):
            change(pick, model)
        builder, started = flatbuffers.Builder(1024), time.monotonic()
        builder.Finish(model.Pack(builder), b"TFL3")
        try:
            import_bytes(bytes(builder.Output()))
        except MnnConvertError as error:
            assert error.diagnostics
        assert time.monotonic() - started < SECONDS


@pytest.mark.parametrize("name", MODELS)
def test_the_models_are_sound_before(name):
    assert import_bytes(MODELS[name]).nodes


def test_a_weight_that_is_decoded_from_itself():
    """Its decoder stands behind its reader, so that the reader is translated first."""
    ops = [Op("FULLY_CONNECTED", [0, 1], [2], "FullyConnectedOptions"), Op("DEQUANTIZE", [1], [1])]
    problems = refusal(build(G([T((1, 4)), T((3, 4)), T((1, 3))], ops, [0], [2])))
    assert {p.reference for p in problems} == {"bad-tflite-file"}


def test_calls_without_end(monkeypatch):
    monkeypatch.setattr(importer, "MOST_CALLS", 500)  # the real one takes seconds
    for content in (chain(24, 2), chain(200, 1)):
        assert [p.reference for p in refusal(content)] == ["too-large"]


def test_a_variable_of_no_handle():
    content = build(G([T((2,)), T((2,))], [Op("READ_VARIABLE", [0], [1])], [0], [1]))
    assert "is no handle" in refusal(content)[0].message


def test_steps_of_zero():
    content = one("ABS", [T((2,), "int8", scale=0.1)], [T((2,), "int8", scale=0.0)], "AbsOptions")
    assert "in steps of 0" in refusal(content)[0].message


def test_a_bias_of_integers_without_a_scale():
    tensors = [T((1, 6, 6, 3)), ones(4, 3, 3, 3), ones(4, type="int32")]
    (problem,) = refusal(one("CONV_2D", tensors, [T()], "Conv2DOptions", **CONV))
    assert problem.reference == "bad-tflite-file" and "without a scale" in problem.message


def test_names_of_inputs_are_told_apart():
    x = T((2,), name="a")
    content = build(G([T((2,), name="a_2"), x, x, T((2,))], [Op("ADD_N", [0, 1, 2], [3])], [0, 1, 2], [3]))
    assert parse(content).input_names() == ["a_2", "a", "a_2_2"]
