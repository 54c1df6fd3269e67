"""Convolutions, pooling, products and resizing against LiteRT: float, quantized, and with coded weights."""

import numpy as np
import pytest
from tflite_cases import G, Op, T, build, check, const, feeds_for, import_bytes, litert_outputs, one, schema

from mnnconvert.ir import CodedTensor, HalfTensor

RNG = np.random.default_rng(5)


def normal(*shape: int, spread: float = 0.5) -> np.ndarray:
    return (RNG.standard_normal(shape) * spread).astype(np.float32)


def codes(*shape: int, low: int = -127, high: int = 128, kind: str = "int8") -> np.ndarray:
    return RNG.integers(low, high, shape).astype(kind)


def convolution(x: T, w: T, bias: T | None, result: T, **fields) -> bytes:
    return one("CONV_2D", [x, w, *([bias] if bias else [])], [result], "Conv2DOptions",
               **{"strideW": 1, "strideH": 1, "dilationWFactor": 1, "dilationHFactor": 1} | fields)  # fmt: skip


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize(
    ("kernel", "strides", "dilation"),
    [((3, 3), (1, 1), 1), ((3, 2), (2, 1), 1), ((1, 1), (1, 1), 1), ((5, 5), (3, 2), 1), ((3, 3), (1, 1), 2)],
)
def test_conv_2d(padding, kernel, strides, dilation, tmp_path):
    content = convolution(
        T((2, 13, 12, 3)), const(normal(6, *kernel, 3)), const(normal(6)), T(), padding=padding, strideH=strides[0],
        strideW=strides[1], dilationHFactor=dilation, dilationWFactor=dilation,
    )  # fmt: skip
    check(content, tmp_path)


@pytest.mark.parametrize("activation", [0, 1, 2, 3])
def test_conv_2d_activation(activation, tmp_path):
    fields = {"fusedActivationFunction": activation}
    check(convolution(T((1, 6, 6, 3)), const(normal(4, 3, 3, 3)), const(normal(4)), T(), **fields), tmp_path)


def test_conv_2d_of_groups(tmp_path):
    check(convolution(T((1, 6, 7, 6)), const(normal(4, 3, 3, 3)), const(normal(4)), T()), tmp_path)


def test_conv_2d_of_open_sizes(tmp_path):
    content = convolution(
        T((-1, -1, -1, 3)), const(normal(4, 3, 3, 3)), const(normal(4)), T((-1, -1, -1, 4)), padding=0, strideH=2,
        strideW=2,
    )  # fmt: skip
    for sizes in ((1, 8, 9, 3), (2, 5, 6, 3)):
        check(content, tmp_path, {"t0": normal(*sizes)})


def test_half_precision_weights(tmp_path):
    tensors = [
        T((1, 6, 6, 3)), const(normal(4, 3, 3, 3).astype(np.float16)), T((4, 3, 3, 3)), const(normal(4)), T(),
    ]  # fmt: skip
    fields = {"strideW": 1, "strideH": 1, "dilationWFactor": 1, "dilationHFactor": 1}
    ops = [Op("DEQUANTIZE", [1], [2], "DequantizeOptions"), Op("CONV_2D", [0, 2, 3], [4], "Conv2DOptions", fields)]
    content = build(G(tensors, ops, [0], [4]))
    check(content, tmp_path)
    assert any(isinstance(v.tensor, HalfTensor) for v in import_bytes(content).constants())
    assert [n.op.kind for n in import_bytes(content).nodes] == ["Permute", "Convolution", "Permute"]


def coded_weight(graph) -> np.ndarray:
    (tensor,) = (v.tensor for v in graph.constants() if isinstance(v.tensor, CodedTensor))
    return tensor.coded.codes


