"""Which device is taken, what it is allowed to do, and what users are told where there is none."""

from __future__ import annotations

import subprocess
import sys
import time
from importlib.util import find_spec

import numpy as np
import pytest

from mnnconvert.errors import UsageError
from mnnconvert.runtime_ref.opencl import device as devices
from mnnconvert.runtime_ref.opencl.device import Device, parsed


@pytest.fixture
def fresh(monkeypatch):
    """The choice of a device is made anew; that of other tests stays."""
    monkeypatch.setattr(devices, "device", devices.device.__wrapped__)


def test_a_device_can_be_named(fresh, device, monkeypatch):
    monkeypatch.setenv("MNNCONVERT_OPENCL_DEVICE", device.cl.name.strip()[:6].upper())
    assert devices.device().cl == device.cl


def test_a_device_that_is_not_there(fresh, monkeypatch):
    monkeypatch.setenv("MNNCONVERT_OPENCL_DEVICE", "no such thing")
    with pytest.raises(UsageError, match="no OpenCL device 'no such thing'") as caught:
        devices.device()
    assert caught.value.diagnostics[0].reference == "unsupported-backend"
    assert "pocl" in (caught.value.diagnostics[0].hint or "")


def test_without_pyopencl(fresh, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    with pytest.raises(UsageError, match="needs pyopencl"):
        devices.device()


@pytest.mark.skipif(find_spec("tensorflow") is None, reason="needs TensorFlow (make setup)")
@pytest.mark.parametrize("first", [True, False])
def test_beside_tensorflow(device, first):
    """Its LLVM, which it offers to the whole process, is not taken for the driver's own."""
    never_built = time.time_ns() % 1000003
    text = f"kernel void f(global int *x) {{ x[get_global_id(0)] *= {never_built}; }}"
    steps = ["import tensorflow", "from mnnconvert.runtime_ref.opencl.device import device; found = device()"]
    build = f"import pyopencl; pyopencl.Program(found.context, {text!r}).build(); print('built')"
    code = "\n".join([*(steps if first else steps[::-1]), build])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "built\n", done.stderr[-2000:]


def test_limits_can_only_be_lowered(device, monkeypatch):
    monkeypatch.setenv("MNNCONVERT_OPENCL_LIMITS", "work_group=64, image_width=0,local_bytes=999999999999")
    lied = Device(device.cl).limits
    assert (lied.work_group, lied.image_width) == (64, 0)
    assert lied.local_bytes == device.limits.local_bytes


@pytest.mark.parametrize("text", ["work_group", "work_group=many", "speed=3", "lanes=5"])
def test_limits_that_make_no_sense(device, monkeypatch, text):
    monkeypatch.setenv("MNNCONVERT_OPENCL_LIMITS", text)
    with pytest.raises(UsageError, match="MNNCONVERT_OPENCL_LIMITS"):
        Device(device.cl)


def test_parameters_are_read_from_the_text():
    text = "kernel void f(global const real *x,\n  global int *y, read_only image2d_t w, int n, float low)\n{}"
    kinds = {"x": "tensor", "y": "tensor", "w": "tensor", "n": "int", "low": "float"}
    assert parsed(text, "f.cl")["f"].parameters == kinds
    assert list(parsed(text, "f.cl")["f"].parameters) == ["x", "y", "w", "n", "low"]


def test_an_array_comes_back(device):
    import pyopencl as cl

    for array in (np.arange(7, dtype=np.int8), np.zeros((0, 3), np.float32), np.float32(3)):
        read = np.empty_like(array)
        buffer, queue = device.upload(array), device.queue()
        if read.nbytes:
            cl.enqueue_copy(queue, read, buffer)
        assert np.array_equal(read, array)


def test_other_backends_do_not_import_it():
    script = (
        "import sys, mnnconvert, mnnconvert.api, mnnconvert.runtime_ref.session\n"
        "from mnnconvert.ir import Builder, Graph\n"
        "mnnconvert.runtime_ref.session.Session(Builder(Graph()).graph)\n"
        "sys.exit('pyopencl' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
