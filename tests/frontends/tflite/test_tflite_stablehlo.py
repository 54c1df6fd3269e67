"""StableHLO operators: against LiteRT where it has a kernel for them, else against numpy."""

import numpy as np
import pytest
from flatbuffers import flexbuffers
from tflite_cases import G, Op, T, build, check, const, feeds_for, one, refusal

X, Y = T((3, 4)), T((3, 4))
UNARY = {
    "ABS": np.abs, "COSINE": np.cos, "EXPONENTIAL": np.exp, "FLOOR": np.floor, "NEGATE": np.negative, "TANH": np.tanh,
    "LOGISTIC": lambda x: 1 / (1 + np.exp(-x)), "CBRT": np.cbrt,
}  # fmt: skip
POSITIVE = {"LOG": np.log, "RSQRT": lambda x: 1 / np.sqrt(x)}
BINARY = {"SUBTRACT": np.subtract, "DIVIDE": np.divide, "REMAINDER": np.fmod}


def against(content: bytes, folder, compute, **more) -> None:
    feeds = feeds_for(content, **more)
    check(content, folder, feeds, want={f"t{len(feeds)}": np.asarray(compute(*feeds.values()))}, rtol=1e-5)


@pytest.mark.parametrize("name", UNARY)
def test_unary(name, tmp_path):
    against(one(f"STABLEHLO_{name}", [X], [T()]), tmp_path, UNARY[name])


@pytest.mark.parametrize("name", POSITIVE)
def test_unary_of_positive_numbers(name, tmp_path):
    against(one(f"STABLEHLO_{name}", [X], [T()]), tmp_path, POSITIVE[name], low=0.5)


@pytest.mark.parametrize("name", BINARY)
def test_binary(name, tmp_path):
    against(one(f"STABLEHLO_{name}", [X, Y], [T()]), tmp_path, BINARY[name])


@pytest.mark.parametrize("kind", ["int8", "int16", "int32"])
def test_remainder_of_integers(kind, tmp_path):
    feeds = {"t0": np.array([7, -7, 100, -128], kind), "t1": np.array([3, 3, -9, 5], kind)}
    content = one("STABLEHLO_REMAINDER", [T((4,), kind)] * 2, [T((4,), kind)])
    check(content, tmp_path, feeds, want={"t2": np.fmod(*feeds.values())})


def test_powers(tmp_path):
    against(one("STABLEHLO_POWER", [X, Y], [T()]), tmp_path, np.power, low=0.5)


@pytest.mark.parametrize("name", ["ADD", "MULTIPLY", "MAXIMUM", "MINIMUM"])
def test_binary_against_litert(name, tmp_path):
    check(one(f"STABLEHLO_{name}", [X, Y], [T((3, 4))]), tmp_path)


def test_shift_left(tmp_path):
    x = T((4,), "int32")
    content = one("STABLEHLO_SHIFT_LEFT", [x, x], [x], "StablehloShiftLeftOptions")
    check(content, tmp_path, {"t0": np.array([1, -3, 5, 7], np.int32), "t1": np.array([0, 2, 4, 1], np.int32)})


@pytest.mark.parametrize(("name", "bits", "truth"), [("AND", np.bitwise_and, np.logical_and),
                                                     ("OR", np.bitwise_or, np.logical_or)])  # fmt: skip
def test_logic(name, bits, truth, tmp_path):
    for kind, compute in (("int32", bits), ("bool", truth)):
        against(one(f"STABLEHLO_{name}", [T((3, 4), kind)] * 2, [T((), kind)]), tmp_path, compute)


@pytest.mark.parametrize(
    ("number", "compute"),
    [(0, np.equal), (1, np.not_equal), (2, np.greater_equal), (3, np.greater), (4, np.less_equal), (5, np.less)],
)
def test_compare(number, compute, tmp_path):
    fields = {"comparisonDirection": number}
    content = one("STABLEHLO_COMPARE", [T((5, 6), "int32")] * 2, [T((), "bool")], "StablehloCompareOptions", **fields)
    against(content, tmp_path, compute)