@pytest.mark.mnn
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_coded_weights_of_float_models(kind, tmp_path):
    """Integers reach the file; LiteRT would round the activations and is asked for the decoded weights instead."""
    w = codes(4, 3, 3, 3, low=-7, high=8) if kind == "int4" else codes(4, 3, 3, 3)
    weight = T(w.shape, kind, np.linspace(0.01, 0.04, 4), 0, 0, w)
    content = convolution(T((1, 6, 6, 3)), weight, const(normal(4)), T())
    check(content, tmp_path, peer=True)
    np.testing.assert_array_equal(coded_weight(import_bytes(content)), w.transpose(0, 3, 1, 2).reshape(4, -1))


def test_codes_that_the_model_decodes_itself_stay_codes(tmp_path):
    w = codes(4, 3, 3, 3)
    weight = T(w.shape, "int8", np.linspace(0.01, 0.04, 4), 0, 0, w)
    tensors = [T((1, 6, 6, 3)), weight, T((4, 3, 3, 3)), const(normal(4)), T()]
    ops = [Op("DEQUANTIZE", [1], [2], "DequantizeOptions"), Op("CONV_2D", [0, 2, 3], [4], "Conv2DOptions", STEPS)]
    content = build(G(tensors, ops, [0], [4]))
    check(content, tmp_path)
    np.testing.assert_array_equal(coded_weight(import_bytes(content)), w.transpose(0, 3, 1, 2).reshape(4, -1))


def quantized_layer(name: str, kind: str, w: T, options: str, outputs: int, shape=(1, 9, 8, 4), **fields) -> bytes:
    zero = 120 if kind == "uint8" else -5
    x, y = T(shape, kind, 0.05, zero), T((), kind, 0.2, zero + 3)
    bias = T((outputs,), "int32", 0.05 * np.asarray(w.scale), 0, 0, RNG.integers(-900, 900, outputs).astype(np.int32))
    return one(name, [x, w, bias], [y], options, **fields)


STEPS = {"strideW": 1, "strideH": 1, "dilationWFactor": 1, "dilationHFactor": 1}


@pytest.mark.mnn
@pytest.mark.parametrize("activation", [0, 1, 3])
@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_quantized_conv_2d(kind, activation, tmp_path):
    if kind == "int8":
        w = T((6, 3, 3, 4), kind, np.linspace(0.004, 0.02, 6), 0, 0, codes(6, 3, 3, 4))
    else:
        w = T((6, 3, 3, 4), kind, 0.012, 131, 0, codes(6, 3, 3, 4, low=0, high=256, kind="uint8"))
    fields = {**STEPS, "fusedActivationFunction": activation}
    content = quantized_layer("CONV_2D", kind, w, "Conv2DOptions", 6, **fields)
    check(content, tmp_path, peer=True)
    assert coded_weight(import_bytes(content)).shape == (6, 36)


def test_quantized_conv_2d_carries_steps():
    w = T((6, 1, 1, 4), "int8", np.full(6, 0.02), 0, 0, codes(6, 1, 1, 4))
    graph = import_bytes(quantized_layer("CONV_2D", "int8", w, "Conv2DOptions", 6, **STEPS))
    (conv,) = (n for n in graph.nodes if n.op.kind == "Convolution")
    assert conv.output.steps is not None and conv.output.steps.scale == np.float32(0.2)
    assert conv.output.steps.zero == -2


def test_conv_2d_of_16_bits(tmp_path):
    w = T((4, 3, 3, 4), "int8", np.full(4, 0.01), 0, 0, codes(4, 3, 3, 4))
    bias = T((4,), "int64", np.full(4, 0.01 * 0.001), 0, 0, RNG.integers(-9000, 9000, 4))
    x, y = T((1, 6, 6, 4), "int16", 0.001, 0), T((), "int16", 0.004, 0)
    check(one("CONV_2D", [x, w, bias], [y], "Conv2DOptions", **STEPS), tmp_path)


