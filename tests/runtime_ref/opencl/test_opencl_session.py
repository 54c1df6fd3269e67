"""Sessions on OpenCL: fallbacks and their refusal, halves, stages, profiles, threads, several sessions at once."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from mnnconvert.cli.main import main
from mnnconvert.errors import ConversionError, UsageError
from mnnconvert.ir import F32, I32, Builder, Graph
from mnnconvert.ops.elementwise import Binary, Unary
from mnnconvert.ops.search import Where
from mnnconvert.ops.signal import Stft
from mnnconvert.runtime_ref.session import Session
from mnnconvert.schema.writer import write_model


def chain():
    b = Builder(Graph())
    x = b.input("x", F32, ("n", 5))
    b.output(b.add(Binary("ADD"), b.add(Unary("EXP"), x, name="e"), x, name="y"))
    return b.graph


def mixed():
    """An op that has no kernel between two that have."""
    b = Builder(Graph())
    x = b.input("x", F32, (1, 64))
    window = b.constant(np.hanning(16).astype(np.float32), "window")
    step = b.constant(np.array(8, np.int32), "step")
    s = b.add(Stft(n_fft=16, hop_length=8), b.add(Unary("ABS"), x, name="a"), step, window, name="s")
    b.output(b.add(Unary("NEG"), s, name="y"))
    return b.graph


def test_sizes_may_change_and_values_be_asked_for():
    session = Session(chain(), "opencl")
    for n in (1, 3, 40, 3):
        x = np.random.default_rng(n).standard_normal((n, 5)).astype(np.float32)
        got = session.run({"x": x}, ["y", "e"])
        assert np.allclose(got["y"], np.exp(x) + x, rtol=1e-5) and np.allclose(got["e"], np.exp(x), rtol=1e-5)
    assert session.fallbacks == {}


def test_what_has_no_kernel_is_counted_or_refused():
    graph = mixed()
    x = {"x": np.random.default_rng(0).standard_normal((1, 64)).astype(np.float32)}
    session = Session(graph, "opencl")
    want = Session(graph, "reference").run(x)["y"]
    assert np.allclose(session.run(x)["y"], want, atol=1e-5)
    assert session.fallbacks == {"Stft": 1}
    with pytest.raises(ConversionError, match="no kernel for this Stft") as caught:
        Session(graph, "opencl", strict=True).run(x)
    assert caught.value.diagnostics[0].reference == "no-kernel"
    assert {t.kernel for t in session.profile(x)} == {"chain", "reference"}


def test_stages_end_where_sizes_depend_on_data():
    b = Builder(Graph())
    x = b.input("x", I32, (6,))
    found = b.add(Where(), b.add(Binary("GREATER"), x, b.constant(np.array(2, np.int32), "two"), name="g"), name="w")
    b.output(b.add(Binary("MUL"), found, b.constant(np.array(10, np.int32), "ten"), name="y"))
    session = Session(b.graph, "opencl")
    assert session.fallbacks == {}
    for x in ([1, 5, 0, 3, 2, 9], [0, 0, 0, 0, 0, 7]):
        array = np.array(x, np.int32)
        assert np.array_equal(session.run({"x": array})["y"], np.argwhere(array > 2) * 10)
    assert session.fallbacks == {"Where": 1}


def test_halves_are_storage():
    graph = chain()
    x = np.random.default_rng(1).standard_normal((30, 5)).astype(np.float32)
    exact, half = (Session(graph, "opencl", precision=p).run({"x": x})["y"] for p in ("exact", "half"))
    assert half.dtype == np.float32
    error = np.abs(half - exact).max()
    assert 0 < error <= np.abs(exact).max() * 2e-3
    assert np.array_equal(half, half.astype(np.float16).astype(np.float32))


def test_halves_are_for_opencl():
    with pytest.raises(UsageError, match="exact or fast on cpu"):
        Session(chain(), "cpu", precision="half")


def test_what_is_not_finite_stays_so():
    x = np.array([[np.nan, np.inf, -np.inf, 0.0, -0.0]], np.float32)
    with np.errstate(all="ignore"):
        got = Session(chain(), "opencl").run({"x": x})["y"]
        assert np.array_equal(got, np.exp(x) + x, equal_nan=True)


def test_two_sessions_in_two_threads():
    x = np.random.default_rng(2).standard_normal((64, 5)).astype(np.float32)
    sessions, answers = [Session(chain(), "opencl") for _ in range(2)], []

    def work(session):
        answers.extend(session.run({"x": x})["y"].tobytes() for _ in range(50))

    threads = [threading.Thread(target=work, args=(s,)) for s in (*sessions, sessions[0])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 150 and len(set(answers)) == 1


def test_more_than_the_device_gives(device, monkeypatch):
    class Small:
        max_mem_alloc_size = 1 << 10

        def __getattr__(self, name):
            return getattr(device.cl, name)

    session = Session(chain(), "opencl")
    monkeypatch.setattr(session._executor.device, "cl", Small())
    with pytest.raises(ConversionError, match="do not fit"):
        session.run({"x": np.zeros((1000, 5), np.float32)}, ["y", "e"])


def test_the_commands(tmp_path, capsys):
    path = str(tmp_path / "m.mnn")
    write_model(mixed(), tmp_path / "m.mnn")
    assert main(["run", path, "--backend", "opencl"]) == 0
    printed = capsys.readouterr()
    assert "Computed on the CPU, without an OpenCL kernel: Stft (1)" in printed.out + printed.err
    assert main(["run", path, "--backend", "opencl", "--strict-backend"]) == 1
    assert "no-kernel" in capsys.readouterr().err
    quick = ["--rounds", "2", "--warmup", "1"]
    assert main(["bench", path, "--backend", "opencl", "--tune", "--profile", *quick]) == 0
    assert "chain" in capsys.readouterr().out
    assert main(["ops", "--backend", "opencl", "--md"]) == 0
    assert "| Unary | opencl |" in capsys.readouterr().out
    assert main(["verify", path, path, "--engine", "opencl"]) == 0
