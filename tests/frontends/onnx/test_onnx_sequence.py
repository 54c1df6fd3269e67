"""Sequences and optionals that resolve while a model is imported, and those that cannot."""

from __future__ import annotations

import numpy as np
import onnx_cases
import pytest

X = np.arange(10, dtype="float32").reshape(2, 5)

CASES = {
    "pieces": """(float[2,5] x) => (float[2,1] y) <int64 at = {-1}, int64 two = {2}> {
        s = SplitToSequence <axis=1> (x, two)
        t = SequenceAt (s, at)
        n = SequenceLength(s)
        f = Cast <to=1> (n)
        y = Mul(t, f)
    }""",
    "rows": """(float[2,5] x) => (float[5] y) <int64 at = {1}> {
        s = SplitToSequence <axis=0, keepdims=0> (x)
        t = SequenceAt (s, at)
        y = Neg(t)
    }""",
    "given-sizes": """(float[2,5] x) => (float[2,5] y) <int64[2] sizes = {4, 1}> {
        s = SplitToSequence <axis=-1> (x, sizes)
        y = ConcatFromSequence <axis=-1> (s)
    }""",
    "built": """(float[2,5] x) => (float[4,2,5] y) <int64 first = {0}, int64 end = {-1}> {
        u = Neg(x)
        v = Exp(x)
        e = SequenceEmpty ()
        a = SequenceInsert (e, x)
        b = SequenceInsert (a, u)
        c = SequenceInsert (b, v, first)
        d = SequenceInsert (c, v, end)
        y = ConcatFromSequence <axis=0, new_axis=1> (d)
    }""",
    "erased": """(float[2,5] x) => (float[2,10] y) <int64 at = {-2}> {
        u = Neg(x)
        v = Exp(x)
        s = SequenceConstruct (x, u, v)
        t = SequenceErase (s, at)
        y = ConcatFromSequence <axis=1> (t)
    }""",
    "grown-in-a-loop": """(float[2,5] x) => (float[3,2,5] y) <bool go = {1}, int64 n = {3}> {
        e = SequenceEmpty ()
        s = Loop (n, go, e) <body = body (int64 i, bool g, seq(float[2,5]) a) => (bool h, seq(float[2,5]) b) {
            f = Cast <to=1> (i)
            r = Add(x, f)
            b = SequenceInsert (a, r)
            h = Identity(g)
        }>
        y = ConcatFromSequence <axis=0, new_axis=1> (s)
    }""",
    "mapped": """(float[2,5] x) => (float[2,5] y) {
        s = SplitToSequence <axis=1> (x)
        t = SequenceMap (s, x) <body = body (float[2,1] a, float[2,5] b) => (float[2,1] c) {
            m = ReduceMax <axes=[1]> (b)
            c = Add(a, m)
        }>
        y = ConcatFromSequence <axis=1> (t)
    }""",
    "optional": """(float[2,5] x) => (float[2,5] y) {
        o = Optional (x)
        has = OptionalHasElement (o)
        z = If (has) <then_branch = a () => (float[2,5] t) { g = OptionalGetElement (o)  t = Neg(g) },
                      else_branch = b () => (float[2,5] e) { e = Exp(x) }>
        y = Neg(z)
    }""",
    "absent": """(float[2,5] x) => (float[2,5] y) {
        has = OptionalHasElement ()
        y = If (has) <then_branch = a () => (float[2,5] t) { t = Neg(x) },
                      else_branch = b () => (float[2,5] e) { e = Exp(x) }>
    }""",
}
REFUSED = {
    "position": ("""(float[2,5] x, int64 at) => (float[2,1] y) {
        s = SplitToSequence <axis=1> (x)
        y = SequenceAt (s, at)
    }""", "the position of SequenceAt must be known"),
    "outside": ("""(float[2,5] x) => (float[2,1] y) <int64 at = {5}> {
        s = SplitToSequence <axis=1> (x)
        y = SequenceAt (s, at)
    }""", "the position 5 is outside of a sequence of 5 values"),
    "open-size": ("""(float[2,k] x) => (float[2,1] y) <int64 at = {0}> {
        s = SplitToSequence <axis=1> (x)
        y = SequenceAt (s, at)
    }""", "the size of axis 1"),
    "output": ("""(float[2,5] x) => (seq(float[2,1]) s) {
        s = SplitToSequence <axis=1> (x)
    }""", "the output 's' is a sequence"),
    "operand": ("""(float[2,5] x) => (float[2,1] y) {
        s = SplitToSequence <axis=1> (x)
        y = Neg(s)
    }""", "the operand 's' of Neg is a sequence"),
    "empty": ("""(float[2,5] x) => (float[2,5] y) {
        s = SequenceEmpty ()
        y = ConcatFromSequence <axis=0> (s)
    }""", "joins an empty sequence"),
    "not-a-sequence": ("""(float[2,5] x) => (int64 y) {
        y = SequenceLength (x)
    }""", "is not a sequence"),
    "carried": ("""(float[2,5] x, int64 n) => (float[k,2,5] y) <bool go = {1}> {
        e = SequenceEmpty ()
        s = Loop (n, go, e) <body = body (int64 i, bool g, seq(float[2,5]) a) => (bool h, seq(float[2,5]) b) {
            b = SequenceInsert (a, x)
            h = Identity(g)
        }>
        y = ConcatFromSequence <axis=0, new_axis=1> (s)
    }""", "carries a sequence"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_as_onnxruntime(name):
    onnx_cases.check(CASES[name], {"x": X}, opset=18 if name == "absent" else 17, rtol=1e-6)


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    text, words = REFUSED[name]
    found = onnx_cases.refusal(text, {"x": X}, opset=17)
    assert any(words in d.message for d in found)
