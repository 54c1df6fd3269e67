"""Graphs through files: constants, embedded and external weights, metadata, names, sharing, damage."""

import json
import os
import threading
from dataclasses import replace

import numpy as np
import pytest

from mnnconvert.errors import ConversionError
from mnnconvert.ir import F32, I32, ArrayTensor, Builder, CodedTensor, Graph, HalfTensor, Steps, Value
from mnnconvert.ops.convolution import Convolution
from mnnconvert.ops.elementwise import Binary, Unary
from mnnconvert.ops.pooling import Pooling
from mnnconvert.quantizers.rtn import quantize
from mnnconvert.runtime_ref.session import Session
from mnnconvert.schema import flatbuffer, tables, writer
from mnnconvert.schema.reader import read_model
from mnnconvert.schema.weights import WeightStore
from mnnconvert.schema.writer import NetBuilder, map_file, write_model

W = np.random.default_rng(0).standard_normal((8, 16, 1, 1)).astype(np.float32)


def conv_graph(weight=None, layers=1):
    """x [n,16,4,4] through 1x1 convolutions that all use one weight."""
    b = Builder(Graph(name="net"))
    x = b.input("x", F32, ("n", 16, 4, 4))
    w = Value("w", b.constant(W, "w").spec, weight or ArrayTensor(W))
    bias = b.constant(np.arange(8, dtype=np.float32), "bias")
    for i in range(layers):
        b.output(b.add(Convolution(), x, w, bias, name=f"y{i}"))
    return b.graph


def feeds(n=2):
    return {"x": np.random.default_rng(1).standard_normal((n, 16, 4, 4)).astype(np.float32)}


WEIGHTS = {
    "float": ArrayTensor(W),
    "half": HalfTensor(ArrayTensor(W.astype(np.float16))),
    "8 bit": CodedTensor(quantize(W.reshape(8, 16), 8, 0, False, False), W.shape),
    "4 bit blocks": CodedTensor(quantize(W.reshape(8, 16), 4, 8, True, False), W.shape),
    "3 bit half scales": CodedTensor(quantize(W.reshape(8, 16), 3, 0, False, True), W.shape),
}


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_survive(name, external, tmp_path):
    graph = conv_graph(WEIGHTS[name])
    written = write_model(graph, tmp_path / "m.mnn", external=external)
    assert (written.external_size > 0) == external == (tmp_path / "m.mnn.weight").exists()
    back = read_model(tmp_path / "m.mnn")
    weight = back.nodes[0].inputs[1].tensor
    assert type(weight) is type(WEIGHTS[name]) or external
    np.testing.assert_array_equal(weight.numpy(), WEIGHTS[name].numpy())
    np.testing.assert_array_equal(Session(back).run(feeds())["y0"], Session(graph).run(feeds())["y0"])


def change(path, how):
    """What others may do to a file that is in use."""
    data = path.read_bytes()
    if how == "replaced":
        path.with_suffix(".new").write_bytes(bytes(len(data)))
        os.replace(path.with_suffix(".new"), path)
        return
    if how == "deleted":
        path.unlink()
        return
    path.write_bytes(data[: 100 if how == "cut" else None])
    os.utime(path, ns=(0, 0))


def use(graph, tmp_path):
    """What a graph is used for: both executors, a second session, writing; the results of running."""
    results = [Session(graph, backend).run(feeds())["y0"] for backend in ("cpu", "reference", "cpu")]
    write_model(graph, tmp_path / "again.mnn")
    return [*results, Session(read_model(tmp_path / "again.mnn")).run(feeds())["y0"]]


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("how", ["replaced", "deleted"])
@pytest.mark.parametrize("name", ["8 bit", "4 bit blocks", "3 bit half scales"])
def test_codes_outlive_their_file(name, how, external, tmp_path):
    """A file that goes away stays mapped; codes in an external file are in memory."""
    graph = conv_graph(WEIGHTS[name])
    want = use(graph, tmp_path)
    write_model(graph, tmp_path / "m.mnn", external=external)
    for released in (False, True):
        back = read_model(tmp_path / "m.mnn")
        if released:
            Session(back).run(feeds())
        if external:
            change(tmp_path / "m.mnn.weight", how)
        change(tmp_path / "m.mnn", how)
        np.testing.assert_array_equal(use(back, tmp_path), want)
        write_model(graph, tmp_path / "m.mnn", external=external)


