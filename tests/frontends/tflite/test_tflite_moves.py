"""Moves, reductions, searches and tables against LiteRT."""

import numpy as np
import pytest
from tflite_cases import T, check, const, feeds_for, import_bytes, one, refusal

F = T((2, 3, 4, 5))
CODES = T((2, 3, 4, 5), "int8", 0.1, -7)
SAME = T((), "int8", 0.1, -7)


@pytest.mark.parametrize(("kind", "result"), [(F, T()), (CODES, SAME)])
@pytest.mark.parametrize(
    ("name", "operands", "options", "fields"),
    [
        ("RESHAPE", [const([6, -1])], "ReshapeOptions", {"newShape": [6, 20]}),
        ("RESHAPE", [const([2, 60])], "ReshapeOptions", {}),
        ("TRANSPOSE", [const([0, 3, 1, 2])], "TransposeOptions", {}),
        ("TRANSPOSE", [const([3, 1, 0, 2])], "TransposeOptions", {}),
        ("EXPAND_DIMS", [const([1])], "ExpandDimsOptions", {}),
        ("EXPAND_DIMS", [const(-1)], "ExpandDimsOptions", {}),
        ("SLICE", [const([0, 1, 0, 2]), const([2, -1, 3, 2])], "SliceOptions", {}),
        ("STRIDED_SLICE", [const([0, 2, 1, 4]), const([2, 0, 4, 0]), const([1, -1, 2, -2])], "StridedSliceOptions", {}),
        ("STRIDED_SLICE", [const([0, 1, 1, 0]), const([2, 2, 4, 5]), const([1, 1, 1, 1])], "StridedSliceOptions",
         {"beginMask": 1, "endMask": 8, "shrinkAxisMask": 2}),
        ("STRIDED_SLICE", [const([0, 1, 0]), const([1, 2, 0]), const([1, 1, 1])], "StridedSliceOptions",
         {"ellipsisMask": 4}),
        ("STRIDED_SLICE", [const([0, 0, 1]), const([2, 0, 3]), const([1, 1, 1])], "StridedSliceOptions",
         {"newAxisMask": 2}),
        ("STRIDED_SLICE", [const([0, 1, 1, 0]), const([2, 2, 2, 5]), const([1, 1, 1, 2])], "StridedSliceOptions",
         {"offset": True}),
        ("PAD", [const([[0, 0], [1, 2], [0, 3], [1, 0]])], "PadOptions", {}),
        ("TILE", [const([1, 2, 1, 3])], "TileOptions", {}),
        ("REVERSE_V2", [const([1])], "ReverseV2Options", {}),
        ("GATHER", [const([2, 0, 1, 1])], "GatherOptions", {"axis": 1}),
        ("GATHER", [const([[3, 0], [1, 1]])], "GatherOptions", {"axis": -2}),
        ("GATHER_ND", [const([[1, 2], [0, 0]])], "GatherNdOptions", {}),
    ],
)  # fmt: skip
def test_moves(name, operands, options, fields, kind, result, tmp_path):
    check(one(name, [kind, *operands], [result], options, **fields), tmp_path)


@pytest.mark.parametrize("mode", [0, 1])
def test_mirror_pad(mode, tmp_path):
    pads = const([[0, 0], [1, 2], [0, 2], [1, 0]])
    check(one("MIRROR_PAD", [F, pads], [T()], "MirrorPadOptions", mode=mode), tmp_path)


def test_pad_with_a_value(tmp_path):
    pads = const([[0, 0], [1, 2], [0, 3], [1, 0]])
    check(one("PADV2", [F, pads, const(np.float32(2.5))], [T()], "PadV2Options"), tmp_path)
    check(one("PADV2", [CODES, pads, T((1,), "int8", 0.1, -7, data=[9])], [SAME], "PadV2Options"), tmp_path)


