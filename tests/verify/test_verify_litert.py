"""LiteRT as the source engine of TFLite models, and what counts as the same code."""

from __future__ import annotations

import numpy as np
import pytest
from tflite_cases import G, Op, T, build, const, one

from mnnconvert.errors import ConversionError
from mnnconvert.verification import open_source
from mnnconvert.verify import litert_engine
from mnnconvert.verify.compare import Tolerance, compare_outputs
from mnnconvert.verify.litert_engine import LiteRtEngine

TOLERANCE = Tolerance(0.0, 0.0)


def engine(content: bytes, folder) -> LiteRtEngine:
    path = folder / "m.tflite"
    path.write_bytes(content)
    opened = open_source(path)
    assert isinstance(opened, LiteRtEngine)
    return opened


def test_inputs_and_outputs(tmp_path):
    opened = engine(one("ABS", [T((-1, 3))], [T((-1, 3))], "AbsOptions"), tmp_path)
    (info,) = opened.inputs
    assert (info.name, info.dtype, info.shape, info.step) == ("t0", np.float32, ("t0.0", 3), 0)
    for count in (2, 5, 1):
        x = np.full((count, 3), -2, np.float32)
        np.testing.assert_array_equal(opened.run({"t0": x})["t1"], -x)


def test_codes_are_told_apart_from_numbers(tmp_path):
    opened = engine(one("QUANTIZE", [T((2,))], [T((), "int8", 0.1, 3)], "QuantizeOptions"), tmp_path)
    assert [info.step for info in (*opened.inputs, *opened.outputs)] == [0, 1]


def test_floats_that_codes_stand_for_have_steps_too(tmp_path):
    tensors = [T((2, 3), "int8", 0.25, 3), T((2, 3)), const([6]), T((6,))]
    ops = [Op("DEQUANTIZE", [0], [1], "DequantizeOptions"), Op("RESHAPE", [1, 2], [3], "ReshapeOptions")]
    opened = engine(build(G(tensors, ops, [0], [3])), tmp_path)
    assert [info.step for info in (*opened.inputs, *opened.outputs)] == [1, 0.25]
    want = {"y": np.array([0.5, 0.75], np.float32)}
    for got, passed in (([0.5, 1.0], True), ([0.5, 1.25], False), ([0.25, 0.75], True)):
        assert compare_outputs({"y": np.array(got, np.float32)}, want, TOLERANCE, steps={"y": 0.25}).passed == passed


def test_activations_are_not_rounded_for_integer_weights(tmp_path):
    """LiteRT alone would be off by a thousandth, and says nothing of it."""
    random = np.random.default_rng(0)
    codes = random.integers(-127, 128, (16, 64)).astype(np.int8)
    weight = T((16, 64), "int8", 0.02, 0, 0, codes)
    opened = engine(one("FULLY_CONNECTED", [T((3, 64)), weight], [T()], "FullyConnectedOptions"), tmp_path)
    x = random.standard_normal((3, 64)).astype(np.float32)
    want = x @ (codes.astype(np.float32) * np.float32(0.02)).T
    np.testing.assert_allclose(opened.run({"t0": x})["t2"], want, rtol=0, atol=1e-5)
    assert "decoded weights" in opened.notes[0] and "FULLY_CONNECTED" in opened.notes[0]


def test_variables_start_where_they_are_fed(tmp_path):
    handle = ("VarHandleOptions", {"container": "", "sharedName": "total"})
    x = T((2,))
    main = G(
        [x, T((), "resource"), x, x],
        [Op("VAR_HANDLE", [], [1], *handle), Op("READ_VARIABLE", [1], [2]), Op("ADD", [0, 2], [3], "AddOptions"),
         Op("ASSIGN_VARIABLE", [1, 3], [])], [0], [3],
    )  # fmt: skip
    opened = engine(build(main), tmp_path)
    assert [i.name for i in opened.inputs] == ["t0", "total"]
    one_, two = np.ones(2, np.float32), np.full(2, 2, np.float32)
    for _ in range(2):  # nothing is kept
        results = opened.run({"t0": one_, "total": two})
        np.testing.assert_array_equal(results["total/next"], results["t3"])
        np.testing.assert_array_equal(results["t3"], [3, 3])


def test_what_it_cannot_run_is_an_error_of_the_engine(tmp_path):
    with pytest.raises(ConversionError) as caught:
        engine(one("CONCAT_EMBEDDINGS", [T((2,))], [T()]), tmp_path)
    assert caught.value.diagnostics[0].reference == "source-engine-failed"
    opened = engine(one("ADD", [T((2,)), const(np.ones(2))], [T()], "AddOptions"), tmp_path)
    with pytest.raises(ConversionError) as caught:
        opened.run({"t0": np.ones(3, np.float32)})
    assert caught.value.diagnostics[0].reference == "source-engine-failed"
    np.testing.assert_array_equal(opened.run({"t0": np.ones(2, np.float32)})["t2"], [2, 2])


def test_without_the_package(tmp_path, monkeypatch):
    monkeypatch.setattr(litert_engine, "find_spec", lambda name: None)
    with pytest.raises(ConversionError) as caught:
        engine(one("ABS", [T((2,))], [T()]), tmp_path)
    (problem,) = caught.value.diagnostics
    assert problem.reference == "source-engine-missing" and "mnnconvert[litert]" in problem.hint


@pytest.mark.parametrize(
    ("apart", "passed"),
    [([0] * 2000, True), ([1] * 2000, True), ([2] * 2 + [0] * 1998, True), ([2] * 3 + [0] * 1997, False),
     ([3] + [0] * 1999, False), ([2], False), ([-1], True)],
)  # fmt: skip
def test_codes_may_be_a_step_apart(apart, passed):
    want = {"y": np.zeros(len(apart), np.int8)}
    got = {"y": np.array(apart, np.int32)}
    assert compare_outputs(got, want, TOLERANCE, steps={"y": 1}).passed == passed
    assert compare_outputs(got, want, TOLERANCE).passed == (not any(apart))


def test_other_shapes_of_codes_are_missed():
    got, want = {"y": np.zeros((2, 3), np.int8)}, {"y": np.zeros(6, np.int8)}
    assert not compare_outputs(got, want, TOLERANCE, steps={"y": 1}).passed


def test_constants_can_be_changed(tmp_path):
    """Those in float32 and in float16; integers stay, and so does the engine itself."""
    half = const(np.array([1.5, -2.25]), "float16")
    whole, shape = const(np.array([10.0, 20.0], np.float32)), const([3, 2])
    tensors = [T((3, 2)), half, T((2,)), T((3, 2)), whole, T((3, 2)), shape, T((3, 2))]
    ops = [
        Op("DEQUANTIZE", [1], [2], "DequantizeOptions"), Op("MUL", [0, 2], [3], "MulOptions"),
        Op("ADD", [3, 4], [5], "AddOptions"), Op("RESHAPE", [5, 6], [7], "ReshapeOptions"),
    ]  # fmt: skip
    opened = engine(build(G(tensors, ops, [0], [7])), tmp_path)
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    other = opened.with_constants(lambda numbers: numbers * np.float32(1 + 1e-6))
    factors = np.array([1.5, -2.25], np.float32) * np.float32(1 + 1e-6)
    want = x * factors + np.array([10.0, 20.0], np.float32) * np.float32(1 + 1e-6)
    np.testing.assert_array_equal(other.run({"t0": x})["t7"], want)
    np.testing.assert_array_equal(opened.run({"t0": x})["t7"], x * np.array([1.5, -2.25], np.float32) + [10, 20])