@pytest.mark.parametrize("multiplier", [1, 2])
@pytest.mark.parametrize(("padding", "stride"), [(0, 1), (1, 1), (0, 2)])
def test_depthwise(multiplier, padding, stride, tmp_path):
    content = one(
        "DEPTHWISE_CONV_2D", [T((2, 9, 8, 3)), const(normal(1, 3, 3, 3 * multiplier)), const(normal(3 * multiplier))],
        [T()], "DepthwiseConv2DOptions", **STEPS | {"strideW": stride, "strideH": stride}, padding=padding,
        depthMultiplier=multiplier, fusedActivationFunction=1,
    )  # fmt: skip
    check(content, tmp_path)


@pytest.mark.mnn
def test_quantized_depthwise(tmp_path):
    w = T((1, 3, 3, 4), "int8", np.linspace(0.01, 0.03, 4), 0, 3, codes(1, 3, 3, 4))
    content = quantized_layer("DEPTHWISE_CONV_2D", "int8", w, "DepthwiseConv2DOptions", 4, **STEPS, depthMultiplier=1)
    check(content, tmp_path, peer=True)
    assert coded_weight(import_bytes(content)).shape == (4, 9)


@pytest.mark.parametrize(
    ("padding", "stride", "out"), [(0, 2, (10, 8)), (1, 2, (11, 9)), (0, 1, (5, 4)), (1, 3, (15, 12)), (0, 2, (9, 7))]
)
@pytest.mark.parametrize("bias", [False, True])
def test_transpose_conv(padding, stride, out, bias, tmp_path):
    content = one(
        "TRANSPOSE_CONV",
        [const([2, *out, 6]), const(normal(6, 3, 3, 4)), T((2, 5, 4, 4)), *([const(normal(6))] if bias else [])],
        [T()], "TransposeConvOptions", padding=padding, strideW=stride, strideH=stride,
    )  # fmt: skip
    check(content, tmp_path)


@pytest.mark.parametrize(("padding", "stride"), [(1, 2), (2, 2), (1, 1)])
def test_transposed_convolution_of_mediapipe(padding, stride, tmp_path):
    """LiteRT runs it by its XNNPACK delegate."""
    tensors = [T((1, 5, 4, 4)), const(normal(6, 2, 2, 4)), const(normal(6))]
    sizes = (5 * stride, 4 * stride) if padding == 1 else (4 * stride + 2, 3 * stride + 2)
    options = np.array([padding, stride, stride], np.int32).tobytes()
    content = one("Convolution2DTransposeBias", tensors, [T((1, *sizes, 6))], custom=options)
    check(content, tmp_path)


def sparse_rows(schema) -> object:
    """Rows of blocks of two columns [3, 6]: two of three blocks of row 0, none of row 1, one of row 2."""

    def level(size: int = 0, segments=None, indices=None):
        made = schema.DimensionMetadataT()
        made.denseSize, made.format = size, int(segments is not None)
        if segments is not None:
            for name, values in (("arraySegments", segments), ("arrayIndices", indices)):
                vector = schema.Int32VectorT()
                vector.values = np.array(values, np.int32)
                setattr(made, name, vector)
                setattr(made, f"{name}Type", schema.SparseIndexVector.Int32Vector)
        return made

    made = schema.SparsityParametersT()
    made.traversalOrder, made.blockMap = [0, 1, 2], [1]
    made.dimMetadata = [level(3), level(0, [0, 2, 2, 3], [0, 2, 1]), level(2)]
    return made


def test_sparse_weights(tmp_path):
    stored = const(np.arange(1, 7, dtype=np.float32))
    stored.shape, stored.sparsity = (3, 6), sparse_rows(schema)
    tensors = [T((2, 6)), stored, T((3, 6)), T()]
    ops = [Op("DENSIFY", [1], [2], "DensifyOptions"), Op("FULLY_CONNECTED", [0, 2], [3], "FullyConnectedOptions")]
    check(build(G(tensors, ops, [0], [3])), tmp_path)


