"""Channel blocks: few conversions, and the same numbers in the released runtime."""

from __future__ import annotations

import numpy as np
import pytest
from pass_cases import build, feeds_for, kinds, noise

from mnnconvert.ir import verify
from mnnconvert.ops.base import OPS
from mnnconvert.passes.layout import PlaceLayout
from mnnconvert.passes.legalize import Legalize
from mnnconvert.passes.names import NameOutputs
from mnnconvert.runtime_ref.session import Session, load
from mnnconvert.schema.writer import write_model
from mnnconvert.verify.mnn_engine import MnnEngine

IMAGE = (2, 6, 8, 9)


def _conv(op, x, outputs, kernel=3, group=1, seed=1, **attributes):
    channels = x.shape[1]
    weight = noise(outputs, channels // group, kernel, kernel, seed=seed) * np.float32(0.2)
    pad = kernel // 2
    made = OPS["Convolution"](group=group, pads=(pad,) * 4, **attributes)
    return op.add(made, x, op.constant(weight), op.constant(noise(outputs, seed=seed + 1)))


def _plain(op, x):
    return _conv(op, x, 8)


def _two(op, x):
    return _conv(op, _conv(op, x, 8, activation="relu"), 5)


def _residual(op, x):
    y = _conv(op, op.ReLU(_conv(op, x, 6)), 6)
    return op.ReLU(op.ADD(y, x))


def _inner_residual(op, x):
    first = _conv(op, x, 6)
    return op.ReLU(op.ADD(_conv(op, op.ReLU(first), 6), first))


def _mobile(op, x):
    y = _conv(op, x, 12, kernel=1, activation="relu6")
    y = _conv(op, y, 12, group=12, activation="relu6")
    return _conv(op, op.ADD(_conv(op, y, 6, kernel=1), op.constant(noise(1, 6, 1, 1))), 4, kernel=1)


def _squeeze_excite(op, x):
    y = _conv(op, x, 7)
    gate = op.Pooling(y, function="AVEPOOL", whole=True)
    gate = op.SIGMOID(_conv(op, op.ReLU(_conv(op, gate, 3, kernel=1)), 7, kernel=1))
    return _conv(op, op.MUL(y, gate), 4)


def _concat(op, x):
    return _conv(op, op.Concat(_conv(op, x, 5), _conv(op, x, 3, kernel=1), axis=1), 4)


def _split(op, x):
    first, second = op.Slice(_conv(op, x, 7), axis=1, sizes=(3, 4))
    return _conv(op, first, 4), op.NEG(second)


def _padded(op, x):
    pads = op.constant(np.array([0, 0, 1, 2, 1, 0, 2, 1], np.int32))
    return _conv(op, op.Padding(_conv(op, x, 5), pads), 4)


def _slope(op, x):
    return op.PReLU(_conv(op, x, 5), op.constant(noise(5)))


def _scale(op, x):
    return op.Scale(_conv(op, x, 5), op.constant(noise(5)), op.constant(noise(5, seed=3)))


def _softmax_after(op, x):
    return op.Softmax(op.Reshape(_conv(op, x, 5), dims=(0, 5, -1)), axis=1)


def _channel_softmax(op, x):
    return op.Softmax(_conv(op, x, 5), axis=1)


def _twice_an_output(op, x):
    y = _conv(op, x, 5)
    return y, _conv(op, y, 4), op.NEG(y)


def _input_elsewhere(op, x):
    return _conv(op, x, 5), op.NEG(x), op.Softmax(x, axis=-1)


def _resized(op, x):
    return _conv(op, op.Interp(_conv(op, x, 5), resize_type=2, rule="HalfPixels", out_height=13, out_width=11), 3)


def _transposed(op, x):
    weight = op.constant(noise(5, 3, 2, 2))
    up = op.Deconvolution(_conv(op, x, 5), weight, op.constant(noise(3)), strides=(2, 2))
    return _conv(op, up, 2)


def _constants(op, x):
    y = _conv(op, x, 5)
    for shape in ((), (1,), (5, 1, 1), (1, 5, 1, 1), (9,), (8, 9), (1, 5, 8, 9), (1, 1, 8, 1)):
        y = op.ADD(y, op.constant(noise(*shape)))
    return _conv(op, y, 3)


def _permuted(op, x):
    return op.Permute(_conv(op, x, 5), dims=(0, 2, 3, 1))


def _cast(op, x):
    return op.Cast(op.GREATER(_conv(op, x, 5), op.constant(np.zeros((), np.float32))), to="DT_FLOAT")


def _gathered(op, x):
    return op.GatherV2(_conv(op, x, 5), op.constant(np.array([3, 0], np.int32)), op.constant(np.array(1, np.int32)))


def _rank_up(op, x):
    return op.ADD(_conv(op, x, 5), op.constant(noise(3, 1, 1, 1, 1)))


CHAINS = {
    _plain: 2, _two: 2, _residual: 2, _inner_residual: 2, _mobile: 2, _squeeze_excite: 2, _concat: 2, _split: 3,
    _padded: 2, _slope: 2, _scale: 2, _softmax_after: 2, _channel_softmax: 2, _twice_an_output: 4, _input_elsewhere: 2,
    _resized: 2, _transposed: 2, _constants: 2, _permuted: 2, _cast: 2, _gathered: 2, _rank_up: 2,
}  # fmt: skip


def _placed(make, **inputs):
    graph = build(make, **inputs)
    wanted = Session(graph).run(feeds_for(graph))
    for each in (Legalize(), PlaceLayout(), NameOutputs()):
        each.run(graph)
        verify(graph, each.name)
    return graph, wanted


@pytest.mark.parametrize("make", CHAINS, ids=lambda f: f.__name__.strip("_"))
def test_conversions_stand_only_at_the_borders(make):
    graph, _ = _placed(make, x=IMAGE)
    assert kinds(graph).count("ConvertTensor") == CHAINS[make]


def test_placing_twice_changes_nothing():
    graph, _ = _placed(_squeeze_excite, x=IMAGE)
    before = kinds(graph)
    PlaceLayout().run(graph)
    assert kinds(graph) == before


def test_conversions_between_channel_first_layouts_are_found_anew():
    def chain(op, x):
        packed = op.ConvertTensor(_conv(op, x, 5), source="NCHW", dest="NC4HW4")
        return op.NEG(op.ConvertTensor(packed, source="NC4HW4", dest="NCHW"))

    graph, _ = _placed(chain, x=IMAGE)
    assert kinds(graph) == ["ConvertTensor", "Convolution", "NEG", "ConvertTensor"]


def test_the_converted_output_keeps_the_name():
    graph, _ = _placed(_plain, x=IMAGE)
    assert [(name, value.name, value.producer.op.kind) for name, value in graph.outputs] == [
        ("y", "y", "ConvertTensor")
    ]


def _agree(got, wanted):
    for name, want in wanted.items():
        assert got[name].shape == want.shape
        np.testing.assert_allclose(got[name], want, rtol=0, atol=1e-4 * float(np.abs(want).max()), err_msg=name)


@pytest.mark.mnn
@pytest.mark.parametrize("make", CHAINS, ids=lambda f: f.__name__.strip("_"))
def test_released_runtime_agrees(make, tmp_path):
    graph, wanted = _placed(make, x=IMAGE)
    feeds = feeds_for(graph)
    write_model(graph, tmp_path / "m.mnn")
    _agree(load(tmp_path / "m.mnn").run(feeds), wanted)
    with MnnEngine(tmp_path / "m.mnn", timeout=20) as engine:
        _agree(engine.run(feeds), wanted)


def _volume(op, x):
    y = op.Convolution3D(x, op.constant(noise(5, 3, 2, 2, 2)), op.constant(noise(5)))
    y = op.Pooling3D(op.ReLU(y), function="MAXPOOL", kernel=(2, 2, 2), strides=(1, 2, 2))
    return op.ADD(y, op.constant(noise(5, 1, 1, 1)))


@pytest.mark.mnn
def test_volumes_are_blocked_too(tmp_path):
    graph, wanted = _placed(_volume, x=(1, 3, 4, 7, 6))
    assert kinds(graph).count("ConvertTensor") == 2
    write_model(graph, tmp_path / "m.mnn")
    with MnnEngine(tmp_path / "m.mnn", timeout=20) as engine:
        _agree(engine.run(feeds_for(graph)), wanted)