@pytest.mark.parametrize("axes", [[], [0], [0, -1]])
def test_squeeze(axes, tmp_path):
    check(one("SQUEEZE", [T((1, 3, 4, 1))], [T()], "SqueezeOptions", squeezeDims=axes), tmp_path)


@pytest.mark.parametrize("axis", [0, 3, -2])
def test_concatenation(axis, tmp_path):
    check(
        one("CONCATENATION", [F, F, const(np.ones((2, 3, 4, 5)))], [T()], "ConcatenationOptions", axis=axis), tmp_path
    )


def test_concatenation_of_other_steps(tmp_path):
    """Codes of the operands are brought to the steps of the result."""
    parts = [T((2, 3), "uint8", 0.1, 7), T((2, 4), "uint8", 0.03, 100)]
    check(one("CONCATENATION", parts, [T((), "uint8", 0.1, 60)], "ConcatenationOptions", axis=1), tmp_path)


def test_quantized_concatenation_with_an_activation(tmp_path):
    """6 is no step of the result, so that it has to be rounded."""
    parts = [T((2, 30), "int8", 0.35, -60)] * 2
    content = one("CONCATENATION", parts, [T((), "int8", 0.35, -60)], "ConcatenationOptions", axis=1)
    check(content, tmp_path)


@pytest.mark.parametrize("axis", [0, 2, -1])
def test_pack_and_unpack(axis, tmp_path):
    check(one("PACK", [F, F], [T()], "PackOptions", axis=axis, valuesCount=2), tmp_path)
    count = F.shape[axis]
    check(one("UNPACK", [F], [T()] * count, "UnpackOptions", axis=axis, num=count), tmp_path)


def test_split(tmp_path):
    check(one("SPLIT", [const(2), F], [T(), T()], "SplitOptions", numSplits=2), tmp_path)
    check(one("SPLIT_V", [F, const([1, 3, 1]), const(3)], [T()] * 3, "SplitVOptions", numSplits=3), tmp_path)
    check(one("SPLIT_V", [F, const([1, -1]), const(-1)], [T()] * 2, "SplitVOptions", numSplits=2), tmp_path)


def test_broadcast_to(tmp_path):
    check(one("BROADCAST_TO", [T((3, 1)), const([2, 3, 4])], [T()], "BroadcastToOptions"), tmp_path)
    args = [T((3,), "int32"), T((2,), "int32")]
    feeds = {"t0": np.array([2, 1, 4], np.int32), "t1": np.array([5, 1], np.int32)}
    check(one("BROADCAST_ARGS", args, [T((), "int32")]), tmp_path, feeds)


def test_reverse_sequence(tmp_path):
    lengths = const([1, 3])
    check(one("REVERSE_SEQUENCE", [F, lengths], [T()], "ReverseSequenceOptions", seqDim=1, batchDim=0), tmp_path)


@pytest.mark.parametrize(("axis", "batch"), [(1, 1), (2, 1), (3, 1), (2, 2), (3, 2), (2, -1)])
def test_gather_of_batches(axis, batch, tmp_path):
    indices = const(np.array([[1, 0, 2], [2, 1, 0]]) % F.shape[axis])
    check(one("GATHER", [F, indices], [T()], "GatherOptions", axis=axis, batchDims=batch), tmp_path)


def test_shape_and_rank(tmp_path):
    check(one("SHAPE", [F], [T((), "int32")], "ShapeOptions", outType=2), tmp_path)
    check(one("RANK", [F], [T((), "int32")], "RankOptions"), tmp_path)


REDUCERS = ["SUM", "MEAN", "REDUCE_PROD", "REDUCE_MAX", "REDUCE_MIN"]


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("axes", [[1, 2], [3], [-1, 0], [0, 1, 2, 3]])
@pytest.mark.parametrize("name", REDUCERS)
def test_reductions(name, axes, keep, tmp_path):
    check(one(name, [F, const(axes)], [T()], "ReducerOptions", keepDims=keep), tmp_path)


