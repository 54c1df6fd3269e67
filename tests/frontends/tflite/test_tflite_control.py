"""Control flow, variables and signatures against LiteRT."""

import numpy as np
import pytest
from tflite_cases import G, Op, T, build, check, const, import_bytes, refusal

ADD, MUL = ("AddOptions", {}), ("MulOptions", {})


def doubling(limit: float = 100.0) -> bytes:
    """x = 2 x while sum(x) < limit; a counter goes along."""
    state = [T((3,)), T((), "int32")]
    condition = G(
        [*state, const([0]), T(), const(np.float32(limit)), T((), "bool")],
        [Op("SUM", [0, 2], [3], "ReducerOptions"), Op("LESS", [3, 4], [5], "LessOptions")], [0, 1], [5],
    )  # fmt: skip
    body = G(
        [*state, const(np.float32(2)), T((3,)), const(1), T((), "int32")],
        [Op("MUL", [0, 2], [3], *MUL), Op("ADD", [1, 4], [5], *ADD)], [0, 1], [3, 5],
    )  # fmt: skip
    fields = {"condSubgraphIndex": 1, "bodySubgraphIndex": 2}
    main = G([*state, *state], [Op("WHILE", [0, 1], [2, 3], "WhileOptions", fields)], [0, 1], [2, 3])
    return build(main, condition, body)


@pytest.mark.parametrize("x", [[1.0, 2.0, 3.0], [60.0, 50.0, 1.0], [0.1, 0.1, 0.1]])
def test_while(x, tmp_path):
    check(doubling(), tmp_path, {"t0": np.array(x, np.float32), "t1": np.array(4, np.int32)})


def branching() -> bytes:
    x = T((2, 3))
    then = G([x, const(np.float32(2)), T((2, 3))], [Op("MUL", [0, 1], [2], *MUL)], [0], [2])
    other = G([x, const(np.float32(5)), T((2, 3))], [Op("ADD", [0, 1], [2], *ADD)], [0], [2])
    fields = {"thenSubgraphIndex": 1, "elseSubgraphIndex": 2}
    main = G([T((), "bool"), x, T((2, 3))], [Op("IF", [0, 1], [2], "IfOptions", fields)], [0, 1], [2])
    return build(main, then, other)


@pytest.mark.parametrize("condition", [True, False])
def test_if(condition, tmp_path):
    feeds = {"t0": np.array(condition), "t1": np.arange(6, dtype=np.float32).reshape(2, 3)}
    check(branching(), tmp_path, feeds)


def test_a_subgraph_that_runs_itself_is_refused():
    fields = {"condSubgraphIndex": 1, "bodySubgraphIndex": 1}
    inner = G([T((3,)), T((3,))], [Op("WHILE", [0], [1], "WhileOptions", fields)], [0], [1])
    problems = refusal(build(inner, inner))
    assert problems[0].reference == "bad-tflite-file"


def test_a_call_is_what_its_graph_computes(tmp_path):
    """LiteRT has no kernel for it."""
    x = T((2,))
    inner = G([x, const(np.float32(3)), x], [Op("MUL", [0, 1], [2], *MUL)], [0], [2])
    content = build(G([x, x], [Op("CALL", [0], [1], "CallOptions", {"subgraph": 1})], [0], [1]), inner)
    check(content, tmp_path, {"t0": np.array([1, 2], np.float32)}, want={"t1": np.array([3, 6], np.float32)})


def counter(kind: str = "float32", scale: float | None = None) -> bytes:
    """state += x, which starts at 4 and is what comes out."""
    value = T((2,), kind, scale, 3 if scale else 0)
    start = T((2,), kind, scale, 3 if scale else 0, data=np.full(2, 4))
    handle = ("VarHandleOptions", {"container": "", "sharedName": "total"})
    init = G([T((), "resource"), start],
             [Op("VAR_HANDLE", [], [0], *handle), Op("ASSIGN_VARIABLE", [0, 1], [])], [], [])  # fmt: skip
    main = G(
        [value, T((), "resource"), value, value],
        [
            Op("CALL_ONCE", [], [], "CallOnceOptions", {"initSubgraphIndex": 1}), Op("VAR_HANDLE", [], [1], *handle),
            Op("READ_VARIABLE", [1], [2]), Op("ADD", [0, 2], [3], *ADD), Op("ASSIGN_VARIABLE", [1, 3], []),
        ],
        [0], [3],
    )  # fmt: skip
    return build(main, init)


def test_variables_are_inputs_and_outputs(tmp_path):
    content = counter()
    graph = import_bytes(content)
    assert [v.name for v in graph.inputs] == ["t0", "total"]
    assert [name for name, _ in graph.outputs] == ["t3", "total/next"]
    assert graph.metadata["initial/total"] == "4.0"
    feeds = {"t0": np.array([1, 2], np.float32), "total": np.array([10, 20], np.float32)}
    check(content, tmp_path, feeds, want={"t3": [11.0, 22.0], "total/next": [11.0, 22.0]})
    check(content, tmp_path, feeds)


def test_variables_of_codes(tmp_path):
    feeds = {"t0": np.array([100, -9], np.int8), "total": np.array([100, 20], np.int8)}
    check(counter("int8", 0.1), tmp_path, feeds)
    assert import_bytes(counter("int8", 0.1)).metadata["initial/total"] == "4"


def test_names_are_those_of_the_signature(tmp_path):
    graph = G([T((2,)), T((2,)), T((2,))], [Op("ADD", [0, 1], [2], *ADD)], [0, 1], [2])
    content = build(graph, signature=({"left": 0, "right": 1}, {"sum": 2}))
    made = import_bytes(content)
    assert [v.name for v in made.inputs] == ["left", "right"]
    assert [name for name, _ in made.outputs] == ["sum"]
    check(content, tmp_path, {"left": np.ones(2, np.float32), "right": np.ones(2, np.float32)})
