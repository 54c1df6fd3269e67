"""Damaged models of every kind: each ends in success or in a named error, soon, and in little memory."""

import json
import random
import resource
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_cases import model

import mnnconvert
from mnnconvert import api
from mnnconvert.errors import MnnConvertError
from mnnconvert.frontends.onnx import importer

BYTES = 1 << 30  # what one attempt may allocate on top
SECONDS = 10
HUGE = [0, -1, 1, 7, -7, 2**31 - 1, -(2**31), 2**31, 2**40, 2**62, -(2**63)]

W = np.arange(36, dtype=np.float32).reshape(4, 1, 3, 3)
MODELS = {
    "convolution": (
        "(float[1,1,6,6] x) => (float[n,k] y) {"
        " c = Conv <kernel_shape=[3,3], pads=[1,1,1,1], strides=[1,1]> (x, w)"
        " p = MaxPool <kernel_shape=[2,2], strides=[2,2], ceil_mode=1> (c)"
        " r = Resize <mode='linear'> (p, , s) f = Flatten <axis=1> (r) y = Softmax <axis=-1> (f) }".replace("'", '"'),
        {"w": W, "s": np.array([1, 1, 2, 2], np.float32)},
    ),
    "shapes": (
        "(float[2,3,4] x) => (float[a,b] y, float[c] z) {"
        " s = Shape (x) g = Gather <axis=0> (s, i) e = Expand (x, s) t = Transpose <perm=[1,0,2]> (e)"
        " q = Slice (t, lo, hi) y = Reshape (q, d) p = Pad (x, pads) o, z0 = Split <axis=2> (p, parts)"
        " h = ReduceSum <keepdims=0> (o, i) z = Reshape (h, flat) }",
        {
            "i": np.array([0]),
            "lo": np.array([0, 0]),
            "hi": np.array([3, 2]),
            "d": np.array([-1, 4]),
            "pads": np.array([0, 0, 1, 0, 0, 1]),
            "parts": np.array([2, 4]),
            "flat": np.array([-1]),
        },
    ),
    "control": (
        "(float[3] x, bool c) => (float[3] y, float[k,3] all) {"
        " a = If (c) <then_branch = yes () => (float[3] t) { t = Abs (x) },"
        " else_branch = no () => (float[3] e) { e = Neg (x) }>"
        " y, all = Loop (n, c, a) <body = body (int64 i, bool g, float[3] v) => (bool h, float[3] w1, float[3] r)"
        " { h = Identity (g) w1 = Add (v, v) r = Identity (v) }> }",
        {"n": np.array(3)},
    ),
    "recurrent": (
        "(float[3,1,2] x) => (float[3,1,1,2] y) { y = LSTM <hidden_size=2, direction='forward'> (x, w, r) }".replace(
            "'", '"'
        ),
        {"w": np.ones((1, 8, 2), np.float32), "r": np.ones((1, 8, 2), np.float32)},
    ),
}


def make(name):
    return model(*MODELS[name])[0]


def change_attribute(pick, attribute):
    name, what = attribute.name, pick.randrange(4)
    if what == 0 and attribute.type == onnx.AttributeProto.INT:
        attribute.i = pick.choice(HUGE)
    elif what == 1 and attribute.ints:
        attribute.ints[pick.randrange(len(attribute.ints))] = pick.choice(HUGE)
    elif what == 2 and attribute.ints:
        del attribute.ints[0]
    else:
        attribute.Clear()
        attribute.CopyFrom(helper.make_attribute(name, pick.choice([1, -3, 2.5, "s", [1, 2], [1.5], ["a"]])))