def test_choices(tmp_path):
    against(one("STABLEHLO_SELECT", [T((3, 4), "bool"), X, Y], [T()]), tmp_path, np.where)
    content = one("STABLEHLO_CLAMP", [const(np.float32(-0.5)), X, const(np.float32(0.7))], [T()])
    feeds = feeds_for(content)
    check(content, tmp_path, feeds, want={"t3": np.clip(feeds["t1"], -0.5, 0.7)})


def test_convert(tmp_path):
    against(one("STABLEHLO_CONVERT", [X], [T((), "int32")]), tmp_path, lambda x: x.astype(np.int32))


def test_shapes(tmp_path):
    against(one("STABLEHLO_RESHAPE", [X], [T((2, 6))]), tmp_path, lambda x: x.reshape(2, 6))
    fields = {"broadcastDimensions": [2, 0]}
    content = one("STABLEHLO_BROADCAST_IN_DIM", [X], [T((4, 5, 3))], "StablehloBroadcastInDimOptions", **fields)
    against(content, tmp_path, lambda x: np.broadcast_to(x.T[:, None], (4, 5, 3)))
    content = one("STABLEHLO_TRANSPOSE", [T((2, 3, 4))], [T()], "StablehloTransposeOptions", permutation=[2, 0, 1])
    against(content, tmp_path, lambda x: x.transpose(2, 0, 1))


def test_slices(tmp_path):
    fields = {"startIndices": [0, 1], "limitIndices": [3, 4], "strides": [2, 1]}
    against(one("STABLEHLO_SLICE", [X], [T()], "StablehloSliceOptions", **fields), tmp_path, lambda x: x[0:3:2, 1:4])
    fields = {"sliceSizes": [2, 2]}
    tensors = [X, const(2), const(-1)]
    content = one("STABLEHLO_DYNAMIC_SLICE", tensors, [T()], "StablehloDynamicSliceOptions", **fields)
    feeds = feeds_for(content)
    check(content, tmp_path, feeds, want={"t3": feeds["t0"][1:3, 0:2]})


def test_joining_and_counting(tmp_path):
    content = one("STABLEHLO_CONCATENATE", [X, Y], [T()], "StablehloConcatenateOptions", dimension=1)
    against(content, tmp_path, lambda x, y: np.concatenate([x, y], 1))
    content = one("STABLEHLO_IOTA", [], [T((2, 3), "int32")], "StablehloIotaOptions", iotaDimension=1)
    check(content, tmp_path, {}, want={"t0": np.array([[0, 1, 2]] * 2)})


def test_pad(tmp_path):
    fields = {"edgePaddingLow": [1, 0], "edgePaddingHigh": [0, 2], "interiorPadding": [0, 0]}
    content = one("STABLEHLO_PAD", [X, const(np.float32(1.5))], [T()], "StablehloPadOptions", **fields)
    check(content, tmp_path)
    fields["interiorPadding"] = [1, 0]
    content = one("STABLEHLO_PAD", [X, const(np.float32(1.5))], [T()], "StablehloPadOptions", **fields)
    assert "between elements" in refusal(content)[0].message


def test_dot_general(tmp_path):
    fields = {
        "lhsBatchingDimensions": [1], "rhsBatchingDimensions": [0], "lhsContractingDimensions": [2],
        "rhsContractingDimensions": [1],
    }  # fmt: skip
    content = one("STABLEHLO_DOT_GENERAL", [T((3, 2, 5)), T((2, 5, 4))], [T()], "StablehloDotGeneralOptions", **fields)
    against(content, tmp_path, lambda x, y: np.einsum("abk,bkc->bac", x, y))


def test_composite(tmp_path):
    """LiteRT runs the decomposition."""
    inner = G([X, Y, T((3, 4))], [Op("MUL", [0, 1], [2], "MulOptions")], [0, 1], [2])
    attributes = np.frombuffer(bytes(flexbuffers.Dumps({})), np.uint8)
    fields = {"name": "odml.product", "decompositionSubgraphIndex": 1, "compositeAttributes": attributes}
    op = Op("STABLEHLO_COMPOSITE", [0, 1], [2], "StableHLOCompositeOptions", fields)
    check(build(G([X, Y, T((3, 4))], [op], [0, 1], [2]), inner), tmp_path)
