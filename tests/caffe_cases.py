"""Small Caffe nets: text, weights as a caffemodel in each of its forms, and the check of what our graph computes."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from graphs import run_graph, through_file
from onnx_cases import assert_equal

from mnnconvert.errors import ConversionError
from mnnconvert.frontends.caffe.importer import Importer
from mnnconvert.frontends.caffe.model import attach, parse_net
from mnnconvert.frontends.caffe.weights import parse_weights
from mnnconvert.ir import Graph, verify
from mnnconvert.passes.pipeline import run_pipeline
from mnnconvert.schema.writer import write_model
from mnnconvert.verify.mnn_engine import MnnEngine
from mnnconvert.verify.opencv_child import Net
from mnnconvert.verify.opencv_engine import as_caffe, ports

Blobs = Mapping[str, Iterable[Any]]


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


def field(number: int, content: bytes | int) -> bytes:
    """A field of a protocol buffer: a number, or bytes with their length."""
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    return varint(number << 3 | 2) + varint(len(content)) + content


def blob(array: np.ndarray, form: str = "new") -> bytes:
    """A blob; forms: new, old (four sizes), double, half (of NVIDIA's fork), unpacked."""
    array = np.asarray(array)
    if form == "old":
        sizes = (1,) * (4 - array.ndim) + array.shape
        head = b"".join(field(i, int(d)) for i, d in enumerate(sizes, 1))
    else:
        head = field(7, field(1, b"".join(varint(d) for d in array.shape)))
    if form == "double":
        return head + field(8, array.astype("<f8").tobytes())
    if form == "half":
        return head + field(10, 2) + field(12, array.astype("<f2").tobytes())
    if form == "unpacked":
        return head + b"".join(varint(5 << 3 | 5) + struct.pack("<f", v) for v in array.reshape(-1))
    return head + field(5, array.astype("<f4").tobytes())


def caffemodel(blobs: Blobs, net: str = "new", form: str = "new") -> bytes:
    """The bytes of trained weights; `net` is new, v1 or v0."""
    parts = []
    for name, arrays in blobs.items():
        encoded = [blob(a, form) for a in arrays]
        if net == "new":
            layer = field(1, name.encode()) + field(2, b"Any") + b"".join(field(7, e) for e in encoded)
            parts.append(field(100, layer))
        elif net == "v1":
            parts.append(field(2, field(4, name.encode()) + field(5, 4) + b"".join(field(6, e) for e in encoded)))
        else:
            inner = field(1, name.encode()) + field(2, b"conv") + b"".join(field(50, e) for e in encoded)
            parts.append(field(2, field(1, inner)))
    return field(1, b"net") + b"".join(parts)


def inputs(**shapes: tuple[int, ...]) -> str:
    """Input layers."""
    text = ""
    for name, shape in shapes.items():
        dims = " ".join(f"dim: {d}" for d in shape)
        text += f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ {dims} }} }} }}\n'
    return text


def layer(kind: str, bottoms: str, tops: str, settings: str = "", name: str = "") -> str:
    """A layer; bottoms and tops are words, the name is the first top unless it is given."""
    names = "".join(f' bottom: "{x}"' for x in bottoms.split()) + "".join(f' top: "{x}"' for x in tops.split())
    return f'layer {{ name: "{name or tops.split()[0]}" type: "{kind}"{names} {settings} }}\n'


def one(kind: str, settings: str = "", tops: str = "y", **shapes: tuple[int, ...]) -> str:
    """A net of one layer `y` that reads all inputs."""
    return inputs(**shapes) + layer(kind, " ".join(shapes), tops, settings, "y")


def random(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def import_net(text: str, blobs: Blobs | None = None, **more: Any) -> Graph:
    net = parse_net(text)
    attach(net, parse_weights(caffemodel(blobs or {})))
    graph = Importer(net, **more).run()
    verify(graph, "import")
    return graph


def feeds_for(text: str, seed: int = 0) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {name: generator.uniform(-2, 2, shape).astype(np.float32) for name, shape in parse_net(text).inputs.items()}


def files(folder: Path, text: str, blobs: Blobs | None = None, **form: str) -> tuple[Path, Path]:
    """The net as a pair of files: prototxt and caffemodel."""
    prototxt, weights = folder / "net.prototxt", folder / "net.caffemodel"
    prototxt.write_text(text)
    weights.write_bytes(caffemodel(blobs or {}, **form))
    return prototxt, weights


def opencv_outputs(text: str, blobs: Blobs | None, feeds: Any, folder: Path) -> dict[str, np.ndarray]:
    """What OpenCV computes, in this process."""
    prototxt, weights = files(folder, text, blobs)
    net = parse_net(text)
    names, outputs = ports(net, net.outputs())
    found = Net(str(prototxt), str(weights), names, outputs).run([feeds[name] for name in names])
    return {n: as_caffe(o.layer, a) for (n, o), a in zip(net.outputs().items(), found, strict=True)}


def peer_outputs(graph: Graph, feeds: dict[str, np.ndarray], folder: Path) -> dict[str, np.ndarray]:
    """What the released runtime computes."""
    write_model(graph, folder / "peer.mnn")
    with MnnEngine(folder / "peer.mnn") as engine:
        return engine.run(feeds)


def check(
    text: str, blobs: Blobs | None, folder: Path, *, feeds: Any = None, want: Any = None, rtol: float = 1e-5,
    atol: float = 1e-5, peer: bool = True,
) -> None:  # fmt: skip
    """Our graph computes what OpenCV (or `want`) gives: as imported, after all passes and a file, and by the peer."""
    feeds = feeds_for(text) if feeds is None else feeds
    expected = opencv_outputs(text, blobs, feeds, folder) if want is None else want
    graph = import_net(text, blobs)
    results = [run_graph(graph, feeds)]
    run_pipeline(graph)
    results.append(run_graph(through_file(graph), feeds))
    if peer:
        results.append(peer_outputs(graph, feeds, folder))
    for got in results:
        assert set(got) == set(expected)
        for name, value in expected.items():
            assert_equal(got[name], value, rtol, atol, name)


def refusal(text: str, blobs: Blobs | None = None, **more: Any) -> list:
    """The diagnostics with which a net is refused."""
    try:
        import_net(text, blobs, **more)
    except ConversionError as error:
        return error.diagnostics
    raise AssertionError("the net was not refused")