def change_tensor(pick, tensor):
    what = pick.randrange(5)
    if what == 0 and tensor.dims:
        tensor.dims[pick.randrange(len(tensor.dims))] = pick.choice(HUGE)
    elif what == 1:
        tensor.data_type = pick.randrange(30)
    elif what == 2 and tensor.raw_data and tensor.data_type == TensorProto.INT64:
        tensor.raw_data = np.int64(pick.choice(HUGE)).tobytes() * (len(tensor.raw_data) // 8)
    elif what == 3:
        tensor.data_location = 1
        for key, value in (("location", pick.choice(["m.onnx", "", "..", "a" * 300, "\0"])), ("offset", "3")):
            entry = tensor.external_data.add()
            entry.key, entry.value = key, value
    else:
        tensor.raw_data = tensor.raw_data[:-1]


def change_info(pick, info):
    tensor, what = info.type.tensor_type, pick.randrange(3)
    if what == 0:
        tensor.elem_type = pick.randrange(30)
    elif what == 1 and tensor.shape.dim:
        pick.choice(tensor.shape.dim).dim_value = pick.choice(HUGE)
    else:
        info.name = pick.choice(["", "x", "y", "z"])


def change_node(pick, node):
    what = pick.randrange(6)
    if what == 0 and node.input:
        node.input[pick.randrange(len(node.input))] = pick.choice(["", "nowhere", *node.output])
    elif what == 1 and node.input:
        node.input.pop()
    elif what == 2:
        node.output.append(pick.choice(["", "more", *node.output]))
    elif what == 3:
        node.op_type = pick.choice(["Add", "MatMul", "Gather", "Concat", "Loop", "Tile", "Range", "OneHot", "", "What"])
    elif what == 4:
        node.attribute.append(helper.make_attribute(pick.choice(["axis", "what", "pads"]), pick.choice([1, [1], "s"])))
    elif node.attribute:
        change_attribute(pick, pick.choice(node.attribute))


def change(pick, proto):
    """One change of the structure of a model."""
    graph = proto.graph
    inner = [a.g for n in graph.node for a in n.attribute if a.HasField("g")]
    if inner and pick.random() < 0.4:
        graph = pick.choice(inner)
    where = pick.randrange(8)
    if where < 3 and graph.node:
        change_node(pick, pick.choice(graph.node))
    elif where == 3 and graph.initializer:
        change_tensor(pick, pick.choice(graph.initializer))
    elif where == 4:
        change_info(pick, pick.choice([*graph.input, *graph.output] or [onnx.ValueInfoProto()]))
    elif where == 5 and graph.node:
        pick.choice([graph.node.append, graph.node.remove])(pick.choice(graph.node))
    elif where == 6:
        del pick.choice([graph.output, graph.input, graph.node])[:]
    else:
        proto.opset_import[0].version = pick.choice([0, -1, 1, 9, 999, 2**62])


def attempt(action):
    """Run it: its result, or None when it ended in a named error. Anything else fails the test."""
    started = time.monotonic()
    try:
        return action()
    except MnnConvertError as error:
        assert error.diagnostics
        assert all(len(d.message) > 8 for d in error.diagnostics)
        return None
    finally:
        assert time.monotonic() - started < SECONDS


@pytest.fixture(autouse=True)
def little_memory():
    """Address space for what is loaded now, and `BYTES` more."""
    status = Path("/proc/self/status").read_text().splitlines()
    used = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmSize"))
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def convert_and_run(folder, loops=False):
    """A loop may have been told to turn for ever, and would: it is converted only."""
    source, target = folder / "m.onnx", folder / "o.mnn"
    if attempt(lambda: mnnconvert.convert(source, target, verify="never")) is not None and not loops:
        attempt(lambda: run(target))


def run(path):
    session = mnnconvert.load(path)
    shapes = {i.name: [d if isinstance(d, int) else 2 for d in i.shape or ()] for i in session.inputs}
    if all(np.prod(s, dtype=float) < 1e6 for s in shapes.values()):
        return session.run({i.name: np.ones(shapes[i.name], i.dtype) for i in session.inputs})
    return {}


@pytest.mark.parametrize("name", MODELS)
def test_changed_models(name, tmp_path):
    pick = random.Random(name)
    for _ in range(120):
        proto = make(name)
        for _ in range(pick.choice([1, 1, 2])):
            change(pick, proto)
        (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
        convert_and_run(tmp_path, loops=name == "control")


@pytest.mark.parametrize("name", MODELS)
def test_the_models_are_sound_before(name, tmp_path):
    onnx.save(make(name), tmp_path / "m.onnx")
    mnnconvert.convert(tmp_path / "m.onnx", tmp_path / "o.mnn", verify="never")
    assert run(tmp_path / "o.mnn")


def damaged(pick, data):
    """Bytes or whole words changed, or the end cut off."""
    result = bytearray(data)
    for _ in range(pick.choice([1, 1, 2, 4])):
        at = pick.randrange(len(result))
        if pick.random() < 0.5:
            result[at] = pick.randrange(256)
        else:
            at -= at % 4
            result[at : at + 4] = (pick.choice(HUGE) & 0xFFFFFFFF).to_bytes(4, "little")
    return bytes(result[: pick.randrange(1, len(result))] if pick.random() < 0.1 else result)


@pytest.mark.parametrize("options", [{}, {"weight_bits": 4}, {"save_external_data": True}], ids=str)
def test_damaged_mnn_files(options, tmp_path):
    pick = random.Random(0)
    onnx.save(make("convolution"), tmp_path / "m.onnx")
    mnnconvert.convert(tmp_path / "m.onnx", tmp_path / "o.mnn", verify="never", **options)
    files = {p.name: p.read_bytes() for p in tmp_path.glob("o.mnn*")}
    for _ in range(150):
        for name, data in files.items():
            (tmp_path / name).write_bytes(damaged(pick, data))
        attempt(lambda: run(tmp_path / "o.mnn"))
        attempt(lambda: api.info(tmp_path / "o.mnn"))
        attempt(lambda: api.to_json(tmp_path / "o.mnn", tmp_path / "o.json"))


def changed_json(pick, document):
    """A value somewhere in the tree replaced or removed."""
    node = document
    while True:
        key = pick.choice(list(node) if isinstance(node, dict) else range(len(node)))
        if isinstance(node[key], dict | list) and node[key] and pick.random() < 0.8:
            node = node[key]
        else:
            break
    if pick.random() < 0.8:
        node[key] = pick.choice([None, -1, 2**70, 1.5, 1e40, True, "", "x", [], {}, [None], {"a": 1}])
    else:
        del node[key]
    return json.dumps(document)


def test_damaged_json(tmp_path):
    pick = random.Random(0)
    onnx.save(make("convolution"), tmp_path / "m.onnx")
    mnnconvert.convert(tmp_path / "m.onnx", tmp_path / "o.mnn", verify="never")
    api.to_json(tmp_path / "o.mnn", tmp_path / "o.json")
    text = (tmp_path / "o.json").read_text()
    for _ in range(150):
        cut = pick.randrange(len(text))
        broken = text[:cut] + pick.choice(["", "{", "]", '"', "1e999"]) + text[cut + pick.randrange(3) :]
        for each in (broken, changed_json(pick, json.loads(text))):
            (tmp_path / "d.json").write_text(each)
            if attempt(lambda: api.from_json(tmp_path / "d.json", tmp_path / "d.mnn") or True):
                attempt(lambda: run(tmp_path / "d.mnn"))


def recursive(calls, times=2):
    """Functions f0 ... f`calls`: each calls the next `times` times, the last calls none (itself, if alone)."""
    proto, _ = model("(float[2] x) => (float[2] y) { y = own.f0 (x) }", domains=("own",))
    for i in range(calls):
        inner = "Abs" if calls > 1 and i == calls - 1 else f"f{(i + 1) % calls}"
        nodes = [
            helper.make_node(inner, [a], [b], domain="" if inner == "Abs" else "own") for a, b in ("am", "mb")[:times]
        ]
        imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
        proto.functions.append(helper.make_function("own", f"f{i}", ["a"], ["mb"[times - 1]], nodes, imports))
    return proto


@pytest.mark.parametrize(
    ("calls", "reference"), [((1,), "bad-onnx-file"), ((40,), "too-large"), ((900, 1), "too-large")]
)
def test_functions_without_end(calls, reference, tmp_path, monkeypatch):
    monkeypatch.setattr(importer, "MOST_CALLS", 500)  # the real one takes seconds
    onnx.save(recursive(*calls), tmp_path / "m.onnx")
    with pytest.raises(MnnConvertError, match="bad-onnx-file" if calls == (1,) else "too-large"):
        mnnconvert.convert(tmp_path / "m.onnx", tmp_path / "o.mnn", verify="never")
