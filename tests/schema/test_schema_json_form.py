"""The JSON form: exact round trips, what it accepts, and where it says an error is."""

from __future__ import annotations

import io
import json
import random
import time

import numpy as np
import pytest
from schema_trees import random_tree, to_bytes

from mnnconvert.errors import ConversionError
from mnnconvert.schema.flatbuffer import read
from mnnconvert.schema.json_form import from_json, to_json
from mnnconvert.schema.tables import (
    ELU,
    Blob,
    DataType,
    Input,
    ListValue,
    NamedAttrList,
    Net,
    NetSource,
    Op,
    OpType,
    Pool,
    Relu,
    Scale,
    SubGraphProto,
)


def text_of(root):
    stream = io.StringIO()
    to_json(root, stream)
    return stream.getvalue()


@pytest.mark.parametrize("seed", range(60))
def test_file_to_json_to_file_is_byte_identical(seed):
    tree = random_tree(seed)
    data = to_bytes(tree)
    again = from_json(text_of(read(data, type(tree))), type(tree))
    assert to_bytes(again) == data


def test_the_text_is_as_people_expect_it():
    net = Net(
        oplists=[Op(main=Input(dims=np.array([1, 3], np.int32)), type=OpType.Input, outputIndexes=np.array([0], "i4"))],
        sourceType=NetSource.ONNX,
        tensorName=["größe", 'a"b'],
    )
    document = json.loads(text_of(net))
    assert document["oplists"] == [
        {
            "main_type": "Input",
            "main": {"dims": [1, 3], "dtype": "DT_FLOAT", "dformat": "NC4HW4"},
            "outputIndexes": [0],
            "type": "Input",
            "defaultDimentionFormat": "NHWC",
        }
    ]
    assert document["tensorName"] == ["größe", 'a"b']
    assert document["sourceType"] == "ONNX"
    assert '"tensorName": ["größe", ' in text_of(net)


def test_floats_are_short_and_exact():
    values = np.array([0.1, 1 / 3, 1e-45, 3.4028235e38, 16777216, -0.0], np.float32)
    text = text_of(Scale(scaleData=values))
    assert "[0.1, 0.33333334, 1e-45, 3.4028235e+38, 1.6777216e+07, -0.0]" in text
    assert from_json(text, Scale).scaleData.tobytes() == values.tobytes()
    assert '"alpha": 0.1\n' in text_of(ELU(alpha=float(np.float32(0.1))))


def test_random_floats_come_back_to_the_bit():
    bits = np.random.default_rng(1).integers(0, 2**32, 50_000, np.uint32).view(np.float32)
    values = bits[~np.isnan(bits)]
    assert from_json(text_of(Scale(scaleData=values)), Scale).scaleData.tobytes() == values.tobytes()


def test_numbers_that_are_not_finite():
    values = np.array([np.nan, np.inf, -np.inf, 1], np.float32)
    tree = Op(name="nan, -inf", main=Scale(scaleData=values))
    assert '"scaleData": [nan, inf, -inf, 1.0]' in text_of(tree)
    assert from_json(text_of(tree), Op) == tree
    assert np.isnan(from_json('{"slope": NaN}', Relu).slope)
    assert from_json('{"slope": -Infinity}', Relu).slope == -np.inf


def test_enums_may_be_numbers_and_fields_may_be_missing():
    op = from_json('{"type": 1, "main_type": 31, "main": {"padType": 2, "type": 99, "isGlobal": 1}}', Op)
    assert op == Op(type=OpType(1), main=Pool(padType=2, type=99, isGlobal=True))
    assert from_json("{}", Net) == Net()
    assert from_json('{"name": null}', Op) == Op()
    kinds = from_json('{"type": ["DT_INT8", 3]}', ListValue)
    assert kinds.type.tolist() == [DataType.DT_INT8, DataType.DT_INT32]
    assert '"type": ["DT_INT8", "DT_INT32"]' in text_of(kinds)


def test_payloads_are_written_out():
    class Three:
        nbytes = 12

        def write_to(self, stream):
            stream.write(np.array([1, 2, 3], "<i4").tobytes())

    assert '"int32s": [1, 2, 3]' in text_of(Blob(int32s=Three()))


