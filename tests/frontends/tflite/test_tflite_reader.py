"""What is refused, and how: damaged files, unknown operators, missing packages."""

import importlib.util
import subprocess
import sys

import numpy as np
import pytest
from tflite_cases import G, Op, T, build, const, import_bytes, one, refusal

import mnnconvert
from mnnconvert.errors import ConversionError
from mnnconvert.frontends.tflite import model as records
from mnnconvert.frontends.tflite.importer import Importer
from mnnconvert.frontends.tflite.model import load, parse

CONTENT = one("FULLY_CONNECTED", [T((3, 8)), const(np.ones((5, 8))), const(np.ones(5))], [T()], "FullyConnectedOptions")


def test_all_unknown_operators_are_named_at_once():
    x = T((2, 3))
    ops = [Op("SKIP_GRAM", [0], [1]), Op("MyOwnOp", [1], [2]), Op("MyOwnOp", [2], [3]), Op("ABS", [3], [4])]
    problems = refusal(build(G([x] * 5, ops, [0], [4])))
    assert [p.reference for p in problems] == ["unsupported-op"] * 2
    assert problems[1].message == "there is no import rule for the custom operator 'MyOwnOp'"
    assert problems[1].context["uses"] == "2"


def test_no_tflite_file(tmp_path):
    path = tmp_path / "m.tflite"
    for data in (b"", b"abc", b"\x00" * 64, CONTENT[:7]):
        path.write_bytes(data)
        with pytest.raises(ConversionError) as caught:
            load(path)
        assert caught.value.diagnostics[0].reference == "bad-tflite-file"
    with pytest.raises(ConversionError) as caught:
        load(tmp_path / "other.tflite")
    assert caught.value.diagnostics[0].reference == "missing-file"


@pytest.mark.parametrize("seed", range(60))
def test_damaged_files_end_in_a_diagnostic_or_a_graph(seed):
    random = np.random.default_rng(seed)
    data = bytearray(CONTENT)
    for _ in range(int(random.integers(1, 9))):
        data[int(random.integers(0, len(data)))] = int(random.integers(0, 256))
    cut = len(data) if seed % 3 else int(random.integers(1, len(data)))
    try:
        Importer(parse(bytes(data[:cut]))).run()
    except ConversionError as error:
        assert error.diagnostics


def test_sizes_that_do_not_fit_the_data():
    bad = T((5, 9), "float32", data=np.ones((5, 8), np.float32))
    (problem,) = refusal(one("FULLY_CONNECTED", [T((3, 9)), bad], [T()], "FullyConnectedOptions"))
    assert problem.reference == "bad-tflite-file" and "160 bytes" in problem.message


def test_what_is_used_before_it_is_computed():
    (problem,) = refusal(build(G([T((2,)), T((2,)), T((2,))], [Op("ADD", [0, 1], [2], "AddOptions")], [0], [2])))
    assert problem.reference == "bad-tflite-file" and "before it is computed" in problem.message


def test_strings_are_refused_by_type():
    (problem,) = refusal(one("RESHAPE", [T((2,), "string"), const([2, 1])], [T((), "string")], "ReshapeOptions"))
    assert problem.reference == "unsupported-type" and "string" in problem.message


def test_open_sizes_are_fixed_by_name():
    content = one("ABS", [T((-1, 4))], [T((-1, 4))], "AbsOptions")
    assert import_bytes(content).inputs[0].shape == ("t0.0", 4)
    assert Importer(parse(content), batch=3).run().inputs[0].shape == (3, 4)
    assert Importer(parse(content), {"t0": (7, 4)}).run().inputs[0].shape == (7, 4)
    for shapes in ({"t0": (7, 5)}, {"t0": (7,)}, {"x": (1, 4)}):
        with pytest.raises(ConversionError) as caught:
            Importer(parse(content), shapes).run()
        assert caught.value.diagnostics[0].reference == "unknown-input"


def test_sparse_weights_are_dense_in_the_graph():
    """Rows of blocks of two columns: two of three blocks of row 0, none of row 1, one of row 2."""
    sparsity = records.Sparsity((0, 1, 2), (1,), ((3, None, None), (3, np.array([0, 2, 2, 3]), np.array([0, 2, 1])),
                                                  (2, None, None)))  # fmt: skip
    data = np.arange(1, 7, dtype=np.float32).view(np.uint8)
    tensor = records.SourceTensor("w", "float32", (3, 6), np.empty(0), np.empty(0), 0, data, False, sparsity)
    np.testing.assert_array_equal(tensor.array(), [[1, 2, 0, 0, 3, 4], [0] * 6, [0, 0, 5, 6, 0, 0]])


def test_without_the_package_the_extra_is_named(tmp_path, monkeypatch):
    path = tmp_path / "m.tflite"
    path.write_bytes(CONTENT)
    monkeypatch.setattr(records, "find_spec", lambda name: None)
    with pytest.raises(ConversionError) as caught:
        mnnconvert.convert(path, tmp_path / "m.mnn")
    (problem,) = caught.value.diagnostics
    assert problem.reference == "missing-extra" and "mnnconvert[tflite]" in problem.hint


def test_without_litert_the_file_is_written_with_a_note(tmp_path, monkeypatch):
    path = tmp_path / "m.tflite"
    path.write_bytes(CONTENT)
    real = importlib.util.find_spec
    absent = "ai_edge_litert"
    monkeypatch.setattr("mnnconvert.conversion.find_spec", lambda name: None if name == absent else real(name))
    report = mnnconvert.convert(path, tmp_path / "m.mnn")
    (note,) = report.diagnostics
    assert note.reference == "not-verified" and "mnnconvert[litert]" in note.hint


def test_content_tells_the_framework(tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(CONTENT)
    report = mnnconvert.convert(path, tmp_path / "m.mnn")
    assert report.framework == "TFLITE" and report.verification is not None and report.verification.passed


def test_reading_onnx_loads_nothing_of_tflite():
    script = (
        "import sys, mnnconvert.frontends.onnx.importer, mnnconvert.conversion, mnnconvert.verification;"
        "print(*(m for m in sys.modules if m.split('.')[0] in ('tflite', 'ai_edge_litert', 'flatbuffers')))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
