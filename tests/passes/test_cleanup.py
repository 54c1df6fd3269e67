"""Clean-up passes: what they take out, and what they must leave."""

from __future__ import annotations

import numpy as np
import pytest
from pass_cases import build, check_pass, kinds, noise

from mnnconvert.ir import ArrayTensor, FileTensor, ReshapedTensor, TransposedMatrix
from mnnconvert.ops.elementwise import Cast
from mnnconvert.ops.shape import Reshape
from mnnconvert.passes.constants import FoldConstants, ShareConstants
from mnnconvert.passes.dead_code import RemoveDeadCode
from mnnconvert.passes.expressions import ShareExpressions
from mnnconvert.passes.no_ops import RemoveNoOps

EXACT = {"rtol": 0, "atol": 0}


def test_dead_code_goes_with_what_leads_to_it():
    def make(op, x):
        op.Exp(op.Abs(x))
        return op.Neg(x)

    g = build(make, x=(3,))
    assert check_pass(RemoveDeadCode(), g, **EXACT).changes == 2
    assert kinds(g) == ["NEG"]


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("identity", lambda op, x: op.Neg(op.Identity(x))),
        ("same cast", lambda op, x: op.Neg(op.Cast(x, to="DT_FLOAT"))),
        ("add 0", lambda op, x: op.Neg(op.Add(op.constant(np.zeros((3,), np.float32)), x))),
        ("sub 0", lambda op, x: op.Neg(op.Sub(x, 0.0))),
        ("mul 1", lambda op, x: op.Neg(op.Mul(x, 1.0))),
        ("div 1", lambda op, x: op.Neg(op.Div(x, 1.0))),
        ("permute", lambda op, x: op.Neg(op.Permute(x, dims=(0, -1)))),
        ("reshape", lambda op, x: op.Neg(op.add(Reshape((2, -1)), x))),
        ("concat", lambda op, x: op.Neg(op.Concat(x, axis=1))),
        ("layout", lambda op, x: op.Neg(op.ConvertTensor(x, source="NHWC", dest="NHWC"))),
    ],
)
def test_no_ops_go(name, make):
    g = build(make, x=(2, 3))
    assert check_pass(RemoveNoOps(), g, **EXACT).changes == 1
    assert kinds(g) == ["NEG"]


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("0 - x", lambda op, x: op.Sub(0.0, x)),
        ("1 / x", lambda op, x: op.Div(1.0, x)),
        ("rank grows", lambda op, x: op.Add(x, op.constant(np.zeros((1, 1, 1), np.float32)))),
        ("size grows", lambda op, x: op.Mul(x, op.constant(np.ones((2, 1, 1), np.float32)))),
        ("not all ones", lambda op, x: op.Mul(x, op.constant(np.array([1, 1, 2], np.float32)))),
        ("relu inside", lambda op, x: op.Add(x, 0.0, activation=1)),
        ("truth", lambda op, x: op.add(Cast("DT_BOOL"), op.Cast(x, to="DT_INT32"))),
        ("transpose", lambda op, x: op.Permute(x, dims=(1, 0))),
        ("reverse", lambda op, x: op.Permute(x)),
        ("shape", lambda op, x: op.add(Reshape((3, -1)), x)),
    ],
)
def test_near_no_ops_stay(name, make):
    g = build(make, x=(2, 3))
    assert check_pass(RemoveNoOps(), g, **EXACT).changes == 0


def test_a_reshape_of_unknown_sizes_stays():
    g = build(lambda op, x, s: op.Neg(op.add(Reshape(), x, s)), x=("n", 3), s=np.array([3, 3], np.int32))
    assert RemoveNoOps().run(g).changes == 0


def test_an_input_may_become_an_output():
    g = build(lambda op, x: op.Identity(op.Identity(x)), x=(2, 3))
    assert check_pass(RemoveNoOps(), g, **EXACT).changes == 2
    assert g.nodes == []
    assert g.outputs[0][0] == "y"


