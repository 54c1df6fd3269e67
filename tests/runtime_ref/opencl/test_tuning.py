"""Choices among variants: measured when asked for, remembered for the device, and never trusted when damaged."""

from __future__ import annotations

import multiprocessing
import os

import numpy as np
import pytest

from mnnconvert.runtime_ref.opencl.cache import Folder
from mnnconvert.runtime_ref.opencl.lower import Variant
from mnnconvert.runtime_ref.opencl.tuning import Tuning

TEXT = "kernel void f(global real *y, int n) { if (get_global_id(0) < n) y[get_global_id(0)] = 1; }"


def variants(*locals_: int) -> list[Variant]:
    return [Variant("f", (64,), (local,), {}, {"n": 64}, TEXT) for local in locals_]


@pytest.fixture
def here(tmp_path, monkeypatch, device):
    """The device with an empty folder."""
    monkeypatch.setenv("MNNCONVERT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(device, "folder", Folder(device.identity))
    return device


def refused(variant, best):
    raise AssertionError("nobody asked for a measurement")


def test_without_tuning_the_first_one_is_taken(here):
    assert Tuning(here).best(variants(1, 8, 64), refused) == 0
    assert not here.folder.path.exists()


def test_the_fastest_is_remembered(here):
    seconds = {1: 3.0, 8: 1.0, 64: 2.0}
    assert Tuning(here, measure=True).best(variants(1, 8, 64), lambda v, best: seconds[v.local[0]]) == 1
    assert Tuning(here).best(variants(1, 8, 64), refused) == 1
    assert Tuning(here, measure=True).best(variants(1, 8, 64), refused) == 1


def test_other_work_is_another_choice(here):
    Tuning(here, measure=True).best(variants(1, 8), lambda v, best: -v.local[0])
    other = [Variant("f", (64,), v.local, {}, {"n": 65}, TEXT) for v in variants(1, 8)]
    text = [Variant("f", (64,), v.local, {}, {"n": 64}, TEXT.replace("= 1", "= 2")) for v in variants(1, 8)]
    for changed in (other, text, variants(1, 8, 16)):
        assert Tuning(here).best(changed, refused) == 0


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b"", lambda b: b[:40] + b"\0" + b[41:], lambda b: b * 2]
)
def test_a_damaged_file_is_not_read(here, damage):
    Tuning(here, measure=True).best(variants(1, 8), lambda v, best: -v.local[0])
    (file,) = here.folder.path.glob("*.json")
    file.write_bytes(damage(file.read_bytes()))
    assert Tuning(here).best(variants(1, 8), refused) == 0
    assert Tuning(here, measure=True).best(variants(1, 8), lambda v, best: -v.local[0]) == 1
    assert Tuning(here).best(variants(1, 8), refused) == 1


def test_where_nothing_can_be_written_nothing_is_kept(here, tmp_path):
    (tmp_path / "opencl").write_text("a file where the folder would be")
    assert Tuning(here, measure=True).best(variants(1, 8), lambda v, best: -v.local[0]) == 1
    assert Tuning(here).best(variants(1, 8), refused) == 0


def write_often(path, content):
    os.environ["MNNCONVERT_CACHE_DIR"] = path
    folder = Folder("device")
    for _ in range(200):
        folder.write("one", content)


def test_two_processes_that_write_leave_one_whole_file(tmp_path, monkeypatch):
    monkeypatch.setenv("MNNCONVERT_CACHE_DIR", str(tmp_path))
    contents = [bytes([i]) * 50_000 for i in (1, 2)]
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=write_often, args=(str(tmp_path), c)) for c in contents]
    for writer in writers:
        writer.start()
    seen = set()
    while any(w.is_alive() for w in writers):
        seen.add(Folder("device").read("one"))
    for writer in writers:
        writer.join()
    assert seen - {None} <= set(contents)
    assert Folder("device").read("one") in contents
    assert [p.name for p in Folder("device").path.iterdir()] == ["one"]


def test_programs_time_what_they_choose_from(here):
    """The choice among real variants, made by a program."""
    from mnnconvert.ir import F32, Builder, Graph
    from mnnconvert.ops.elementwise import Unary
    from mnnconvert.runtime_ref.session import Session

    b = Builder(Graph())
    b.output(b.add(Unary("ABS"), b.input("x", F32, (300, 7)), name="y"))
    x = np.linspace(-1, 1, 2100, dtype=np.float32).reshape(300, 7)
    for tune in (True, False):
        assert np.array_equal(Session(b.graph, "opencl", tune=tune).run({"x": x})["y"], np.abs(x))
