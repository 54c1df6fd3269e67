"""The device: which one, what it can do, and kernels built for it.

`MNNCONVERT_OPENCL_DEVICE` is a part of the name of the platform or of the device to take; otherwise it is a GPU where
there is one. `MNNCONVERT_OPENCL_LIMITS`, as in "work_group=64,local_bytes=0,image_width=2048,lanes=4", makes a device
say that it can do less than it can, so that tests reach what runs on others. Processors have 16 or 8 lanes, and what
has 4 is treated as a GPU.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mnnconvert.errors import UsageError
from mnnconvert.runtime_ref.opencl.cache import Folder, digest

if TYPE_CHECKING:
    import pyopencl as cl

Defines = Mapping[str, int | str]
COMMON = "common.cl"
CPU_LANES, GPU_LANES = (16, 8), 4
OPTIONS = ("-cl-std=CL1.2",)
SIGNATURE = re.compile(r"kernel\s+void\s+(\w+)\s*\(([^)]*)\)", re.DOTALL)


@dataclass(frozen=True)
class Limits:
    """What kernels have to keep to: items of a work-group, bytes of local memory, width of images (0: none), lanes."""

    work_group: int
    local_bytes: int
    image_width: int
    lanes: int


@dataclass(frozen=True)
class Signature:
    """Where a kernel is written, and its parameters in order, each "tensor", "int" or "float"."""

    file: str
    parameters: Mapping[str, str]


class Device:
    """One OpenCL device with its context; kernels of the package, or of text that is generated, built for it."""

    def __init__(self, device: cl.Device):
        import pyopencl as cl

        self.cl = device
        self.context = cl.Context([device])
        self.name = f"{device.name.strip()} ({device.platform.name.strip()})"
        self.alignment = max(device.mem_base_addr_align // 8, 64)  # bytes, of what lies inside of a buffer
        self.limits = _limited(
            Limits(
                int(device.max_work_group_size),
                int(device.local_mem_size),
                int(device.image2d_max_width) if device.image_support else 0,
                _lanes(device),
            )
        )
        self.lanes = self.limits.lanes
        self.is_cpu = self.lanes > GPU_LANES
        self.identity = digest(device.platform.name, device.name, device.version, device.driver_version, *OPTIONS)
        self._programs: dict[str, cl.Program] = {}

    @cached_property
    def folder(self) -> Folder:
        """Where programs, and tunings, of this device are kept between processes."""
        return Folder(self.identity)

    def queue(self) -> cl.CommandQueue:
        """A new queue, in order, whose events know their times."""
        import pyopencl as cl

        return cl.CommandQueue(self.context, properties=cl.command_queue_properties.PROFILING_ENABLE)

    def kernel(self, name: str, defines: Defines, text: str | None = None) -> cl.Kernel:
        """A new kernel object: of the file that has the kernel, or of `text`, behind `common.cl`."""
        import pyopencl as cl

        body = source(signatures()[name].file) if text is None else text
        lines = [f"#define {key} {value}" for key, value in {"V": self.lanes, **defines}.items()]
        whole = "\n".join([*lines, source(COMMON), body])
        key = digest(whole)
        if key not in self._programs:  # PyOpenCL, or the driver, keeps what it has built for the same device and text
            program = cl.Program(self.context, whole)
            self._programs[key] = program.build(list(OPTIONS), cache_dir=str(self.folder.path / "programs"))
        return cl.Kernel(self._programs[key], name)

    def upload(self, array: np.ndarray) -> cl.Buffer:
        """A buffer with a copy of an array; MemoryError where the device has no room."""
        import pyopencl as cl

        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        flags = cl.mem_flags.READ_WRITE
        if not raw.size:
            return cl.Buffer(self.context, flags, 1)
        try:
            return cl.Buffer(self.context, flags | cl.mem_flags.COPY_HOST_PTR, hostbuf=raw)
        except cl.Error as error:
            raise MemoryError(f"{raw.nbytes} bytes on the OpenCL device: {error}") from error

    def download(self, buffer: cl.Buffer, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        """The array that a buffer holds."""
        import pyopencl as cl

        array = np.empty(tuple(shape), dtype)
        cl.enqueue_copy(self.queue(), array, buffer)
        return array

    def image(self, texels: np.ndarray) -> cl.Image:
        """An image of texels [height, width, 4], float32 or float16; MemoryError where the device has no room."""
        import pyopencl as cl

        kind = cl.channel_type.HALF_FLOAT if texels.dtype == np.float16 else cl.channel_type.FLOAT
        form, flags = cl.ImageFormat(cl.channel_order.RGBA, kind), cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR
        try:
            return cl.create_image(self.context, flags, form, texels.shape[1::-1], hostbuf=np.ascontiguousarray(texels))
        except cl.Error as error:
            raise MemoryError(f"an image of {texels.nbytes} bytes on the OpenCL device: {error}") from error


@cache
def device() -> Device:
    """The device that sessions of this process use; UsageError where there is none."""
    hint = "pip install 'mnnconvert[opencl]', and a driver: on Debian without a GPU `apt-get install pocl-opencl-icd`"
    try:
        import pyopencl as cl
    except ImportError:
        raise UsageError.of("unsupported-backend", "the backend opencl needs pyopencl", hint=hint) from None
    wanted = os.environ.get("MNNCONVERT_OPENCL_DEVICE", "")
    found = [d for d in _devices() if wanted.lower() in f"{d.platform.name} {d.name}".lower()]
    if not wanted:
        found = [d for d in found if "oclgrind" not in d.platform.name.lower()]
    if not found:
        what = f"there is no OpenCL device '{wanted}'" if wanted else "there is no OpenCL device here"
        raise UsageError.of("unsupported-backend", what, hint=hint)
    return Device(max(found, key=lambda d: bool(d.type & cl.device_type.GPU)))


def _lanes(device: cl.Device) -> int:
    """How many floats a vector has: on a processor those of its registers, on a GPU what an item loads at once."""
    import pyopencl as cl

    if not device.type & cl.device_type.CPU:
        return GPU_LANES
    return next((lanes for lanes in CPU_LANES if lanes <= device.native_vector_width_float), CPU_LANES[-1])


def _devices() -> list[cl.Device]:
    import pyopencl as cl

    _load_apart()
    try:
        platforms = cl.get_platforms()
    except cl.Error:  # the loader finds no platform
        return []
    found: list[cl.Device] = []
    for platform in platforms:
        try:
            found += platform.get_devices()
        except cl.Error:  # a platform without devices
            continue
    return found


def _load_apart() -> None:
    """Load drivers that bring an LLVM of their own, as PoCL does, with their own libraries first.

    TensorFlow offers its LLVM to the whole process: a driver that binds to that crashes, or knows no processor,
    whichever comes first. Memory of a preloaded allocator must not change hands: with one this is not done.
    """
    if not hasattr(os, "RTLD_DEEPBIND") or os.environ.get("LD_PRELOAD"):
        return
    for icd in sorted(Path(os.environ.get("OCL_ICD_VENDORS", "/etc/OpenCL/vendors")).glob("*.icd")):
        with suppress(OSError):  # the loader will say what is missing
            driver = icd.read_text().strip()
            if "pocl" in driver or "tensorflow" in sys.modules:
                ctypes.CDLL(driver, os.RTLD_NOW | os.RTLD_DEEPBIND)


def _limited(limits: Limits) -> Limits:
    """The limits, and those of MNNCONVERT_OPENCL_LIMITS where they are lower; vectors of 16 lanes are everywhere."""
    text = os.environ.get("MNNCONVERT_OPENCL_LIMITS", "")
    names = {f.name for f in fields(Limits)}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        known = name.strip() in names and value.strip().isdigit()
        if not known or (name.strip() == "lanes" and int(value) not in (*CPU_LANES, GPU_LANES)):
            raise UsageError.of(
                "out-of-range", f"MNNCONVERT_OPENCL_LIMITS does not know '{part}'", hint=", ".join(names)
            )
        name, number = name.strip(), int(value)
        limits = replace(limits, **{name: number if name == "lanes" else min(number, getattr(limits, name))})
    return limits


@cache
def source(file: str) -> str:
    """The text of a kernel file of the package."""
    return (files("mnnconvert.runtime_ref.opencl") / "kernels" / file).read_text()


@cache
def signatures() -> Mapping[str, Signature]:
    """The kernels of the package by name."""
    folder = files("mnnconvert.runtime_ref.opencl") / "kernels"
    found: dict[str, Signature] = {}
    for file in sorted(f.name for f in folder.iterdir() if f.name.endswith(".cl")):
        for name, signature in parsed(source(file), file).items():
            if name in found:
                raise TypeError(f"two kernels are called {name}")
            found[name] = signature
    return found


def parsed(text: str, file: str = "") -> dict[str, Signature]:
    """The kernels that a text defines."""
    return {name: Signature(file, dict(map(_parameter, text.split(",")))) for name, text in SIGNATURE.findall(text)}


def _parameter(text: str) -> tuple[str, str]:
    *words, name = text.replace("*", " * ").split()
    return name, words[0] if words in (["int"], ["float"]) else "tensor"


def number(kind: str, value: Any) -> np.generic:
    """A parameter as kernels take it; OverflowError for integers beyond 32 bits."""
    return np.float32(value) if kind == "float" else np.int32(int(value))