@pytest.mark.parametrize(
    ("text", "root", "path", "sentence"),
    [
        ("{", Net, None, "not JSON"),
        ("[" * 100_000, Net, None, "not JSON"),
        ("[]", Net, "(root)", "Expected an object, found a list"),
        ('{"oplist": []}', Net, "oplist", "The table Net has no such field"),
        ('{"oplists": [{}, {"nam": 1}]}', Net, "oplists[1].nam", "The table Op has no such field"),
        ('{"oplists": {}}', Net, "oplists", "Expected a list of objects"),
        ('{"name": 3}', Op, "name", "Expected a string, found 3"),
        ('{"name": "\\ud800"}', Op, "name", "surrogate"),
        ('{"tensors": ["a", null]}', SubGraphProto, "tensors[1]", "Expected a string, found null"),
        ('{"type": "Conv"}', Op, "type", 'OpType has no member "Conv"'),
        ('{"type": true}', Op, "type", "Expected the name of an enum member"),
        ('{"type": 3000000000}', Op, "type", "does not fit"),
        ('{"main": {}}', Op, "main_type", "Expected the name of the table in 'main', found null"),
        ('{"main_type": "Reluu", "main": {}}', Op, "main_type", 'found "Reluu"'),
        ('{"main_type": "Relu", "main": {"slope": "1"}}', Op, "main.slope", "Expected a number"),
        ('{"slope": 1e39}', Relu, "slope", "does not fit"),
        ('{"slope": 1' + "0" * 400 + "}", Relu, "slope", "does not fit"),
        ('{"kernelX": 1.5}', Pool, "kernelX", "Expected a whole number, found 1.5"),
        ('{"isGlobal": "true"}', Pool, "isGlobal", "Expected true or false"),
        ('{"dims": [1, 2.5]}', Blob, "dims[1]", "2.5 is not an element of a int32 list"),
        ('{"dims": [1, "2"]}', Blob, "dims[1]", '"2" is not'),
        ('{"dims": [1, [2]]}', Blob, "dims[1]", "a list is not"),
        ('{"dims": [0, 2147483648]}', Blob, "dims[1]", "2147483648 is not"),
        ('{"int64s": [1, 99999999999999999999]}', Blob, "int64s[1]", "is not an element"),
        ('{"float32s": [1, 1e39]}', Blob, "float32s[1]", "1e+39 is not"),
        ('{"type": ["DT_FLOAT", "DT_NONE"]}', ListValue, "type[1]", '"DT_NONE" is not'),
        ('{"dims": 3}', Blob, "dims", "Expected a list of numbers, found 3"),
    ],
)
def test_errors_name_the_place(text, root, path, sentence):
    with pytest.raises(ConversionError) as error:
        from_json(text, root)
    diagnostic = error.value.diagnostics[0]
    assert diagnostic.reference == "bad-json-model"
    assert diagnostic.context.get("path") == path
    assert sentence in diagnostic.message


def test_deep_objects_are_refused():
    text = '{"attr": [{"func": ' * 40 + "{}" + "}]}" * 40
    with pytest.raises(ConversionError, match="deeper than 64 levels"):
        from_json(text, NamedAttrList)


@pytest.mark.parametrize("seed", range(10))
def test_damaged_text_gives_a_named_error_and_nothing_else(seed):
    source = random.Random(seed)
    text = text_of(random_tree(seed, Op))
    for _ in range(30):
        at = source.randrange(len(text))
        broken = text[:at] + source.choice(['"', "{", "]", "1e999", "nan", "\\", "null", ""]) + text[at + 1 :]
        try:
            from_json(broken, Op)
        except ConversionError as error:
            assert error.diagnostics[0].reference == "bad-json-model"


def test_a_large_model_takes_seconds():
    values = np.random.default_rng(0).normal(size=200_000).astype(np.float32)
    start = time.perf_counter()
    assert from_json(text_of(Scale(scaleData=values)), Scale).scaleData.size == values.size
    assert time.perf_counter() - start < 3  # seconds for 0.8 MB; 0.25 on an idle machine