@pytest.mark.parametrize("name", ["SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD"])
def test_reductions_of_integers(name, tmp_path):
    check(one(name, [T((3, 4), "int32"), const([1])], [T((), "int32")], "ReducerOptions"), tmp_path)


@pytest.mark.parametrize("name", ["REDUCE_ANY", "REDUCE_ALL"])
def test_reductions_of_truth(name, tmp_path):
    check(one(name, [T((5, 2), "bool"), const([1])], [T((), "bool")], "ReducerOptions"), tmp_path)


@pytest.mark.parametrize("name", ["MEAN", "REDUCE_MAX", "SUM"])
def test_quantized_reductions(name, tmp_path):
    result = SAME if name == "REDUCE_MAX" else T((), "int8", 0.1 if name == "MEAN" else 0.7, -7)
    check(one(name, [CODES, const([1, 2])], [result], "ReducerOptions", keepDims=True), tmp_path)


# Means over planes that stay, in one piece and with channels left over; over other axes; of other types and factors.
MEANS = [
    ((2, 2, 2, 32), [1, 2], True, "int8", 1.0), ((1, 7, 7, 16), [-2, 1], True, "int8", 0.77),
    ((2, 3, 3, 5), [1, 2], True, "int8", 1.0), ((2, 3, 2, 40), [2, 1], True, "uint8", 1.3),
    ((2, 2, 2, 32), [1, 2], False, "int8", 1.0), ((2, 4, 50), [1], True, "int8", 1.0),
    ((2, 3, 4, 20), [3], False, "int8", 1.0), ((3, 6, 50), [1], False, "uint8", 0.31),
    ((2, 13, 50), [1], False, "int16", 1.0), ((5, 40), [1], False, "int8", 40.0),
]  # fmt: skip


@pytest.mark.mnn
@pytest.mark.parametrize(("shape", "axes", "keep", "type", "factor"), MEANS)
def test_means_of_codes_are_those_of_litert(shape, axes, keep, type, factor, tmp_path):
    """To the code: of four, a quarter over is one more. And they are not rounded to the steps of the operand first."""
    zeros = {"int8": (-7, 9), "uint8": (121, 137), "int16": (0, 0)}[type]
    operand, result = T(shape, type, 0.1, zeros[0]), T((), type, 0.1 / factor, zeros[1])
    content = one("MEAN", [operand, const(axes)], [result], "ReducerOptions", keepDims=keep)
    check(content, tmp_path, steps=0, peer=True)


@pytest.mark.parametrize("scales", [(1e-38, 1e38), (1e38, 1e-30), (0.0, 0.1)])
def test_means_with_scales_that_are_none(scales):
    """What a damaged file may hold does no harm."""
    operand, result = T((1, 2, 2, 3), "int8", scales[0], 5), T((), "int8", scales[1], 2**40)
    import_bytes(one("MEAN", [operand, const([1, 2])], [result], "ReducerOptions", keepDims=True))


@pytest.mark.parametrize("beta", [1.0, 0.5])
def test_softmax(beta, tmp_path):
    check(one("SOFTMAX", [F], [T()], "SoftmaxOptions", beta=beta), tmp_path)
    x = T((3, 10), "int8", 0.1, 4)
    check(one("SOFTMAX", [x], [T((), "int8", 1 / 256, -128)], "SoftmaxOptions", beta=beta), tmp_path)


def test_log_softmax(tmp_path):
    check(one("LOG_SOFTMAX", [T((3, 10))], [T()], "LogSoftmaxOptions"), tmp_path)


def test_l2_normalization(tmp_path):
    check(one("L2_NORMALIZATION", [F], [T()], "L2NormOptions"), tmp_path)
    check(one("L2_NORMALIZATION", [T((3, 10), "int8", 0.1, 4)], [T((), "int8", 1 / 128, 0)], "L2NormOptions"), tmp_path)


