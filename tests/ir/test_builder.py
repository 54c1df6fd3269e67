"""The builder knows shapes and contents while a graph is built, and keeps names unique."""

import numpy as np
import pytest

from mnnconvert.errors import ConversionError
from mnnconvert.ir import F32, I32, Builder, Graph, Node, to_text, verify
from mnnconvert.ops.elementwise import Binary, Unary


@pytest.fixture
def b():
    return Builder(Graph())


def test_shapes_are_known_at_once(b):
    y = b.add(Binary("ADD"), b.input("x", F32, ("n", 4)), b.floats([1, 2, 3, 4]))
    assert y.shape == ("n", 4)
    verify(b.graph)


def test_known_operands_give_known_results(b):
    y = b.add(Binary("MUL"), b.ints([2, 3]), b.ints(4))
    np.testing.assert_array_equal(y.constant, [8, 12])


def test_large_results_are_not_computed(b):
    big = b.add(Binary("ADD"), b.floats(np.zeros((1, 4096))), b.floats(np.zeros((4096, 1))))
    assert big.constant is None and big.shape == (4096, 4096)


def test_names_are_unique(b):
    x = b.input("x", F32, (2,))
    names = [b.add(Unary("ABS"), x, name="y").name for _ in range(3)]
    assert names == ["y", "y_2", "y_3"]


def test_small_equal_constants_are_one_value(b):
    assert b.ints([1, 2]) is b.ints([1, 2])
    assert b.ints([1, 2]) is not b.floats([1, 2])


def test_nodes_remember_their_origin(b):
    x = b.input("x", F32, (2,))
    with b.at("out", "/block/Abs"):
        y = b.add(Unary("ABS"), x)
    assert y.producer.origin == ("/block/Abs",)


def test_operands_that_do_not_fit_are_a_diagnostic(b):
    x = b.input("x", F32, (2,))
    with pytest.raises(ConversionError) as caught, b.at("sum"):
        b.add(Binary("ADD"), x, b.floats([1, 2, 3]))
    (problem,) = caught.value.diagnostics
    assert problem.reference == "shape-mismatch" and "Binary" in problem.message


def test_text_form_names_everything(b):
    b.output(b.add(Binary("ADD"), b.input("x", F32, ("n", 2)), b.floats([1, 2]), name="y"))
    assert "y: float32[n,2] = Binary<function='ADD'>(x, const/const)" in to_text(b.graph)


class TestVerifier:
    def graph(self):
        b = Builder(Graph())
        x = b.input("x", F32, (2,))
        b.output(b.add(Unary("NEG"), b.add(Unary("ABS"), x, name="a"), name="y"))
        return b.graph

    def fails(self, graph, words):
        with pytest.raises(ConversionError, match=words) as caught:
            verify(graph, "some pass")
        assert caught.value.diagnostics[0].reference == "illegal-graph"

    def test_order(self):
        graph = self.graph()
        graph.nodes.reverse()
        self.fails(graph, "before it is made")
        graph.sort()
        verify(graph)

    def test_unique_names(self):
        graph = self.graph()
        graph.nodes[0].output.name = "y"
        self.fails(graph, "two values are named 'y'")

    def test_stale_reader(self):
        graph = self.graph()
        Node(Unary("ABS"), [graph.inputs[0]], [], "ghost", ())
        self.fails(graph, "stale reader 'ghost'")

    def test_recorded_type(self):
        graph = self.graph()
        graph.nodes[0].output.spec.dtype = I32
        self.fails(graph, "its rule says")

    def test_output_that_nobody_makes(self):
        graph = self.graph()
        graph.remove([graph.nodes[-1]])
        self.fails(graph, "never made")


def test_prune_removes_what_nobody_reads():
    b = Builder(Graph())
    x = b.input("x", F32, (2,))
    b.add(Unary("NEG"), b.add(Unary("ABS"), x))
    b.output(b.add(Unary("EXP"), x, name="y"))
    assert b.graph.prune() == 2
    assert [n.name for n in b.graph.nodes] == ["y"] and len(x.users) == 1
