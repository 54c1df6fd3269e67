"""What the properties of attributes found wrong once: small models, right in both executors since."""

from __future__ import annotations

import numpy as np
import pytest
from attribute_dice import Case, Operand
from attribute_runs import difference, expected, in_mnn, ours, written

FAR = 2**31 - 1


def noise(*shape, kind="float32") -> np.ndarray:
    return np.random.default_rng(0).integers(1, 50, shape).astype(kind)


def fed(value, kind=None) -> Operand:
    return Operand(np.asarray(value, kind))


def ints(*values) -> Operand:
    return Operand(np.array(values, np.int64), stored=True)


def floats(*values) -> Operand:
    return Operand(np.array(values, np.float32), stored=True)


def _slice(x, start, end, axis, step, **more) -> Case:
    bounds = (v if isinstance(v, Operand) else ints(v) for v in (start, end, axis, step))
    return Case("Slice", 13, (fed(x), *bounds), **more)


def _pad(mode, x, pads, *rest, opset=19) -> Case:
    return Case("Pad", opset, (fed(x), pads, *rest), {"mode": mode})


def _scatter(shape, indices, kind="float32", reduction="none") -> Case:
    indices = np.array(indices, np.int64)
    updates = noise(*indices.shape[:-1], *shape[indices.shape[-1] :], kind=kind)
    operands = (fed(noise(*shape, kind=kind)), fed(indices), fed(updates))
    return Case("ScatterND", 18, operands, {"reduction": reduction})


CASES = {
    "start in front of the axis": _slice(noise(3), -5, 2, 0, 1),
    "start in front of an open axis": _slice(noise(3), -5, FAR, 0, 1, open_sizes=True),
    "end in front of an open axis": _slice(noise(3), 0, -5, 0, 1, open_sizes=True),
    "computed start in front of the axis": _slice(noise(3), fed([-5]), 2, 0, 1),
    "nothing backwards": _slice(noise(3, 2), -3, 6, 0, -1),
    "nothing in steps": _slice(noise(3, 2), 3, FAR, 0, 2),
    "nothing in steps of an open axis": _slice(noise(3, 2), 3, FAR, 0, 2, open_sizes=True),
    "computed bounds in steps": _slice(noise(5, 2), fed([1]), fed([FAR]), -2, 2),
    "longest step": _slice(noise(5), fed([0]), 5, 0, FAR),
    "one axis of open size goes": Case("Squeeze", 11, (fed(noise(1)),), open_sizes=True),
    "edges of four axes": _pad("edge", noise(2, 3, 2, 3), ints(1, 0, 1, 1, 0, 2, 1, 1)),
    "mirrors of five axes": _pad("reflect", noise(3, 2, 3, 2, 3), ints(1, 0, 1, 1, 1, 2, 1, 1, 0, 1)),
    "ones around five axes": _pad("constant", noise(2, 2, 1, 2, 2), ints(1, 0, 1, 1, 0, 1, 0, 1, 0, 1), floats(1.0)),
    "ones around nothing": _pad("constant", noise(2, 0, 2), ints(0, 1, 0, 0, 1, 0), floats(1.0)),
    "computed crop of mirrors": _pad("reflect", noise(4, 3), fed([-2, 1, 0, 0])),
    "computed crop in a circle": _pad("wrap", noise(3, 4), fed([-2, 0, 1, 1])),
    "groups with a computed bias": Case(
        "Conv", 11, (fed(noise(1, 4, 5, 5)), Operand(noise(4, 2, 3, 3), True), fed(noise(4))), {"group": 2}
    ),
    "several outputs of each channel": Case("Conv", 11, (fed(noise(1, 3, 7)), fed(noise(9, 1, 2))), {"group": 3}),
    "volume of no images": Case(
        "ConvTranspose", 11, (fed(noise(0, 2, 3, 3, 3)), Operand(noise(2, 1, 2, 2, 2), True)), {}
    ),
    "smaller nearest of opset 10": Case("Resize", 10, (fed(noise(4, 4)), floats(0.6, 0.3)), {"mode": "nearest"}),
    "line by computed scales": Case(
        "Resize", 18, (fed(noise(3, 2, 4)), None, fed([1, 1, 1.5], "float32")), {"mode": "linear"}
    ),
    "matrix by computed scales": Case(
        "Resize", 13, (fed(noise(2, 4)), None, fed([2.5, 2], "float32")), {"mode": "nearest"}
    ),
    "first axis from the end": Case("Gather", 13, (fed(noise(4)), fed([2, -1])), {"axis": -1}),
    "one index vector": _scatter((4, 3), [1]),
    "short index vectors": _scatter((2, 4, 3), [[1, 2], [0, 1]], reduction="add"),
    "index vectors in many axes": _scatter((4,), [[[1], [2]]]),
}
REFUSED_FOR_MNN = {
    "sum of integers": _scatter((4,), [[1], [1]], "int32", "add"),
    "no index vectors": Case("GatherND", 13, (fed(noise(4, 2)), Operand(np.zeros((3, 0, 1), np.int64)))),
    "pools of no images": Case("MaxPool", 12, (fed(noise(0, 2, 3, 3, 3)),), {"kernel_shape": [2, 2, 2]}),
}


@pytest.mark.parametrize("name", CASES)
def test_in_our_executor(name):
    model, want = expected(CASES[name])
    graph, refusal = written(model, "mnn-3.6.1")
    assert graph is not None, refusal
    assert not difference(CASES[name], ours(graph, CASES[name].feeds), want)


@pytest.fixture(scope="module")
def peer():
    """What the released runtime makes of every case, in one process."""
    graphs = [written(expected(case)[0], "mnn-3.6.1")[0] for case in CASES.values()]
    return dict(zip(CASES, in_mnn(graphs, [case.feeds for case in CASES.values()]), strict=True))


@pytest.mark.mnn
@pytest.mark.parametrize("name", CASES)
def test_in_the_released_runtime(name, peer):
    assert not isinstance(peer[name], str), peer[name]
    assert not difference(CASES[name], peer[name], expected(CASES[name])[1])


@pytest.mark.parametrize("name", REFUSED_FOR_MNN)
def test_refused_for_the_released_runtime_only(name):
    model, want = expected(REFUSED_FOR_MNN[name])
    assert written(model, "mnn-3.6.1")[1].startswith("runtime-defect")
    graph, _ = written(model, "none")
    assert not difference(REFUSED_FOR_MNN[name], ours(graph, REFUSED_FOR_MNN[name].feeds), want)
