"""Convolutions, pooling, norms, matrix products and resizing of TensorFlow."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tf_cases import array, check, compare, model_of, old_op, raw, refusal, tf

IMAGE = array((2, 7, 6, 4))


def format_of(x, format_):
    """An image in a data_format."""
    return x if format_ == "NHWC" else np.moveaxis(x, -1, 1).copy()


def explicit(format_, pads):
    return [0, 0, *pads, 0, 0] if format_ == "NHWC" else [0, 0, 0, 0, *pads]


def spatial(format_, values):
    return [1, *values, 1] if format_.endswith("C") else [1, 1, *values]


@pytest.mark.parametrize("padding", ["SAME", "VALID", "EXPLICIT"])
@pytest.mark.parametrize("strides", [(1, 1), (2, 2), (1, 3)])
@pytest.mark.parametrize("dilations", [(1, 1), (2, 1)])
@pytest.mark.parametrize("kernel", [(3, 2), (1, 1)])
def test_conv_2d(padding, strides, dilations, kernel):
    if max(strides) > 1 and max(dilations) > 1:
        pytest.skip("TensorFlow has no strides with dilations")
    w = array((*kernel, 4, 5))
    more = {"explicit_paddings": explicit("NHWC", (1, 2, 0, 1))} if padding == "EXPLICIT" else {}
    check(
        lambda x: raw.Conv2D(
            input=x, filter=w, strides=[1, *strides, 1], dilations=[1, *dilations, 1], padding=padding, **more
        ),
        IMAGE,
    )


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("stride", [1, 2])
def test_conv_2d_of_open_sizes(padding, stride):
    w = array((3, 3, 4, 5))

    def function(x):
        x = tf.ensure_shape(x, [None, None, None, 4])
        return raw.Conv2D(input=x, filter=w, strides=[1, stride, stride, 1], padding=padding)

    check(function, IMAGE, open_=[0])


def test_conv_2d_of_groups_and_of_weights_that_are_fed():
    w, w4 = array((3, 3, 2, 6)), array((3, 3, 4, 6))
    check(lambda x: raw.Conv2D(input=x, filter=w4, strides=[1] * 4, padding="SAME"), IMAGE)
    check(lambda x, w: raw.Conv2D(input=x, filter=w, strides=[1] * 4, padding="SAME"), IMAGE[..., :2].copy(), w)


@pytest.mark.parametrize("padding", ["SAME", "VALID", "EXPLICIT"])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("multiplier", [1, 2])
def test_depthwise_conv_2d(padding, stride, multiplier):
    w = array((3, 3, 4, multiplier))
    more = {"explicit_paddings": explicit("NHWC", (1, 2, 0, 1))} if padding == "EXPLICIT" else {}
    check(
        lambda x: raw.DepthwiseConv2dNative(input=x, filter=w, strides=[1, stride, stride, 1], padding=padding, **more),
        IMAGE,
    )


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("strides", [(1, 1), (2, 2), (2, 3), (3, 1)])
@pytest.mark.parametrize("kernel", [(3, 3), (2, 4), (1, 1)])
def test_conv_2d_transposed(padding, strides, kernel):
    w = array((*kernel, 5, 4))
    outs = [
        size * s if padding == "SAME" else (size - 1) * s + max(k, s)
        for size, s, k in zip((7, 6), strides, kernel, strict=True)
    ]
    check(
        lambda x: raw.Conv2DBackpropInput(
            input_sizes=[2, *outs, 5], filter=w, out_backprop=x, strides=[1, *strides, 1], padding=padding
        ),
        IMAGE,
    )


def test_conv_2d_transposed_of_other_sizes_and_explicit_pads():
    w = array((3, 3, 5, 4))
    for out in (13, 14):  # a stride of 2 leaves the choice
        check(
            lambda x, out=out: raw.Conv2DBackpropInput(
                input_sizes=[2, out, 12, 5], filter=w, out_backprop=x, strides=[1, 2, 2, 1], padding="SAME"
            ),
            IMAGE,
        )
    check(
        lambda x: raw.Conv2DBackpropInput(
            input_sizes=[2, 12, 11, 5], filter=w, out_backprop=x, strides=[1, 2, 2, 1], padding="EXPLICIT",
            explicit_paddings=[0, 0, 2, 1, 1, 1, 0, 0],
        ),
        IMAGE,
    )  # fmt: skip


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_conv_2d_transposed_of_sizes_that_a_run_knows(padding, stride):
    w = array((3, 3, 5, 4))

    def function(x):
        x = tf.ensure_shape(x, [None, None, None, 4])
        return tf.keras.ops.conv_transpose(x, w, stride, padding)

    check(function, IMAGE, open_=[0])


def test_depthwise_conv_2d_transposed():
    for multiplier in (1, 2):
        w = array((3, 3, 4 // multiplier, multiplier))
        check(
            lambda x, w=w, c=4 // multiplier: raw.DepthwiseConv2dNativeBackpropInput(
                input_sizes=[2, 14, 12, c], filter=w, out_backprop=x, strides=[1, 2, 2, 1], padding="SAME"
            ),
            IMAGE,
        )


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("strides", [(1, 1, 1), (2, 1, 2)])
def test_conv_3d(padding, strides):
    x, w = array((1, 5, 6, 4, 3)), array((2, 3, 3, 3, 4))
    check(lambda x: raw.Conv3D(input=x, filter=w, strides=[1, *strides, 1], padding=padding), x)
    outs = [
        s * k if padding == "SAME" else (s - 1) * k + f for s, k, f in zip((5, 6, 4), strides, (2, 3, 3), strict=True)
    ]
    w = array((2, 3, 3, 4, 3))
    check(
        lambda x: raw.Conv3DBackpropInputV2(
            input_sizes=[1, *outs, 4], filter=w, out_backprop=x, strides=[1, *strides, 1], padding=padding
        ),
        x,
    )


POOLS = list(itertools.product(["AvgPool", "MaxPool"], ["SAME", "VALID"], [(2, 2), (3, 2)], [(1, 1), (2, 2), (2, 3)]))


@pytest.mark.parametrize(("name", "padding", "kernel", "strides"), POOLS)
def test_pool(name, padding, kernel, strides):
    operand = "value" if name == "AvgPool" else "input"
    more = {"ksize": [1, *kernel, 1], "strides": [1, *strides, 1], "padding": padding}
    check(lambda x: getattr(raw, name)(**{operand: x}, **more), IMAGE)


def test_max_pool_forms():
    check(lambda x: raw.MaxPoolV2(input=x, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="SAME"), IMAGE)
    check(
        lambda x: raw.MaxPool(
            input=x, ksize=[1, 3, 3, 1], strides=[1, 2, 2, 1], padding="EXPLICIT",
            explicit_paddings=[0, 0, 1, 0, 2, 1, 0, 0],
        ),
        IMAGE,
    )  # fmt: skip
    check(lambda x: raw.MaxPoolWithArgmax(input=x, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="VALID"), IMAGE)
    problems = refusal(lambda x: raw.MaxPool(input=x, ksize=[1, 1, 1, 2], strides=[1, 1, 1, 2], padding="VALID"), IMAGE)
    assert "over batch or channels" in problems[0].message


@pytest.mark.parametrize("name", ["AvgPool3D", "MaxPool3D"])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("stride", [1, 2])
def test_pool_3d(name, padding, stride):
    if name == "AvgPool3D" and padding == "SAME":
        kernel = 3 if stride == 1 else 2
        x = array((1, 6, 4, 8, 3))
    else:
        kernel, x = 2, array((1, 5, 6, 7, 3))
    more = {"ksize": [1, *[kernel] * 3, 1], "strides": [1, *[stride] * 3, 1], "padding": padding}
    check(lambda x: getattr(raw, name)(input=x, **more), x)


@pytest.mark.parametrize("name", ["FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_batch_norm(name, training, known):
    parameters = [array((4,), seed=i, low=0.2, high=2.0) for i in range(4)]
    more = {"epsilon": 0.01, "is_training": training}

    def norm(x, scale, offset, mean, variance):
        mean, variance = (tf.zeros((0,)),) * 2 if training else (mean, variance)
        return getattr(raw, name)(x=x, scale=scale, offset=offset, mean=mean, variance=variance, **more)[0]

    if known:
        check(lambda x: norm(x, *map(tf.constant, parameters)), IMAGE)
    else:
        check(norm, IMAGE, *parameters) if not training else check(
            lambda x, a, b: norm(x, a, b, 0, 0), IMAGE, *parameters[:2]
        )


def test_batch_norm_with_global_normalization():
    m, v, beta, gamma = (array((4,), seed=i, low=0.2, high=2.0) for i in range(4))
    model = old_op(
        "BatchNormWithGlobalNormalization", [IMAGE, m, v, beta, gamma], variance_epsilon=0.1,
        scale_after_normalization=True,
    )  # fmt: skip
    compare(model, [IMAGE, m, v, beta, gamma], [(IMAGE - m) / np.sqrt(v + 0.1) * gamma + beta])


@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax"])
def test_softmax(name):
    check(lambda x: getattr(raw, name)(logits=x), 3 * array((4, 5)))
    if name == "Softmax":
        check(lambda x: tf.nn.softmax(x, axis=1), IMAGE)


def test_lrn():
    check(lambda x: raw.LRN(input=x, depth_radius=2, bias=1.5, alpha=0.3, beta=0.6), IMAGE)


@pytest.mark.parametrize("swap_x", [False, True])
@pytest.mark.parametrize("swap_y", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_matmul(swap_x, swap_y, dtype):
    x, y = array((5, 3) if swap_x else (3, 5), dtype), array((4, 5) if swap_y else (5, 4), dtype)
    check(lambda x, y: raw.MatMul(a=x, b=y, transpose_a=swap_x, transpose_b=swap_y), x, y)
    check(lambda x: raw.MatMul(a=x, b=tf.constant(y), transpose_a=swap_x, transpose_b=swap_y), x)
    x, y = np.stack([x, -x]), np.stack([y, 2 * y])
    for name in ("BatchMatMul", "BatchMatMulV2"):
        check(lambda x, y, name=name: getattr(raw, name)(x=x, y=y, adj_x=swap_x, adj_y=swap_y), x, y)
    y = y[:1]
    check(lambda x, y: raw.BatchMatMulV2(x=x, y=y, adj_x=swap_x, adj_y=swap_y), x, y)


def test_batch_matmul_v3():
    x, y = array((2, 3, 4)), array((2, 4, 5))
    check(lambda x, y: raw.BatchMatMulV3(x=x, y=y, Tout=tf.float32), x, y)


EQUATIONS = {
    "ij,jk->ik": ((3, 4), (4, 5)), "abc,cd->abd": ((2, 3, 4), (4, 5)), "bhqd,bhkd->bhqk": ((1, 2, 3, 4), (1, 2, 5, 4)),
    "...i,...i->...": ((2, 3, 4), (3, 4)), "ii->i": ((3, 3),), "abc->ca": ((2, 3, 4),),
}  # fmt: skip


@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum(equation):
    operands = [array(shape, seed=i) for i, shape in enumerate(EQUATIONS[equation])]
    check(lambda *xs: raw.Einsum(inputs=list(xs), equation=equation), *operands)


RESIZES = list(itertools.product([(14, 12), (3, 5), (7, 6), (1, 9)], [(False, False), (True, False), (False, True)]))


@pytest.mark.parametrize("name", ["ResizeBilinear", "ResizeNearestNeighbor", "ResizeBicubic"])
@pytest.mark.parametrize(("size", "flags"), RESIZES)
def test_resize(name, size, flags):
    corners, half = flags
    check(
        lambda x: getattr(raw, name)(images=x, size=list(size), align_corners=corners, half_pixel_centers=half),
        IMAGE, rtol=1e-4,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["ResizeBilinear", "ResizeNearestNeighbor"])
def test_resize_of_integers_and_open_sizes(name):
    check(lambda x: getattr(raw, name)(images=x, size=[9, 9]), array((1, 4, 4, 2), "uint8"))

    def function(x):
        x = tf.ensure_shape(x, [None, None, None, 4])
        return getattr(raw, name)(images=x, size=2 * tf.shape(x)[1:3], half_pixel_centers=True)

    check(function, IMAGE, open_=[0])


@pytest.mark.parametrize("name", ["SpaceToDepth", "DepthToSpace"])
def test_blocks_of_depth(name):
    check(lambda x: getattr(raw, name)(input=x, block_size=2), array((2, 6, 4, 8)))


def test_blocks_of_batches():
    x = array((1, 6, 5, 3))
    check(lambda x: raw.SpaceToBatchND(input=x, block_shape=[2, 3], paddings=[[0, 2], [1, 0]]), x)
    check(lambda x: raw.SpaceToBatch(input=x, block_size=2, paddings=[[0, 0], [1, 0]]), x)
    y = array((12, 3, 2, 3))
    check(lambda x: raw.BatchToSpaceND(input=x, block_shape=[2, 3], crops=[[1, 0], [2, 1]]), y)
    check(lambda x: raw.BatchToSpace(input=x, block_size=2, crops=[[0, 1], [0, 0]]), y)


def test_dilation_by_blocks_of_batches():
    w = array((3, 3, 4, 5))
    check(lambda x: tf.nn.convolution(x, w, padding="SAME", dilations=2), IMAGE)
    check(lambda x: tf.nn.atrous_conv2d(x, w, 2, "VALID"), IMAGE)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_extract_image_patches(padding):
    check(
        lambda x: raw.ExtractImagePatches(
            images=x, ksizes=[1, 2, 3, 1], strides=[1, 2, 1, 1], rates=[1, 1, 2, 1], padding=padding
        ),
        IMAGE,
    )


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_dilation_2d(padding):
    w = array((3, 2, 4))
    check(lambda x: raw.Dilation2D(input=x, filter=w, strides=[1, 2, 1, 1], rates=[1, 1, 2, 1], padding=padding), IMAGE)


@pytest.mark.parametrize("size", [(3, 4), (14, 5), (7, 6)])
def test_resize_area(size):
    check(lambda x: raw.ResizeArea(images=x, size=size), IMAGE)


def test_contrast_and_determinant():
    check(lambda x: raw.AdjustContrastv2(images=x, contrast_factor=1.7), IMAGE)
    check(lambda x: raw.MatrixDeterminant(input=x), array((2, 3, 3)))


FUSED = [["BiasAdd"], ["BiasAdd", "Relu"], ["BiasAdd", "Relu6"], ["BiasAdd", "LeakyRelu"], ["BiasAdd", "Elu"]]


@pytest.mark.parametrize("fused", [*FUSED, ["FusedBatchNorm"], ["FusedBatchNorm", "Relu"]])
@pytest.mark.parametrize("op", ["_FusedConv2D", "_FusedMatMul"])
def test_ops_with_others_fused_into_them(op, fused):
    norm = fused[0] == "FusedBatchNorm"
    if op == "_FusedMatMul" and (norm or fused[-1] == "Relu6"):
        pytest.skip("TensorFlow does not fuse this")
    x, w = (IMAGE, array((3, 3, 4, 5))) if op == "_FusedConv2D" else (array((3, 4)), array((4, 5)))
    extra = [array((5,), seed=i, low=0.3) for i in range(4 if norm else 1)]
    definition = tf.compat.v1.GraphDef()
    operands = [x, w, *extra]
    for i, operand in enumerate(operands):
        node = definition.node.add(name=f"x{i}", op="Placeholder")
        node.attr["dtype"].type = 1
        node.attr["shape"].shape.CopyFrom(tf.TensorShape(operand.shape).as_proto())
    node = definition.node.add(name="y", op=op, input=[f"x{i}" for i in range(len(operands))])
    node.attr["T"].type = 1
    node.attr["num_args"].i = len(extra)
    node.attr["fused_ops"].list.s.extend(name.encode() for name in fused)
    node.attr["epsilon"].f, node.attr["leakyrelu_alpha"].f = 0.01, 0.3
    if op == "_FusedConv2D":
        node.attr["TArgs"].list.type.extend([1] * len(extra))
        node.attr["strides"].list.i.extend([1, 2, 2, 1])
        node.attr["padding"].s = b"SAME"
    graph = tf.Graph()
    with graph.as_default(), tf.compat.v1.Session(graph=graph) as session:
        tf.import_graph_def(definition, name="")
        wanted = session.run("y:0", {f"x{i}:0": a for i, a in enumerate(operands)})
    compare(model_of(definition), operands, [wanted])
