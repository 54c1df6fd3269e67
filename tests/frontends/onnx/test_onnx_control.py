"""If, Loop and Scan: known and unknown conditions and counts, values from outside, changing shapes, nesting."""

from __future__ import annotations

import numpy as np
import onnx_cases
import pytest

X = np.linspace(-1, 1, 3).astype("float32")
M = np.linspace(-2, 2, 10).reshape(5, 2).astype("float32")
YES, NO = np.array(True), np.array(False)

SUM = """(float[3] x, int64 n) => (float[3] last, float[k,3] all) <bool go = {1}> {
    last, all = Loop (n, go, x) <
        body = body (int64 i, bool go_in, float[3] acc) => (bool go_out, float[3] next, float[3] scan) {
        next = Add(acc, x)
        scan = Mul(next, x)
        go_out = Identity(go_in)
    }>
}"""
COUNTED = SUM.replace(", int64 n)", ")").replace("<bool go = {1}>", "<bool go = {1}, int64 n = {COUNT}>")
NO_TURN = (
    COUNTED.replace("COUNT", "0")
    .replace("(float[3] last, float[k,3] all)", "(float[3] y, float[k,3] z)")
    .replace("}>\n}", "}>\n    y = Neg(last)\n    z = Neg(all)\n}")
)
FED_CONDITION = SUM.replace(", int64 n)", ", bool go)").replace("<bool go = {1}>", "<int64 n = {70}>")
GROWING = """(float[1,2] x, int64 n) => (float[k,2] last) <bool go = {1}> {
    last = Loop (n, go, x) <body = body (int64 i, bool go_in, float[r,2] acc) => (bool go_out, float[s,2] next) {
        next = Concat <axis=0> (acc, x)
        go_out = Identity(go_in)
    }>
}"""
UNTIL = """(float[3] x, float limit) => (float[3] last, float[k] all) <bool go = {1}, float one = {1}> {
    last, all = Loop ("", go, x) <
        body = body (int64 i, bool go_in, float[3] acc) => (bool go_out, float[3] next, float s) {
        next = Add(acc, one)
        s = ReduceSum <keepdims=0> (next)
        go_out = Less(s, limit)
    }>
}"""
NESTED = """(float[3] x, int64 n) => (float[3] last, float[k,3] all) <bool go = {1}> {
    last, all = Loop (n, go, x) <
        body = body (int64 i, bool go_in, float[3] acc) => (bool go_out, float[3] next, float[3] scan) {
        next, rows = Loop (i, go_in, acc) <
            body = inner (int64 j, bool g, float[3] a) => (bool h, float[3] b, float[3] c) {
            f = Cast <to=1> (i)
            b1 = Add(a, f)
            b = Add(b1, x)
            c = Identity(a)
            h = Identity(g)
        }>
        scan = Add(next, x)
        go_out = Identity(go_in)
    }>
}"""
UNCHANGED = """(float[3] x, int64 n) => (float[3] last, float[3] kept, float[k,3] rows, float[k] ones) <bool go = {1}> {
    last, kept, rows, ones = Loop (n, go, x, x) <
        body = body (int64 i, bool g, float[3] a, float[3] b) => (bool g, float[3] c, float[3] b, float[3] b, float one)
        <float one = {1}> {
        c = Add(a, b)
    }>
}"""
COUNTER = """(int64[3] x, int64 n) => (int64[3] last, int64[k] count, int64[k,1] column, int64 past)
    <bool go = {1}, int64[1] axes = {0}, int64 zero = {0}> {
    last, past, count, column = Loop (n, go, x, zero) <
        body = body (int64 i, bool g, int64[3] a, int64 old) => (bool h, int64[3] b, int64 now, int64 c, int64[1] d) {
        b = Add(a, old)
        now = Identity(i)
        c = Identity(i)
        d = Unsqueeze(i, axes)
        h = Identity(g)
    }>
}"""
BRANCH_IN_LOOP = """(float[3] x, int64 n) => (float[3] last) <bool go = {1}, int64 two = {2}> {
    last = Loop (n, go, x) <body = body (int64 i, bool g, float[3] a) => (bool h, float[3] c) {
        early = Less(i, two)
        c = If (early) <then_branch = yes () => (float[3] t) { t = Add(a, x) },
                        else_branch = no () => (float[3] e) { e = Mul(a, x) }>
        h = Identity(g)
    }>
}"""
LOOP_IN_BRANCH = """(float[3] x, bool c, int64 n) => (float[3] y) <bool go = {1}> {
    y = If (c) <then_branch = yes () => (float[3] t) {
            t = Loop (n, go, x) <body = body (int64 i, bool g, float[3] a) => (bool h, float[3] b) {
                b = Add(a, x)
                h = Identity(g)
            }>
        }, else_branch = no () => (float[3] e) { e = Neg(x) }>
}"""
BRANCHES = """(float[3] x, bool c, bool d) => (float[3] y, float[3] z) <float[3] w = {1, 2, 3}> {
    u = Mul(x, w)
    y, z = If (c) <then_branch = yes () => (float[3] t, float[3] s) {
            t = If (d) <then_branch = yy () => (float[3] tt) { tt = Add(u, w) },
                        else_branch = yn () => (float[3] te) { te = Neg(x) }>
            s = Identity(w)
        }, else_branch = no () => (float[3] e, float[3] f) {
            e = Neg(u)
            f = Add(e, w)
        }>
}"""
SCAN = """(float[5,2] x) => (float[2] last, float[A] y) <float[2] zero = {0, 0}> {
    last, y = Scan <num_scan_inputs=1, scan_input_directions=[I], scan_output_directions=[O], scan_output_axes=[P],
        body = body (float[2] sum, float[2] row) => (float[2] next, float[2] out) {
        next = Add(sum, row)
        out = Mul(next, row)
    }> (zero, x)
}"""
SCAN_OPEN = """(float[2,t] x, float[t] w) => (float[2] last, float[t,2] y, float[t] z) <float[2] zero = {0, 0}> {
    last, y, z = Scan <num_scan_inputs=2, scan_input_axes=[1, 0],
        body = body (float[2] sum, float[2] row, float scale) => (float[2] next, float[2] out, float s) {
        out = Mul(row, scale)
        next = Add(sum, out)
        s = ReduceSum <keepdims=0> (next)
    }> (zero, x, w)
}"""

