"""Layers of Torch models beside those of the converted file: what corresponds, and that a broken one is named."""

from __future__ import annotations

import json

import numpy as np
import pytest
from torch_cases import save, torch

import mnnconvert
from mnnconvert.ir import ArrayTensor
from mnnconvert.schema.reader import read_model
from mnnconvert.schema.writer import write_model
from mnnconvert.verification import open_source
from mnnconvert.verify.compare import Tolerance
from mnnconvert.verify.layers import IntermediateEngine
from mnnconvert.verify.localise import Localiser

nn = torch.nn


class Net(nn.Module):
    """Convolution, norm, writing in place and into a part, several results of one operator, recurrence."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.inner = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.LayerNorm(6)
        self.rnn, self.head = nn.LSTM(6, 5, batch_first=True), nn.Linear(5, 4)

    def forward(self, x):
        x = self.norm(self.conv(x)).relu_()
        y, (h, _) = self.rnn(self.inner(x.mean(1)))
        y[:, 1:].add_(1)
        z = nn.functional.gelu(self.head(y))
        best, places = z.topk(2)
        z = nn.functional.hardswish(z)
        z.mul_(2)
        return {"z": z.softmax(-1), "best": best, "places": places, "h": h}


@pytest.fixture(scope="module", params=["program", "traced"])
def net(request, tmp_path_factory):
    """A file, and its conversion."""
    torch.manual_seed(0)
    folder, form = tmp_path_factory.mktemp("net"), request.param
    module = Net() if form == "program" else nn.Sequential(Net(), Values())
    path = save(module, (torch.randn(2, 3, 8, 8),), form, folder)
    mnnconvert.convert(path, folder / "m.mnn", verify="never")
    return path, folder / "m.mnn"


class Values(nn.Module):
    """A trace gives no dict."""

    def forward(self, results):
        return tuple(results.values())


def broken(mnn, name, change):
    """A copy of the file in which the weight of a layer is another one."""
    graph = read_model(mnn)
    weight = next(v for v in graph.constants() if v.name.startswith(f"{name}_") and v.name.endswith(".weight"))
    weight.tensor = ArrayTensor(change(weight.tensor.numpy().copy()))
    write_model(graph, mnn.with_name("broken.mnn"))
    return mnn.with_name("broken.mnn")


def doubled_row(weight):
    weight[1] *= 2
    return weight


def test_every_layer_of_a_right_file_is_right(net):
    layers = mnnconvert.verify(*net, per_layer=True).layers
    assert layers.first_bad is None and len(layers.layers) >= 11
    assert all(layer.own is not None and layer.own.sqnr > 90 for layer in layers.layers if layer.dtype == "float32")
    assert {"relu", "layer_norm", "linear", "gelu", "hardswish"} <= {layer.name for layer in layers.layers}


def test_a_wrong_weight_is_named_with_its_module(net):
    source, mnn = net
    result = mnnconvert.verify(source, broken(mnn, "linear", doubled_row), per_layer=True)
    bad = result.layers.first_bad
    assert not result.passed and bad.name == "linear"
    assert [layer.name for layer in result.layers.layers if layer.reason] == ["linear"]
    where = "head/linear" if source.suffix == ".pt2" else "linear"
    assert bad.origin[0].endswith(where) and bad.origin[0].startswith("aten.linear")


def test_small_slices_say_the_same(net):
    source, mnn = net
    engine, graph = open_source(source), read_model(mnn)
    assert isinstance(engine, IntermediateEngine)
    feeds = {engine.inputs[0].name: np.random.default_rng(5).standard_normal((2, 3, 8, 8), np.float32)}
    whole = Localiser(engine, graph, Tolerance()).run(feeds)
    single = Localiser(engine, graph, Tolerance(), slice_bytes=1).run(feeds)
    assert single.layers == whole.layers


def test_only_what_is_asked_for_is_told(net):
    engine = open_source(net[0])
    feeds = {engine.inputs[0].name: np.ones((2, 3, 8, 8), np.float32)}
    first, last = engine.outputs[0].name if engine.outputs else engine.layers()[0].outputs[0], "nothing of that name"
    assert set(engine.run_values(feeds, [first, last])) == {first}


def test_a_broken_layer_is_bisected_and_written(net, tmp_path):
    source, mnn = net
    result = mnnconvert.verify(source, broken(mnn, "linear", doubled_row), bisect=True, repro=tmp_path / "layer")
    assert result.bisection.culprit.startswith("weight 'linear")
    assert json.loads((tmp_path / "layer" / "layer.json").read_text())["name"] == "linear"
    with np.load(tmp_path / "layer" / "inputs.npz") as inputs, np.load(tmp_path / "layer" / "got.npz") as got:
        session = mnnconvert.load(tmp_path / "layer" / "layer.mnn")
        np.testing.assert_array_equal(session.run(dict(inputs))["linear"], got["linear"])


class Decides(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        y = torch.cond(x.sum() > 0, lambda v: v.sin(), lambda v: v.cos(), (self.first(x),))
        low, high = y.chunk(2, 1)
        return self.last(torch.cat([high, low], 1)), y.max(1).indices


def test_decisions_are_one_layer(tmp_path):
    path = save(Decides(), (torch.randn(2, 4),), "program", tmp_path)
    mnnconvert.convert(path, tmp_path / "m.mnn", verify="never")
    result = mnnconvert.verify(path, tmp_path / "m.mnn", per_layer=True)
    assert result.passed and result.layers.first_bad is None
    result = mnnconvert.verify(path, broken(tmp_path / "m.mnn", "linear", doubled_row), per_layer=True)
    assert result.layers.first_bad.origin[0].endswith("first/linear")
