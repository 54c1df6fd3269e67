"""Products with constant matrices: bias, conversion to a 1x1 convolution, and what stays a product."""

from __future__ import annotations

import numpy as np
import pytest
from pass_cases import build, check_pass, kinds, noise

from mnnconvert.ir import ArrayTensor, TransposedMatrix
from mnnconvert.ir.tensor import row_blocks
from mnnconvert.passes.fuse_activation import FuseActivation
from mnnconvert.passes.matmul import ConvertMatMul, FuseMatMulBias

CLOSE = {"rtol": 1e-6, "atol": 1e-6}


def linear(op, x, bias=None, **attributes):
    shape = (5, 6) if attributes.get("transpose_b") else (6, 5)
    y = op.MatMul(x, op.constant(noise(*shape), "w"), **attributes)
    return y if bias is None else op.Add(op.constant(noise(*bias), "b"), y)


@pytest.mark.parametrize("bias", [(5,), (1, 5), (1, 1, 5)])
def test_bias_goes_in(bias):
    g = build(lambda op, x: linear(op, x, bias), x=(2, 3, 6))
    assert check_pass(FuseMatMulBias(), g, **CLOSE).changes == 1
    assert kinds(g) == ["MatMul"]
    assert g.nodes[0].inputs[2].shape == (5,)


@pytest.mark.parametrize("bias", [(1,), (3, 1), (3, 5), (2, 1, 1)])
def test_what_is_no_bias_stays(bias):
    g = build(lambda op, x: linear(op, x, bias), x=(2, 3, 6))
    assert check_pass(FuseMatMulBias(), g, rtol=0, atol=0).changes == 0


def test_a_product_of_vectors_has_no_columns():
    g = build(lambda op, x: op.Add(op.MatMul(x, op.constant(noise(6))), op.constant(noise(3))), x=(3, 6))
    assert FuseMatMulBias().run(g).changes == 0


@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize(
    "shape", [(3, 6), ("n", 6), (2, 3, 6), ("n", 3, 6), (2, 3, 4, 6), ("n", "n", 6), ("n", "s", 6)]
)
def test_becomes_a_convolution(shape, transpose_b):
    g = build(lambda op, x: linear(op, x, transpose_b=transpose_b), x=shape)
    check_pass(ConvertMatMul(), g, **CLOSE)
    unknown = sum(isinstance(d, str) for d in shape) > 1
    assert kinds(g) == (
        ["Reshape", "Convolution", "ShapeOf", "Concat", "Reshape"] if unknown else ["Reshape", "Convolution", "Reshape"]
    )
    assert g.nodes[1].inputs[1].shape == (5, 6, 1, 1)
    assert g.nodes[1].name.endswith("__matmul_converted")


def test_bias_and_activation_follow():
    g = build(lambda op, x: op.ReLU(linear(op, x, (5,))), x=("n", 3, 6))
    check_pass(FuseMatMulBias(), g, **CLOSE)
    check_pass(ConvertMatMul(), g, **CLOSE)
    check_pass(FuseActivation(), g, **CLOSE)
    assert kinds(g) == ["Reshape", "Convolution", "Reshape"]
    assert g.nodes[1].op.activation == "relu"


class Unreadable(ArrayTensor):
    def numpy(self):
        raise AssertionError("the weight was loaded")


@pytest.mark.parametrize("transpose_b", [False, True])
def test_the_weight_is_not_loaded(transpose_b):
    source = Unreadable(noise(5, 6) if transpose_b else noise(6, 5))
    g = build(lambda op, x: op.MatMul(x, op.constant(source, "w"), transpose_b=transpose_b), x=("n", 6))
    assert ConvertMatMul().run(g).changes == 1
    weight = g.nodes[1].inputs[1].tensor
    inner = weight.source if transpose_b else weight.source.source
    assert inner is source
    assert isinstance(weight.source, TransposedMatrix) is not transpose_b


def test_a_transposed_weight_is_written_as_it_is_read(tmp_path):
    w = noise(300, 70)
    g = build(lambda op, x: op.MatMul(x, op.constant(w, "w")), x=("n", 300))
    ConvertMatMul().run(g)
    tensor = g.nodes[1].inputs[1].tensor
    with (tmp_path / "w").open("wb") as file:
        tensor.write_to(file)
    written = np.fromfile(tmp_path / "w", np.float32).reshape(70, 300)
    np.testing.assert_array_equal(written, w.T)
    np.testing.assert_array_equal(np.concatenate(list(row_blocks(tensor, 70))), w.T)


@pytest.mark.parametrize(
    ("name", "make", "shape"),
    [
        ("a computed matrix", lambda op, x: op.MatMul(x, op.Permute(x, dims=(1, 0))), (3, 6)),
        ("a vector", lambda op, x: op.MatMul(x, op.constant(noise(6))), (3, 6)),
        ("of a vector", lambda op, x: linear(op, x), (6,)),
        ("batched weights", lambda op, x: op.MatMul(x, op.constant(noise(2, 6, 5))), (2, 3, 6)),
        ("transposed x", lambda op, x: linear(op, x, transpose_a=True), (6, 3)),
    ],
)
def test_what_stays_a_product(name, make, shape):
    g = build(make, x=shape)
    assert check_pass(ConvertMatMul(), g, rtol=0, atol=0).changes == 0