CASES = {
    "sum-4": (SUM, {"x": X, "n": np.array(4)}),
    "sum-0": (SUM, {"x": X, "n": np.array(0)}),
    "sum-negative": (SUM, {"x": X, "n": np.array(-1)}),
    "counted-3": (COUNTED.replace("COUNT", "3"), {"x": X}),
    "counted-0": (NO_TURN, {"x": X}),
    "counted-70": (COUNTED.replace("COUNT", "70"), {"x": X}),
    "condition-yes": (FED_CONDITION, {"x": X, "go": YES}),
    "condition-no": (FED_CONDITION, {"x": X, "go": NO}),
    "growing": (GROWING, {"x": M[:1], "n": np.array(3)}),
    "until": (UNTIL, {"x": X, "limit": np.float32(7)}),
    "nested": (NESTED, {"x": X, "n": np.array(4)}),
    "unchanged": (UNCHANGED, {"x": X, "n": np.array(3)}),
    "counter": (COUNTER, {"x": np.arange(3), "n": np.array(5)}),
    "branch-in-loop": (BRANCH_IN_LOOP, {"x": X, "n": np.array(4)}),
    "loop-in-branch": (LOOP_IN_BRANCH, {"x": X, "c": YES, "n": np.array(2)}),
    "loop-in-other-branch": (LOOP_IN_BRANCH, {"x": X, "c": NO, "n": np.array(2)}),
    **{f"branches-{c:d}{d:d}": (BRANCHES, {"x": X, "c": c, "d": d}) for c in (YES, NO) for d in (YES, NO)},
    **{
        f"scan-{i}{o}{p}": (SCAN.replace("[I]", f"[{i}]").replace("[O]", f"[{o}]").replace("[P]", f"[{p}]")
                            .replace("[A]", "[5,2]" if p in (0, -2) else "[2,5]"), {"x": M})
        for i, o, p in [(0, 0, 0), (1, 0, 1), (0, 1, -1), (1, 1, 0)]
    },
    "scan-open": (SCAN_OPEN, {"x": M.T.copy(), "w": M[:, 0].copy()}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_as_onnxruntime(name):
    text, arrays = CASES[name]
    onnx_cases.check(text, arrays, opset=13, rtol=1e-6)


def test_known_condition_leaves_no_if():
    text = BRANCHES.replace("bool c, bool d) =>", "bool d) =>").replace("<float[3] w", "<bool c = {1}, float[3] w")
    proto, _ = onnx_cases.model(text, {"x": X, "d": YES}, 13)
    graph = onnx_cases.import_proto(proto)
    assert [n.op.kind for n in graph.nodes].count("If") == 1  # the inner one


def test_few_turns_are_written_out_and_many_are_not():
    kinds = {}
    for count in (3, 70):
        proto, _ = onnx_cases.model(COUNTED.replace("COUNT", str(count)), {"x": X}, 13)
        kinds[count] = [n.op.kind for n in onnx_cases.import_proto(proto).nodes]
    assert "While" not in kinds[3]
    assert kinds[3].count("Binary") == 6
    assert kinds[70] == ["While"]


def test_weights_inside_a_body_are_stored_once(tmp_path):
    """A constant from outside is copied into each graph by reference."""
    big = np.random.default_rng(0).standard_normal((64, 64)).astype("float32")
    text = """(float[64,64] x, bool c) => (float[64,64] y) {
        y = If (c) <then_branch = a () => (float[64,64] t) { t = Add(x, w) },
                    else_branch = b () => (float[64,64] e) { e = Mul(x, w) }>
    }"""
    from mnnconvert.schema.writer import write_model

    proto, _ = onnx_cases.model(text, {"w": big, "x": big, "c": YES}, 13)
    graph = onnx_cases.import_proto(proto)
    tensors = {id(v.tensor) for g in graph.graphs() for v in g.constants() if v.tensor.nbytes == big.nbytes}
    assert len(tensors) == 1
    assert write_model(graph, tmp_path / "m.mnn").size > big.nbytes


def test_a_problem_inside_a_branch_is_reported_once():
    text = """(float[3] x, bool c) => (float[3] y) {
        u = If (c) <then_branch = a () => (float[3] t) { t = Neg(x) }, else_branch = b () => (float[3] e) {
            e = Softmax <axis=7> (x)
        }>
        y = Neg(u)
    }"""
    found = onnx_cases.refusal(text, {"x": X, "c": YES}, 13)
    assert len(found) == 1
    assert found[0].context["op"] == "Softmax"


def test_a_loop_that_changes_the_type_of_what_it_carries_is_refused():
    text = """(float[3] x, int64 n) => (float[3] last) <bool go = {1}> {
        last = Loop (n, go, x) <body = body (int64 i, bool g, float[3] a) => (bool h, float[3] b) {
            b = Cast <to=6> (a)
            h = Identity(g)
        }>
    }"""
    (found,) = onnx_cases.refusal(text, {"x": X, "n": np.array(1)}, 13)
    assert "float32 before it and int32 after a turn" in found.message


@pytest.mark.parametrize("backwards", [0, 1])
def test_scan_of_opset_8_goes_over_each_entry_of_the_batch(backwards, rng):
    x, start = rng.standard_normal((2, 3, 4)).astype("f"), rng.standard_normal((2, 4)).astype("f")
    text = f"""(float[2,4] s, float[2,3,4] x) => (float[2,4] last, float[2,3,4] sums) {{
        last, sums = Scan <num_scan_inputs=1, directions=[{backwards}], body = g
            (float[4] a, float[4] row) => (float[4] b, float[4] c) {{ b = Add (a, row)  c = Identity (b) }}>
            ( , s, x) }}"""
    sums = start[:, None] + np.cumsum(x[:, ::-1] if backwards else x, 1)
    onnx_cases.check(text, {"x": x, "s": start}, opset=8, rtol=1e-5, want={"last": sums[:, -1], "sums": sums})