@pytest.mark.parametrize("radius", [1, 3])
def test_local_response_normalization(radius, tmp_path):
    fields = {"radius": radius, "bias": 1.5, "alpha": 0.3, "beta": 0.6}
    options = "LocalResponseNormalizationOptions"
    check(one("LOCAL_RESPONSE_NORMALIZATION", [T((2, 3, 4, 9))], [T()], options, **fields), tmp_path)


def test_positions_of_integers_that_floats_cannot_tell_apart(tmp_path):
    x = {"t0": np.array([[2**24, 2**24 + 1, 5], [-(2**24), -7, -(2**24) - 1]], np.int32)}
    for name, options in (("ARG_MAX", "ArgMaxOptions"), ("ARG_MIN", "ArgMinOptions")):
        content = one(name, [T((2, 3), "int32"), const(1)], [T((), "int32")], options, outputType=2)
        check(content, tmp_path, x, peer=True)


@pytest.mark.parametrize("axis", [0, 2, -1])
def test_positions_of_extremes(axis, tmp_path):
    fields = {"outputType": 2}
    check(one("ARG_MAX", [F, const(axis)], [T((), "int32")], "ArgMaxOptions", **fields), tmp_path)
    check(one("ARG_MIN", [CODES, const(axis)], [T((), "int32")], "ArgMinOptions", **fields), tmp_path)


def test_top_k(tmp_path):
    check(one("TOPK_V2", [T((3, 9)), const(4)], [T(), T((), "int32")], "TopKV2Options"), tmp_path)


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_cumsum(exclusive, reverse, tmp_path):
    fields = {"exclusive": exclusive, "reverse": reverse}
    check(one("CUMSUM", [T((3, 4, 5)), const(1)], [T()], "CumsumOptions", **fields), tmp_path)


def test_fill_and_range(tmp_path):
    check(one("FILL", [T((3,), "int32"), const(np.float32(2.5))], [T()], "FillOptions"), tmp_path,
          {"t0": np.array([2, 1, 3], np.int32)})  # fmt: skip
    bounds = {"t0": np.array(3, np.int32), "t1": np.array(12, np.int32), "t2": np.array(4, np.int32)}
    check(one("RANGE", [T((), "int32")] * 3, [T((), "int32")], "RangeOptions"), tmp_path, bounds)


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_one_hot(axis, tmp_path):
    tensors = [T((2, 3), "int32"), const(4), const(np.float32(2)), const(np.float32(-1))]
    check(one("ONE_HOT", tensors, [T()], "OneHotOptions", axis=axis), tmp_path)


def test_where_and_unique(tmp_path):
    check(one("WHERE", [T((4, 5), "bool")], [T((), "int64")], "WhereOptions"), tmp_path)
    feeds = {"t0": np.array([4, 1, 4, 7, 1, 1, 0], np.float32)}
    check(one("UNIQUE", [T((7,))], [T(), T((), "int32")], "UniqueOptions", idxOutType=2), tmp_path, feeds)


def test_scatter_nd_adds_up(tmp_path):
    tensors = [const([[1, 0], [2, 2], [1, 0]]), T((3, 4)), const([3, 3, 4])]
    check(one("SCATTER_ND", tensors, [T()], "ScatterNdOptions"), tmp_path)


@pytest.mark.parametrize(
    ("indices", "values"), [([[0, 1], [2, 3]], [1.5, 2.5]), ([[0, 0], [1, 3]], 4.0)], ids=["each", "one"]
)
def test_sparse_to_dense(indices, values, tmp_path):
    default, given = const(np.float32(-1)), const(np.asarray(values, np.float32))
    content = one("SPARSE_TO_DENSE", [T((2, 2), "int32"), const([3, 4]), given, default], [T()], "SparseToDenseOptions")
    check(content, tmp_path, {"t0": np.array(indices, np.int32)})