@pytest.mark.parametrize("how", ["touched", "cut"])
@pytest.mark.parametrize("name", WEIGHTS)
def test_a_file_that_is_written_to_is_not_read_on(name, how, tmp_path):
    write_model(conv_graph(WEIGHTS[name]), tmp_path / "m.mnn")
    back = read_model(tmp_path / "m.mnn")
    change(tmp_path / "m.mnn", how)
    for backend in ("cpu", "reference"):
        with pytest.raises(ConversionError) as caught:
            Session(back, backend).run(feeds())
        assert caught.value.diagnostics[0].reference == "file-changed"


@pytest.mark.parametrize("how", ["touched", "cut", "replaced", "deleted"])
def test_an_external_file_that_changes_is_not_read_on(how, tmp_path):
    write_model(conv_graph(), tmp_path / "m.mnn", external=True)
    back = read_model(tmp_path / "m.mnn")
    change(tmp_path / "m.mnn.weight", how)
    with pytest.raises(ConversionError) as caught:
        Session(back).run(feeds())
    assert caught.value.diagnostics[0].reference == "file-changed"


def test_codes_are_let_go_by_several_threads(tmp_path):
    write_model(conv_graph(WEIGHTS["8 bit"]), tmp_path / "m.mnn")
    coded = read_model(tmp_path / "m.mnn").nodes[0].inputs[1].tensor.coded
    want, wrong = WEIGHTS["8 bit"].coded.codes, []

    def work():
        for _ in range(300):
            try:
                same = np.array_equal(coded.codes, want)
                coded.let_go()
            except AttributeError:
                same = False
            if not same:
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("most", [800, 1000])
def test_what_does_not_fit_goes_to_the_weight_file_by_itself(most, tmp_path, monkeypatch):
    """Whether it would just pass the limit of ours, or that of the format too."""
    monkeypatch.setattr(writer, "INLINE_LIMIT", 800)
    monkeypatch.setattr(flatbuffer, "MAX_BYTES", most)
    monkeypatch.setattr(flatbuffer, "LONG", 64)
    graph = conv_graph()
    written = write_model(graph, tmp_path / "m.mnn")
    assert written.size <= most and written.external_size >= W.nbytes
    np.testing.assert_array_equal(Session(read_model(tmp_path / "m.mnn")).run(feeds())["y0"],
                                  Session(graph).run(feeds())["y0"])  # fmt: skip


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("name", WEIGHTS)
def test_a_shared_weight_is_stored_once(name, external, tmp_path):
    sizes = []
    for layers in (1, 3):
        written = write_model(conv_graph(WEIGHTS[name], layers), tmp_path / f"{layers}.mnn", external=external)
        sizes.append(written.size + written.external_size)
    assert sizes[1] - sizes[0] < 450  # two more ops, no second weight
    weights = [n.inputs[1].tensor for n in read_model(tmp_path / "3.mnn").nodes if len(n.inputs) > 1]
    assert len({id(w) for w in weights}) == 1  # read once, too