@pytest.mark.parametrize(("padding", "stride", "dilation"), [(0, 1, 1), (1, 2, 1), (0, 2, 1), (1, 1, 2)])
def test_conv_3d(padding, stride, dilation, tmp_path):
    fields = {f"stride{a}": stride for a in "DHW"} | {f"dilation{a}Factor": dilation for a in "DHW"}
    tensors = [T((1, 6, 7, 8, 3)), const(normal(3, 3, 2, 3, 5)), const(normal(5))]
    check(one("CONV_3D", tensors, [T()], "Conv3DOptions", padding=padding, **fields), tmp_path)


@pytest.mark.parametrize(("padding", "out"), [(0, (8, 10, 6)), (1, (9, 11, 7))])
def test_conv_3d_transpose(padding, out, tmp_path):
    fields = {f"stride{a}": 2 for a in "DHW"} | {f"dilation{a}Factor": 1 for a in "DHW"}
    tensors = [const([1, *out, 5]), const(normal(3, 3, 3, 5, 2)), T((1, 4, 5, 3, 2)), const(normal(5))]
    check(one("CONV_3D_TRANSPOSE", tensors, [T()], "Conv3DOptions", padding=padding, **fields), tmp_path)


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize(("kernel", "stride"), [((2, 2), 2), ((3, 2), 1), ((3, 3), 2)])
@pytest.mark.parametrize("name", ["MAX_POOL_2D", "AVERAGE_POOL_2D", "L2_POOL_2D"])
def test_pooling(name, kernel, stride, padding, tmp_path):
    fields = {"filterHeight": kernel[0], "filterWidth": kernel[1], "strideH": stride, "strideW": stride}
    check(one(name, [T((2, 7, 9, 3))], [T()], "Pool2DOptions", padding=padding, **fields), tmp_path)


@pytest.mark.mnn
@pytest.mark.parametrize("kind", ["int8", "uint8", "int16"])
@pytest.mark.parametrize("name", ["MAX_POOL_2D", "AVERAGE_POOL_2D"])
def test_quantized_pooling(name, kind, tmp_path):
    zero = {"int8": -4, "uint8": 130, "int16": 0}[kind]
    fields = {"filterHeight": 3, "filterWidth": 2, "strideH": 2, "strideW": 1, "padding": 0}
    content = one(name, [T((2, 7, 9, 3), kind, 0.1, zero)], [T((), kind, 0.1, zero)], "Pool2DOptions", **fields)
    check(content, tmp_path, peer=True)


@pytest.mark.parametrize("shape", [(3, 8), (2, 3, 8), (2, 2, 4)])
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_fully_connected(shape, keep, bias, tmp_path):
    if keep and shape[-1] != 8:
        pytest.skip("the last axis has to fit")
    tensors = [T(shape), const(normal(5, 8)), *([const(normal(5))] if bias else [])]
    fields = {"keepNumDims": keep, "fusedActivationFunction": 1}
    check(one("FULLY_CONNECTED", tensors, [T()], "FullyConnectedOptions", **fields), tmp_path)


@pytest.mark.mnn
@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_quantized_fully_connected(kind, tmp_path):
    low, high = (-127, 128) if kind == "int8" else (0, 256)
    w = T((5, 8), kind, 0.01, 0 if kind == "int8" else 127, 0, codes(5, 8, low=low, high=high, kind=kind))
    check(quantized_layer("FULLY_CONNECTED", kind, w, "FullyConnectedOptions", 5, (3, 8)), tmp_path, peer=True)


def test_fully_connected_with_coded_weights(tmp_path):
    w = codes(5, 8)
    content = one("FULLY_CONNECTED", [T((3, 8)), T((5, 8), "int8", 0.02, 0, 0, w), const(normal(5))], [T()],
                  "FullyConnectedOptions")  # fmt: skip
    check(content, tmp_path, peer=True)
    np.testing.assert_array_equal(coded_weight(import_bytes(content)), w)


@pytest.mark.parametrize("adj_x", [False, True])
@pytest.mark.parametrize("adj_y", [False, True])
def test_batch_matmul(adj_x, adj_y, tmp_path):
    x, y = (2, 4, 3) if adj_x else (2, 3, 4), (1, 5, 4) if adj_y else (1, 4, 5)
    check(one("BATCH_MATMUL", [T(x), T(y)], [T()], "BatchMatMulOptions", adjX=adj_x, adjY=adj_y), tmp_path)