def test_constants_are_folded_and_outputs_stay():
    def make(op, x):
        c = op.Exp(op.constant(noise(3)))
        return op.Mul(x, op.Add(c, 1.0)), c

    g = build(make, x=(2, 3))
    assert check_pass(FoldConstants(), g, **EXACT).changes == 2
    assert kinds(g) == ["MUL"]


def test_a_large_result_of_small_operands_is_not_folded():
    def make(op, x):
        wide = op.BroadcastTo(op.constant(noise(1)), op.constant(np.array([1 << 20], np.int32)))
        return op.Add(x, wide)

    g = build(make, x=(1,))
    assert FoldConstants().run(g).changes == 0


def test_a_size_that_is_known_becomes_a_constant():
    g = build(lambda op, x: op.Add(op.Mul(op.ShapeOf(x), 2), 1), x=(4, 5))
    assert check_pass(FoldConstants(), g, **EXACT).changes == 3
    assert g.nodes == []


def test_equal_constants_are_stored_once():
    w = noise(40, 40)

    def make(op, x):
        other = w.copy()
        other[20, 20] += 1  # inside, where the cheap fingerprint does not look
        a, b, c = (op.constant(v, f"w{i}") for i, v in enumerate((w, w.copy(), other)))
        return op.Add(op.MatMul(x, a), op.MatMul(op.MatMul(x, b), c))

    g = build(make, x=(2, 40))
    assert check_pass(ShareConstants(), g, **EXACT).changes == 1
    assert len(g.constants()) == 2


class Unreadable(ArrayTensor):
    def numpy(self):
        raise AssertionError("the data were loaded")

    def write_to(self, stream):
        raise AssertionError("the data were loaded")


def test_views_of_the_same_weight_are_equal_and_not_loaded():
    source, other = Unreadable(noise(4, 6)), Unreadable(noise(4, 6))

    def make(op, x):
        made = [
            op.constant(ReshapedTensor(TransposedMatrix(s), (6, 4, 1, 1)), f"w{i}")
            for i, s in enumerate((source, source, other))
        ]
        return tuple(op.Convolution(x, w) for w in made)

    g = build(make, x=(1, 4, 2, 2))
    assert ShareConstants().run(g).changes == 1


def test_equal_pieces_of_one_file_are_equal(tmp_path):
    path = tmp_path / "w.bin"
    path.write_bytes(noise(8).tobytes())
    tensors = [FileTensor(path, 0, np.dtype("float32"), (8,)) for _ in range(2)]
    g = build(lambda op, x: op.Add(op.Add(x, op.constant(tensors[0], "a")), op.constant(tensors[1], "b")), x=(8,))
    assert check_pass(ShareConstants(), g, **EXACT).changes == 1


def test_equal_expressions_are_computed_once():
    def make(op, x):
        return op.Add(op.Neg(op.Exp(x)), op.Mul(op.Neg(op.Exp(x)), op.Exp(op.Abs(x))))

    g = build(make, x=(3,))
    assert check_pass(ShareExpressions(), g, **EXACT).changes == 2
    assert sorted(kinds(g)) == ["ABS", "ADD", "EXP", "EXP", "MUL", "NEG"]


def test_expressions_with_other_attributes_or_side_effects_stay():
    def make(op, x):
        return op.Add(op.ReLU(x, slope=0.1), op.ReLU(x, slope=0.2)), op.Sub(x, 1.0), op.Sub(1.0, x)

    assert check_pass(ShareExpressions(), build(make, x=(3,)), **EXACT).changes == 0


def test_outputs_that_are_equal_keep_both_names():
    g = build(lambda op, x: (op.Exp(x), op.Exp(x)), x=(3,))
    assert check_pass(ShareExpressions(), g, **EXACT).changes == 1
    assert [name for name, _ in g.outputs] == ["y0", "y1"]
