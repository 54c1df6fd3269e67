"""If and While by position, in files by name; what a file may say wrong; the released runtime agrees."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import run_graph, through_file

from mnnconvert.errors import ConversionError
from mnnconvert.ir import F32, I32, Builder, Graph, Spec, verify
from mnnconvert.ops.control import If, While, join, outside
from mnnconvert.ops.elementwise import Binary, Unary
from mnnconvert.runtime_ref.session import Session
from mnnconvert.schema import flatbuffer, tables
from mnnconvert.schema.forms import make_table
from mnnconvert.schema.reader import read_model
from mnnconvert.schema.writer import write_model
from mnnconvert.verify.mnn_engine import MnnEngine

X = np.array([1, -2, 3], np.float32)


def inner(name, *inputs):
    """A builder of a graph that is run, with inputs given as (name, dtype)."""
    b = Builder(Graph(name=name))
    return b, *(b.input(n, t, () if t == I32 else (3,)) for n, t in inputs)


def doubled_while_below(conditional: bool) -> Graph:
    """i, x -> x doubled n times: with a condition graph, or counted with the rows stacked."""
    main = Builder(Graph())
    n, x = main.input("n", I32, ()), main.input("x", F32, (3,))
    if conditional:
        body, i, limit, y = inner("body", ("i", I32), ("limit", I32), ("y", F32))
        for value in (body.add(Binary("ADD"), i, body.ints(1)), limit, body.add(Binary("ADD"), y, y)):
            body.output(value)
        test, i, limit, _ = inner("test", ("ci", I32), ("climit", I32), ("cy", F32))
        test.output(test.add(Binary("LESS"), i, limit))
        main.graph.subgraphs = {"body": body.graph, "test": test.graph}
        results = main.add(While("body", "test"), main.ints(0), n, x, names=["count", "limit", "last"])
    else:
        body, _, going, y = inner("body", ("i", I32), ("going", I32), ("y", F32))
        twice = body.add(Binary("ADD"), y, y)
        for value in (going, twice, twice):
            body.output(value)
        main.graph.subgraphs = {"body": body.graph}
        results = main.add(While("body"), n, main.ints(1), x, names=["last", "rows"])
    for value in results:
        main.output(value)
    verify(main.graph)
    return main.graph


@pytest.mark.parametrize("conditional", [False, True])
@pytest.mark.parametrize("turns", [0, 1, 4])
def test_loops(conditional, turns):
    graph = doubled_while_below(conditional)
    feeds = {"n": np.int32(turns), "x": X}
    for found in (run_graph(graph, feeds), run_graph(through_file(graph), feeds)):
        np.testing.assert_array_equal(found["last"], X * 2**turns)
        if conditional:
            assert found["count"] == turns
        else:
            np.testing.assert_array_equal(found["rows"], X * 2.0 ** np.arange(1, turns + 1)[:, None])
            assert found["rows"].shape == (turns, 3)


@pytest.mark.skipif(not MnnEngine.available(), reason="the MNN package is not installed")
@pytest.mark.parametrize(("conditional", "turns"), [(False, 3), (True, 3), (True, 0)])
def test_released_runtime_agrees_on_loops(conditional, turns, tmp_path):
    """A counted loop with rows that makes no turn ends the released runtime; import rules guard against that."""
    graph = doubled_while_below(conditional)
    write_model(graph, tmp_path / "m.mnn")
    feeds = {"n": np.array(turns, np.int32), "x": X}
    with MnnEngine(tmp_path / "m.mnn", timeout=10) as engine:
        found = engine.run(feeds)
    for name, value in run_graph(graph, feeds).items():
        np.testing.assert_array_equal(found[name], value)


def branches() -> Graph:
    main = Builder(Graph())
    condition, x, y = main.input("c", I32, ()), main.input("x", F32, ("n",)), main.input("y", F32, ("n",))
    yes, _, a, b = inner("yes", ("c", I32), ("a", F32), ("b", F32))
    yes.graph.inputs.pop(0)
    yes.output(yes.add(Binary("SUB"), a, b))
    no, _, a, b = inner("no", ("c", I32), ("p", F32), ("q", F32))
    no.graph.inputs.pop(0)
    no.output(b)
    main.graph.subgraphs = {"yes": yes.graph, "no": no.graph}
    main.output(main.add(If("yes", "no"), condition, x, y, names=["z"])[0])
    return main.graph


@pytest.mark.parametrize("condition", [1, 0, -1])
def test_branches(condition):
    graph = branches()
    feeds = {"c": np.int32(condition), "x": X, "y": 2 * X}
    for found in (run_graph(graph, feeds), run_graph(through_file(graph), feeds)):
        np.testing.assert_array_equal(found["z"], -X if condition > 0 else 2 * X)


def file_of(tmp_path, main_ops, subgraphs, names, output):
    """A file from tables: ops as (type, table, fields, inputs, outputs) over a list of names."""
    net = tables.Net(oplists=_ops(main_ops, names), tensorName=names, outputName=[output], subgraphs=[
        tables.SubGraphProto(name=name, tensors=inside, nodes=_ops(ops, inside),
                             inputs=np.array([inside.index(i) for i in inputs], np.int32),
                             outputs=np.array([inside.index(o) for o in outputs], np.int32))
        for name, ops, inside, inputs, outputs in subgraphs
    ])  # fmt: skip
    path = tmp_path / "m.mnn"
    with path.open("wb") as stream:
        flatbuffer.write(net, stream)
    return path


def _ops(ops, names):
    return [
        tables.Op(type=tables.OpType[kind], main=make_table(table, fields) if table else None, name=outputs[0],
                  inputIndexes=np.array([names.index(i) for i in inputs], np.int32),
                  outputIndexes=np.array([names.index(o) for o in outputs], np.int32))
        for kind, table, fields, inputs, outputs in ops
    ]  # fmt: skip


def _input(name, dims, dtype="DT_FLOAT"):
    return ("Input", "Input", {"dims": dims, "dtype": dtype, "dformat": "NCHW"}, [], [name])


def test_names_of_a_foreign_file_in_any_order(tmp_path):
    """Inputs are fed crosswise, one operand feeds two inputs, one branch lacks an input, outputs are picked by name."""
    yes = ("yes", [_input("q", None), _input("p", None), _input("p2", None),
                   ("BinaryOp", "BinaryOp", {"opType": "SUB", "T": "DT_FLOAT"}, ["p", "q"], ["d"]),
                   ("BinaryOp", "BinaryOp", {"opType": "MUL", "T": "DT_FLOAT"}, ["d", "p2"], ["m"])],
           ["q", "p", "p2", "d", "m"], ["q", "p", "p2"], ["d", "m"])  # fmt: skip
    no = ("no", [_input("r", None)], ["r"], ["r"], ["r"])
    fields = {
        "then_graph": "yes", "else_graph": "no",
        "aliases_inputs": [{"data": []}, {"data": ["p", "p2", "r"]}, {"data": ["q"]}],
        "aliases_outputs": [{"data": ["m", "r"]}],
    }  # fmt: skip
    ops = [
        _input("c", [], "DT_INT32"),
        _input("x", [3]),
        _input("y", [3]),
        ("If", "IfParam", fields, ["c", "x", "y"], ["z"]),
    ]
    graph = read_model(file_of(tmp_path, ops, [yes, no], ["c", "x", "y", "z"], "z"))
    for read in (graph, through_file(graph)):
        found = [run_graph(read, {"c": np.int32(c), "x": X, "y": 3 * X})["z"] for c in (1, 0)]
        np.testing.assert_array_equal(found[0], (X - 3 * X) * X)
        np.testing.assert_array_equal(found[1], X)


def test_a_condition_graph_that_shares_and_drops_values(tmp_path):
    """The limit is an input of the condition alone, the step of the body alone; only one value is returned."""
    body = ("body", [_input("i", None, "DT_INT32"), _input("step", None, "DT_INT32"),
                     ("BinaryOp", "BinaryOp", {"opType": "ADD", "T": "DT_INT32"}, ["i", "step"], ["next"])],
            ["i", "step", "next"], ["i", "step"], ["next"])  # fmt: skip
    test = ("test", [_input("j", None, "DT_INT32"), _input("limit", None, "DT_INT32"),
                     ("BinaryOp", "BinaryOp", {"opType": "LESS", "T": "DT_INT32"}, ["j", "limit"], ["go"])],
            ["j", "limit", "go"], ["j", "limit"], ["go"])  # fmt: skip
    fields = {
        "cond_graph": "test", "body_graph": "body",
        "aliases_inputs": [{"data": n} for n in (["i", "j"], ["step"], ["limit"])],
        "aliases_updates": [{"data": ["next", "i"]}, {"data": ["next", "j"]}], "aliases_outputs": ["next"],
    }  # fmt: skip
    ops = [_input("start", [], "DT_INT32"), _input("by", [], "DT_INT32"), _input("end", [], "DT_INT32"),
           ("While", "WhileParam", fields, ["start", "by", "end"], ["z"])]  # fmt: skip
    graph = read_model(file_of(tmp_path, ops, [body, test], ["start", "by", "end", "z"], "z"))
    for read in (graph, through_file(graph)):
        for start, want in ((0, 12), (20, 20)):
            found = run_graph(read, {"start": np.int32(start), "by": np.int32(3), "end": np.int32(10)})
            assert found["z"] == want


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"then_graph": "nowhere"}, "no graph 'nowhere'"),
        ({"then_graph": None}, "has no name"),
        ({"aliases_inputs": [{"data": []}]}, "nothing feeds the input"),
        ({"aliases_outputs": [{"data": ["nothing", "r"]}]}, "no tensor 'nothing'"),
    ],
)
def test_a_file_whose_names_do_not_fit_is_refused(change, words, tmp_path):
    branch = ("yes", [_input("r", None)], ["r"], ["r"], ["r"])
    fields = {"then_graph": "yes", "else_graph": "no", "aliases_inputs": [{"data": []}, {"data": ["r"]}], **change}
    ops = [_input("c", [], "DT_INT32"), _input("x", [3]), ("If", "IfParam", fields, ["c", "x"], ["z"])]
    path = file_of(tmp_path, ops, [branch, ("no", *branch[1:])], ["c", "x", "z"], "z")
    with pytest.raises(ConversionError, match=words):
        read_model(path)


def test_a_graph_that_runs_itself_is_refused(tmp_path):
    fields = {"then_graph": "yes", "else_graph": "yes", "aliases_inputs": [{"data": []}, {"data": ["r"]}]}
    branch = ("yes", [_input("r", None), ("If", "IfParam", fields, ["r", "r"], ["s"])], ["r", "s"], ["r"], ["s"])
    ops = [_input("c", [], "DT_INT32"), _input("x", [3]), ("If", "IfParam", fields, ["c", "x"], ["z"])]
    with pytest.raises(ConversionError, match="runs itself"):
        read_model(file_of(tmp_path, ops, [branch], ["c", "x", "z"], "z"))


def test_what_is_known_of_one_of_two_values():
    assert join(Spec(F32, ("n", 3)), Spec(F32, ("n", 4))).shape == ("n", None)
    assert join(Spec(F32, (2,)), Spec(F32, (2, 1))).shape is None
    with pytest.raises(ValueError, match="float32 on one way and int32"):
        join(Spec(F32), Spec(I32))


def test_symbols_of_a_graph_do_not_leave_it():
    assert outside(Spec(F32, ("(h+1)", "k", 3)), [Spec(F32, ("h", 2))]).shape == ("(h+1)", None, 3)


def test_a_problem_inside_a_body_names_its_node():
    graph = branches()
    graph.subgraphs["yes"].nodes[0].op = Unary("RSQRT")
    with pytest.raises(ConversionError, match="Unary failed"):
        Session(graph).run({"c": np.int32(1), "x": X, "y": X})