def test_same_graph_same_bytes(tmp_path):
    for name in "ab":
        write_model(conv_graph(), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_symbols_types_and_metadata_survive(tmp_path):
    graph = conv_graph()
    graph.metadata["author"] = "somebody"
    graph.source_types["y0"] = "float16"
    write_model(graph, tmp_path / "m.mnn")
    back = read_model(tmp_path / "m.mnn")
    assert back.inputs[0].shape == ("n", 16, 4, 4)
    assert back.metadata == {"author": "somebody"} and back.source_types == {"y0": "float16"}
    assert back.outputs[0][1].shape == ("n", 8, 4, 4)


@pytest.mark.parametrize("array", [np.arange(3, dtype=np.int32), np.float32(2.5), np.zeros((0, 3), np.float32),
                                   np.arange(2000, dtype=np.float32), np.arange(4, dtype=np.uint8)])  # fmt: skip
@pytest.mark.parametrize("external", [False, True])
def test_constants_survive(array, external, tmp_path):
    b = Builder(Graph())
    x = b.input("x", np.asarray(array).dtype, np.shape(array))
    c = b.constant(np.asarray(array), "c")
    b.output(b.add(Binary("ADD"), x, c, name="y") if x.dtype in (F32, I32) else c)
    written = write_model(b.graph, tmp_path / "m.mnn", external=external)
    assert (written.external_size > 0) == (external and np.size(array) > 1024)
    back = {v.name: v for v in read_model(tmp_path / "m.mnn").constants()}["c"]
    np.testing.assert_array_equal(back.tensor.numpy(), array)
    assert back.shape == np.shape(array)


def test_steps_survive_and_change_the_uuid(tmp_path):
    graph = conv_graph()
    write_model(graph, tmp_path / "plain.mnn")
    wanted = Steps(0.05, 3.0, -127, 127), Steps(0.25, 0.0, -32767, 32767, np.dtype("int16"))
    graph.inputs[0].steps, graph.outputs[0][1].steps = wanted
    write_model(graph, tmp_path / "steps.mnn")
    plain, back = (read_model(tmp_path / name) for name in ("plain.mnn", "steps.mnn"))
    assert all(v.steps is None for v in plain.values())
    found = back.inputs[0].steps, back.outputs[0][1].steps
    assert found == tuple(replace(s, scale=float(np.float32(s.scale))) for s in wanted)
    uuids = {flatbuffer.read(map_file(tmp_path / name), tables.Net).mnn_uuid for name in ("plain.mnn", "steps.mnn")}
    assert len(uuids) == 2


@pytest.mark.parametrize("bad", [{"scale": 0.0}, {"scale": np.nan}, {"min": 5.0, "max": 5.0}, {"zero": np.inf}])
def test_steps_that_make_no_sense_are_a_diagnostic(bad, tmp_path):
    graph = conv_graph()
    graph.inputs[0].steps = Steps(0.05)
    net = NetBuilder(WeightStore()).net(graph)
    for name, number in bad.items():
        setattr(net.extraTensorDescribe[0].quantInfo, name, number)
    with (tmp_path / "m.mnn").open("wb") as stream:
        flatbuffer.write(net, stream)
    with pytest.raises(ConversionError, match="make no sense"):
        read_model(tmp_path / "m.mnn")


def test_missing_weight_file_is_named(tmp_path):
    write_model(conv_graph(), tmp_path / "m.mnn", external=True)
    (tmp_path / "m.mnn.weight").unlink()
    with pytest.raises(ConversionError, match=r"m\.mnn\.weight") as caught:
        read_model(tmp_path / "m.mnn")
    assert caught.value.diagnostics[0].reference == "missing-external-data"


def test_short_weight_file_is_named(tmp_path):
    write_model(conv_graph(), tmp_path / "m.mnn", external=True)
    (tmp_path / "m.mnn.weight").write_bytes(b"short")
    with pytest.raises(ConversionError) as caught:
        read_model(tmp_path / "m.mnn")
    assert caught.value.diagnostics[0].reference == "bad-mnn-file"


def test_an_existing_file_survives_a_failed_write(tmp_path):
    target = tmp_path / "m.mnn"
    target.write_bytes(b"precious")

    class Broken(ArrayTensor):
        def write_to(self, stream):
            raise OSError(28, "No space left on device")

        def numpy(self):
            raise OSError(28, "No space left on device")

    graph = conv_graph(HalfTensor(Broken(W.astype(np.float16))))
    with pytest.raises((ConversionError, OSError)):
        write_model(graph, target)
    assert target.read_bytes() == b"precious" and [p.name for p in tmp_path.iterdir()] == ["m.mnn"]


@pytest.mark.parametrize("where", ["missing/m.mnn", "."])
def test_unwritable_targets_are_named(where, tmp_path):
    with pytest.raises(ConversionError) as caught:
        write_model(conv_graph(), tmp_path / where)
    assert caught.value.diagnostics[0].reference == "unwritable-output"
    assert not list(tmp_path.iterdir())


def damage(tmp_path, change):
    write_model(conv_graph(), tmp_path / "m.mnn")
    net = flatbuffer.read(map_file(tmp_path / "m.mnn"), tables.Net)
    change(net)
    with (tmp_path / "d.mnn").open("wb") as stream:
        flatbuffer.write(net, stream)
    with pytest.raises(ConversionError) as caught:
        read_model(tmp_path / "d.mnn")
    return caught.value.diagnostics[0]


@pytest.mark.parametrize(
    "change",
    [
        lambda net: setattr(net.oplists[-1], "inputIndexes", np.array([99], np.int32)),
        lambda net: setattr(net.oplists[-1], "outputIndexes", np.array([-1], np.int32)),
        lambda net: setattr(net.oplists[-1], "main", None),
        lambda net: setattr(net.oplists[-1].main, "weight", np.zeros(7, np.float32)),
        lambda net: setattr(net.oplists[-1].main, "common", None),
        lambda net: setattr(net.oplists[-1].main.common, "padMode", 77),
        lambda net: setattr(net, "outputName", ["nobody"]),
        lambda net: setattr(net, "tensorName", None),
        lambda net: setattr(net.extraInfo, "buffer", np.arange(20, dtype=np.int8)),
    ],
)
def test_damaged_tables_are_a_diagnostic(change, tmp_path):
    assert damage(tmp_path, change).reference in ("bad-mnn-file", "bad-weight-coding")


def test_metadata_of_ours_that_is_no_json_is_a_diagnostic(tmp_path):
    graph = conv_graph()
    graph.metadata["mnnconvert"] = "{not json"
    graph.inputs[0].spec.shape = (1, 16, 4, 4)
    write_model(graph, tmp_path / "m.mnn")
    with pytest.raises(ConversionError) as caught:
        read_model(tmp_path / "m.mnn")
    assert caught.value.diagnostics[0].reference == "bad-mnn-file"


def test_uuid_is_a_uuid(tmp_path):
    write_model(conv_graph(), tmp_path / "m.mnn")
    net = flatbuffer.read(map_file(tmp_path / "m.mnn"), tables.Net)
    assert len(net.mnn_uuid) == 36
    json.dumps(net.mnn_uuid)


@pytest.mark.parametrize(
    "op",
    [
        Convolution(strides=(-1, 1)),
        Convolution(dilations=(1, 0)),
        Pooling(kernel=(3, -16777213)),
        Pooling(kernel=(2, 2), strides=(2, 0)),
    ],
    ids=str,
)
def test_windows_are_not_of_negative_sizes(op, tmp_path):
    b = Builder(Graph())
    x = b.input("x", F32, (1, 16, 4, 4))
    constants = [b.constant(W, "w"), b.constant(np.zeros(8, np.float32), "b")] if isinstance(op, Convolution) else []
    b.output(b.add(type(op)(), x, *constants))
    b.graph.nodes[0].op = op
    write_model(b.graph, tmp_path / "m.mnn")
    with pytest.raises(ConversionError) as caught:
        read_model(tmp_path / "m.mnn")
    assert caught.value.diagnostics[0].reference == "bad-mnn-file"


def test_input_of_too_large_a_size_is_refused(tmp_path):
    b = Builder()
    b.output(b.add(Unary("ABS"), b.input("x", F32, (2, 1 << 31))), "y")
    with pytest.raises(ConversionError, match="value-out-of-range"):
        write_model(b.graph, tmp_path / "m.mnn")