@pytest.mark.parametrize("name", ["SEGMENT_SUM", *(f"UNSORTED_SEGMENT_{f}" for f in ("SUM", "PROD", "MAX", "MIN"))])
def test_segments(name, tmp_path):
    if name == "SEGMENT_SUM":
        content, options = [const([0, 0, 1, 2, 2])], "SegmentSumOptions"
    else:
        content, options = (
            [const([2, 0, -1, 3, 2]), const(5)],
            f"UnsortedSegment{name.split('_')[-1].capitalize()}Options",
        )
    check(one(name, [T((5, 3)), *content], [T()], options), tmp_path)


@pytest.mark.parametrize("start", [[1, 2], [3, 0], [-1, 9]])
def test_dynamic_update_slice(start, tmp_path):
    content = one("DYNAMIC_UPDATE_SLICE", [T((4, 5)), T((2, 3)), T((2,), "int32")], [T()], "DynamicUpdateSliceOptions")
    check(content, tmp_path, feeds_for(content) | {"t2": np.array(start, np.int32)})


def test_diagonals(tmp_path):
    check(one("MATRIX_DIAG", [T((2, 4))], [T()], "MatrixDiagOptions"), tmp_path)
    check(one("MATRIX_SET_DIAG", [T((2, 4, 4)), T((2, 4))], [T()], "MatrixSetDiagOptions"), tmp_path)


def test_bucketize(tmp_path):
    content = one("BUCKETIZE", [T((3, 4))], [T((), "int32")], "BucketizeOptions", boundaries=[-1.0, 0.0, 0.5])
    feeds = feeds_for(content)
    feeds["t0"][0, :3] = [-1.0, 0.0, 0.5]
    check(content, tmp_path, feeds)


def boxes() -> np.ndarray:
    corners = np.random.default_rng(3).uniform(0, 0.7, (12, 2))
    return np.concatenate([corners, corners + 0.3], 1).astype(np.float32)


@pytest.mark.parametrize("version", [4, 5])
def test_suppression(version, tmp_path):
    limits = [const(6), const(np.float32(0.4)), const(np.float32(0.2))]
    more = [const(np.float32(0.0))] if version == 5 else []
    results = [T((), "int32"), T((), "int32")] if version == 4 else [T((), "int32"), T(), T((), "int32")]
    content = one(f"NON_MAX_SUPPRESSION_V{version}", [T((12, 4)), T((12,)), *limits, *more], results,
                  f"NonMaxSuppressionV{version}Options")  # fmt: skip
    feeds = {"t0": boxes(), "t1": np.random.default_rng(4).permutation(12).astype(np.float32) / 12}
    check(content, tmp_path, feeds)
    if version == 5:
        soft = one("NON_MAX_SUPPRESSION_V5", [T((12, 4)), T((12,)), *limits, const(np.float32(0.5))], results,
                   "NonMaxSuppressionV5Options")  # fmt: skip
        assert "sigma" in refusal(soft)[0].message


@pytest.mark.parametrize("name", ["RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL"])
def test_random_numbers_have_their_distribution(name, tmp_path):
    from tflite_cases import import_bytes, run_graph

    (numbers,) = run_graph(import_bytes(one(name, [const([100, 100])], [T()], "RandomOptions", seed=3)), {}).values()
    assert numbers.shape == (100, 100)
    mean, deviation = (0.5, np.sqrt(1 / 12)) if name == "RANDOM_UNIFORM" else (0.0, 1.0)
    assert abs(numbers.mean() - mean) < 0.03 and abs(numbers.std() - deviation) < 0.03


def test_integers_that_carry_a_scale_are_integers(tmp_path):
    """Old converters describe every tensor; only a bias counts in steps."""
    shape = T((2,), "int32", 0.5, 0, data=np.array([6, 20], np.int32))
    check(one("RESHAPE", [F, shape], [T()], "ReshapeOptions", newShape=[6, 20]), tmp_path)