def test_embedding_lookup(tmp_path):
    tensors = [T((4,), "int32"), const(normal(9, 5))]
    check(one("EMBEDDING_LOOKUP", tensors, [T()]), tmp_path, {"t0": np.array([0, 8, 3, 3], np.int32)})


@pytest.mark.parametrize("size", [(14, 9), (3, 4), (7, 5), (21, 15), (1, 1)])
@pytest.mark.parametrize(("corners", "half"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("name", ["RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"])
def test_resize(name, corners, half, size, tmp_path):
    options = {"RESIZE_BILINEAR": "ResizeBilinearOptions"}.get(name, "ResizeNearestNeighborOptions")
    fields = {"alignCorners": corners, "halfPixelCenters": half}
    check(one(name, [T((2, 7, 5, 3)), const(list(size))], [T()], options, **fields), tmp_path)


@pytest.mark.parametrize("name", ["RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"])
def test_quantized_resize(name, tmp_path):
    options = {"RESIZE_BILINEAR": "ResizeBilinearOptions"}.get(name, "ResizeNearestNeighborOptions")
    x, y = T((1, 4, 5, 3), "int8", 0.1, 4), T((), "int8", 0.1, 4)
    check(one(name, [x, const([8, 10])], [y], options, halfPixelCenters=True), tmp_path)


def test_sizes_of_a_resize_at_run_time(tmp_path):
    content = one("RESIZE_BILINEAR", [T((1, 4, 5, 3)), T((2,), "int32")], [T()], "ResizeBilinearOptions")
    for size in ((8, 10), (3, 7)):
        check(content, tmp_path, feeds_for(content) | {"t1": np.array(size, np.int32)})


@pytest.mark.parametrize("name", ["DEPTH_TO_SPACE", "SPACE_TO_DEPTH"])
def test_blocks_and_depth(name, tmp_path):
    options = {"DEPTH_TO_SPACE": "DepthToSpaceOptions", "SPACE_TO_DEPTH": "SpaceToDepthOptions"}[name]
    check(one(name, [T((2, 4, 6, 8))], [T()], options, blockSize=2), tmp_path)


@pytest.mark.parametrize(("blocks", "pads"), [([2, 2], [[0, 0], [0, 0]]), ([2, 3], [[1, 1], [0, 3]])])
def test_space_to_batch_and_back(blocks, pads, tmp_path):
    check(one("SPACE_TO_BATCH_ND", [T((2, 4, 6, 3)), const(blocks), const(pads)], [T()]), tmp_path)
    images = T((2 * blocks[0] * blocks[1], 3, 3, 2))
    check(one("BATCH_TO_SPACE_ND", [images, const(blocks), const(pads)], [T()]), tmp_path)


def test_space_to_batch_of_rank_3(tmp_path):
    check(one("SPACE_TO_BATCH_ND", [T((2, 5, 3)), const([2]), const([[1, 0]])], [T()]), tmp_path)


@pytest.mark.mnn
def test_mean_pooling_of_codes_is_rounded(tmp_path):
    """The runtime's own, on codes, cuts fractions off."""
    window = {"filterHeight": 3, "filterWidth": 3, "strideH": 1, "strideW": 1, "padding": 1}
    steps = ("int8", 0.1, -7)
    content = one("AVERAGE_POOL_2D", [T((1, 6, 7, 5), *steps)], [T((), *steps)], "Pool2DOptions", **window)
    feeds = feeds_for(content)
    (codes,) = feeds.values()
    windows = np.lib.stride_tricks.sliding_window_view(codes, (3, 3), (1, 2))
    (name,) = litert_outputs(content, feeds, tmp_path)
    exact = np.rint(windows.mean((-2, -1))).astype(np.int8)
    check(content, tmp_path, feeds, want={name: exact}, steps=0, peer=True)
