"""The benchmark of the engine works: models, processes, comparison of answers, ratios."""

from __future__ import annotations

import json
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import onnx
import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import engine
import engine_models
import novels
import quantizers as quantizer_speeds
from engine import Case, Figure, Result

ENGINES = ["reference", "onnxruntime", "MNN"]
TINY = [case.tiny for case in engine.CASES if case.name in ("mobilenet_v2", "bert", "gemv")]


@pytest.mark.mnn
@pytest.mark.parametrize("case", TINY, ids=lambda case: case.name)
def test_engines_agree_and_are_timed(case, tmp_path):
    result = engine.run(case, ENGINES, 1, 1, tmp_path, 0.001)
    assert list(result.figures) == ENGINES
    assert all(figure.milliseconds > 0 and figure.megabytes > 10 for figure in result.figures.values())
    assert result.gigaflops is not None and result.ratios.keys() == {"onnxruntime", "MNN"}


def test_an_engine_that_answers_otherwise_is_named(tmp_path):
    for name, value in (("cpu", 1.01), ("onnxruntime", 1.0)):
        np.savez(tmp_path / f"{name}.npz", y=np.array([-2.0, value]))
    paths = {name: tmp_path / f"{name}.npz" for name in ("cpu", "onnxruntime")}
    with pytest.raises(SystemExit, match=r"case: cpu is 5.0e-03 off, more than 0.001"):
        engine._compare(Case("case", engine.normal("x", 1)), paths)
    assert engine._compare(Case("case", engine.normal("x", 1), tolerance=0.01), paths)["onnxruntime"] == 0


def test_arithmetic_is_counted():
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[1,4,5,5] x) => (float y)
              { a = Conv(x, k)  b = Flatten(a)  y = MatMul(b, w) }"""
    model = onnx.parser.parse_model(text)
    for name, shape in {"k": (6, 4, 3, 3), "w": (54, 7)}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(shape, np.float32), name))
    found = engine.gigaflop(model, {"x": np.zeros((1, 4, 5, 5), np.float32)})
    assert found == pytest.approx(2e-9 * (6 * 9 * 36 + 54 * 7))


def test_ratios_are_kept_and_checked(tmp_path):
    path = tmp_path / "ratios.json"

    def measured(ours, calm=True):
        return [Result("net", 1, {"cpu": Figure(ours, calm, 1), "onnxruntime": Figure(2.0, True, 1)})]

    assert "no ratio" in engine.worse(measured(1.0), path)[0]
    engine.record(measured(1.0), path)
    engine.record(measured(0.5, calm=False), path)
    assert json.loads(path.read_text()) == {engine.level(): {"net/1": {"onnxruntime": 0.5}}}
    assert engine.worse(measured(1.14), path) == []
    assert "too busy" in engine.worse(measured(1.0, calm=False), path)[0]
    assert "0.58 of onnxruntime's time, recorded 0.50" in engine.worse(measured(1.16), path)[0]


def test_disturbed_samples_are_left_out():
    class Worker:
        engine = "cpu"

        def __init__(self, foreign):
            self.answers = iter([0.0, *foreign])

        def ask(self, **_):
            foreign = next(self.answers)
            return {"cpu": 0.001 * (1 + foreign), "wall": 1.0, "foreign": foreign}

    assert engine.take_turns([Worker([0.5, 0.1, 0.9, 0.1, 0.1])], 1, 3, 0) == {"cpu": (pytest.approx(1.1), True)}
    assert engine.take_turns([Worker([0.5] * 9)], 1, 3, 0) == {"cpu": (pytest.approx(1.5), False)}


def test_four_bits_are_packed_in_pairs():
    codes, scales, zeros = engine_models.four_bits(np.linspace(-1, 2, 128, dtype=np.float32).reshape(1, 128))
    assert codes.shape == (1, 2, 64) and codes.min() == 0 and codes.max() == 15
    assert zeros.tolist() == [[10, 0]] and scales.dtype == np.float32
    assert engine_models._nibbles(np.array([[1, 2, 3]])).tolist() == [[0x21, 0x03]]


def test_novels_are_read_from_records_of_r(tmp_path, monkeypatch):
    def record(*lines, kind=novels.LINE):
        head = b"X\n" + struct.pack(">iiii", 3, 0, 0, 5) + b"UTF-8" + struct.pack(">ii", 16, len(lines))
        words = [struct.pack(">ii", 0x40000 | kind, len(line.encode())) + line.encode() for line in lines]
        content = head + b"".join(words)
        return struct.pack(">I", len(content)) + zlib.compress(content)

    path = tmp_path / "Rdata.rdb"
    monkeypatch.setattr(novels, "RECORDS", path)
    path.write_bytes(record("EMMA", "", "Emma Woodhouse") + record("PRIDE AND PREJUDICE", "“Is he married?”"))
    novels.fetch()  # nothing to do
    assert novels.novel() == "PRIDE AND PREJUDICE\n“Is he married?”\n"
    with pytest.raises(novels.NovelsError, match="no novel is called 'Dracula'"):
        novels.novel("Dracula")
    path.write_bytes(record("EMMA", kind=10))
    with pytest.raises(novels.NovelsError, match="not vectors of lines"):
        novels.novel("EMMA")


@pytest.mark.parametrize(("there", "reason"), [(False, "a package of Debian"), (True, "Unable to fetch")])
def test_without_a_package_there_are_no_novels(there, reason, tmp_path, monkeypatch):
    monkeypatch.setattr(novels, "FOLDER", tmp_path / "novels")
    monkeypatch.setattr(novels, "RECORDS", tmp_path / "novels/Rdata.rdb")
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("apt-get", "dpkg-deb") if there else ():
        (tmp_path / name).write_text("#!/bin/sh\necho Unable to fetch >&2\nexit 100\n")
        (tmp_path / name).chmod(0o755)
    with pytest.raises(novels.NovelsError, match=reason):
        novels.fetch()


def test_quantizers_are_timed(monkeypatch, capsys):
    monkeypatch.setattr(quantizer_speeds, "LAYER", (64, 256))
    quantizer_speeds.speeds(1)
    lines = capsys.readouterr().out.splitlines()[1:]
    assert len(lines) == len(quantizer_speeds.ROWS)
    assert all(float(figure) > 0 for line in lines for figure in line.split()[-2:])
