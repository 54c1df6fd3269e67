"""Control flow of both generations, lists of tensors, and recurrent cells of TensorFlow."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import run_graph
from tf_cases import array, check, compare, graph_of, model_of, raw, refused, tf

from mnnconvert.passes.pipeline import run_pipeline

X = array((2, 3))


def kinds(graph):
    return {n.op.kind for g in graph.graphs() for n in g.nodes}


def test_calls_are_put_in_place():
    inner = tf.function(lambda x: (x + 1.0, x * 2.0), autograph=False)

    def function(x):
        y, z = inner(inner(x)[1])
        return raw.Identity(input=y) - z

    check(function, X)


@pytest.mark.mnn
@pytest.mark.parametrize("flag", [False, True])
def test_if(flag, tmp_path):
    def function(x, flag):
        return tf.cond(flag, lambda: (x + 1.0, tf.constant(3)), lambda: (x * 2.0, tf.constant(4)))

    graph = check(function, X, flag, peer=tmp_path)
    assert "If" in kinds(graph)


def test_if_that_is_known():
    graph = check(lambda x: tf.cond(tf.constant(True), lambda: x + 1.0, lambda: x * 2.0), X)
    assert "If" not in kinds(graph)


@pytest.mark.parametrize("size", [1.0, 5.0])
def test_if_inside_of_if_with_other_sizes(size):
    def function(x, a):
        def deeper():
            return tf.cond(tf.reduce_sum(x) > 100.0, lambda: x[:1], lambda: tf.concat([x, x], 0) * a)

        return tf.cond(a > 3.0, deeper, lambda: x - a)

    check(function, np.abs(X), np.float32(size))


@pytest.mark.parametrize("index", [-1, 0, 1, 2, 7])
def test_case(index):
    def function(x, i):
        return tf.switch_case(i, [lambda: x + 1.0, lambda: x * 2.0, lambda: -x])

    check(function, X, np.int32(index))


def test_while_of_known_turns_is_written_out():
    def function(x):
        return tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2.0), [0, x])[1]

    assert "While" not in kinds(check(function, X))


@pytest.mark.mnn
@pytest.mark.parametrize("n", [0, 1, 6])
def test_while_of_turns_that_are_fed(n, tmp_path):
    weight = array((3, 3))

    def function(x, n):
        def body(i, x):
            return i + 1, tf.tanh(tf.matmul(x, weight)) + tf.cast(n, tf.float32)

        return tf.while_loop(lambda i, x: i < n, body, [0, x])

    assert "While" in kinds(check(function, X, np.int32(n), peer=tmp_path))


def test_while_over_data():
    def function(x):
        return tf.while_loop(lambda x: tf.reduce_sum(x) < 100.0, lambda x: (x * 2.0,), [x])

    check(function, np.abs(X))


@pytest.mark.parametrize("n", [1, 5])
def test_while_that_grows(n):
    def function(x, n):
        shapes = [tf.TensorShape([]), tf.TensorShape([None, 3])]
        return tf.while_loop(lambda i, x: i < n, lambda i, x: (i + 1, tf.concat([x, x[:1]], 0)), [0, x], shapes)

    check(function, X, np.int32(n))


@pytest.mark.parametrize("n", [2, 4])
def test_while_inside_of_while(n):
    def function(x, n):
        def outer(i, x):
            _, y = tf.while_loop(lambda j, y: j < i, lambda j, y: (j + 1, y + x), [0, x])
            return i + 1, y

        return tf.while_loop(lambda i, x: i < n, outer, [0, x])

    check(function, X, np.int32(n))


@pytest.mark.mnn
@pytest.mark.parametrize("known", [True, False])
def test_lists_in_a_loop(known, tmp_path):
    def function(x, n):
        rows = tf.TensorArray(tf.float32, size=tf.shape(x)[0] if not known else 4, element_shape=None)
        source = tf.TensorArray(tf.float32, size=4).unstack(x)
        count = 4 if known else n
        _, rows = tf.while_loop(
            lambda i, r: i < count, lambda i, r: (i + 1, r.write(i, source.read(i) * tf.cast(i, tf.float32))), [0, rows]
        )
        return rows.stack(), rows.size()

    graph = check(function, array((4, 3)), np.int32(3 if not known else 4), peer=tmp_path)
    assert ("While" in kinds(graph)) != known


def test_map_over_rows():
    check(lambda x: tf.map_fn(lambda row: tf.reduce_sum(row) * row, x), array((4, 3)))
    check(
        lambda x: tf.map_fn(lambda row: tf.reduce_sum(row) * row, tf.ensure_shape(x, [None, 3])),
        array((4, 3)),
        open_=[0],
    )
    check(lambda x: tf.scan(lambda a, row: a + row, tf.ensure_shape(x, [None, 3])), array((4, 3)), open_=[0])


def test_list_operations():
    def function(x):
        made = raw.TensorListFromTensor(tensor=x, element_shape=[3])
        made = raw.TensorListPushBack(input_handle=made, tensor=x[0])
        made, last = raw.TensorListPopBack(input_handle=made, element_shape=[3], element_dtype=tf.float32)
        empty = raw.EmptyTensorList(element_shape=[3], max_num_elements=5, element_dtype=tf.float32)
        empty = raw.TensorListPushBack(input_handle=empty, tensor=x[1])
        empty = raw.TensorListPushBack(input_handle=empty, tensor=x[0])
        more = {"element_shape": [3], "element_dtype": tf.float32}
        return (
            last, raw.TensorListStack(input_handle=made, **more), raw.TensorListLength(input_handle=empty),
            raw.TensorListStack(input_handle=empty, **more),
            raw.TensorListGather(input_handle=made, indices=[1, 0], **more),
        )  # fmt: skip

    check(function, X)


def test_list_of_places_and_joined_lists():
    def function(x):
        made = raw.TensorListScatterV2(tensor=x, indices=[3, 1], element_shape=[3], num_elements=4)
        stacked = raw.TensorListStack(input_handle=made, element_shape=[3], element_dtype=tf.float32)
        rows = raw.TensorListFromTensor(tensor=stacked, element_shape=[3])
        joined, lengths = raw.TensorListConcatV2(
            input_handle=rows, element_shape=[-1], leading_dims=np.zeros(0, np.int64), element_dtype=tf.float32
        )
        shape = raw.TensorListElementShape(input_handle=rows, shape_type=tf.int32)
        return stacked, joined, lengths, shape

    check(function, X)


# the first generation


def first_generation(build, *operands):
    """A graph with control flow of single nodes: `build(*placeholders)` gives the outputs."""
    arrays = [np.asarray(a) for a in operands]
    graph = tf.Graph()
    with graph.as_default():
        tf.compat.v1.disable_control_flow_v2()
        try:
            inputs = [tf.compat.v1.placeholder(a.dtype, a.shape, name=f"x{i}") for i, a in enumerate(arrays)]
            outputs = [tf.identity(y, name=f"y{i}") for i, y in enumerate(tf.nest.flatten(build(*inputs)))]
        finally:
            tf.compat.v1.enable_control_flow_v2()
        with tf.compat.v1.Session(graph=graph) as session:
            wanted = session.run(outputs, dict(zip(inputs, arrays, strict=True)))
    model = model_of(graph.as_graph_def())
    model = type(model)(model.graph, model.functions, model.inputs, tuple((t.op.name, t.op.name) for t in outputs))
    order = [arrays[int(name[1:])] for name, _ in model.inputs if name[1:].isdigit()]
    return model, order, wanted


def first_generation_graph():
    """A graph with a cond, of single nodes."""
    graph = tf.Graph()
    with graph.as_default():
        tf.compat.v1.disable_control_flow_v2()
        try:
            x = tf.compat.v1.placeholder(tf.float32, [2, 3], name="x0")
            flag = tf.compat.v1.placeholder(tf.bool, [], name="x1")
            tf.identity(tf.compat.v1.cond(flag, lambda: x + 1.0, lambda: tf.exp(x) * 2.0), name="y0")
        finally:
            tf.compat.v1.enable_control_flow_v2()
    return graph.as_graph_def()


def test_pivots_of_branches_are_no_outputs():
    model = model_of(first_generation_graph())
    assert [name for name, _ in model.outputs] == ["y0"]
    assert [name for name, _ in model.inputs] == ["x0", "x1"]


def check_first(build, *operands, peer=None):
    return compare(*first_generation(build, *operands), peer=peer)


def test_batch_norm_under_a_switch_for_training():
    def build(x):
        training = tf.compat.v1.placeholder_with_default(False, [], name="is_training")
        y = tf.nn.conv2d(x, array((3, 3, 3, 4)), 1, "SAME")
        parameters = [array((4,), seed=i, low=0.3, high=2) for i in range(4)]
        more = {"epsilon": 1e-3, "data_format": "NHWC"}

        def batch():
            return raw.FusedBatchNormV3(
                x=y, scale=parameters[0], offset=parameters[1], mean=np.zeros(0, np.float32),
                variance=np.zeros(0, np.float32), is_training=True, **more,
            )[:3]  # fmt: skip

        def moving():
            scale, offset, mean, variance = parameters
            return raw.FusedBatchNormV3(
                x=y, scale=scale, offset=offset, mean=mean, variance=variance, is_training=False, **more
            )[:3]

        return tf.compat.v1.cond(training, batch, moving)[0]

    model, arrays, wanted = first_generation(build, array((1, 8, 8, 3)))
    assert [name for name, _ in model.inputs] == ["x0"]
    graph = compare(model, arrays, wanted)
    assert kinds(graph) <= {"Convolution", "ConvertTensor", "Permute"}  # the norm is in the weights


@pytest.mark.parametrize("n", [0, 1, 6])
def test_loop_of_single_nodes(n):
    def build(n):
        loop = tf.compat.v1.while_loop(lambda i, s: i < n, lambda i, s: (i + 1, s + i), [0, 0])
        return loop[1]

    check_first(build, np.int32(n))


@pytest.mark.parametrize("flag", [False, True])
def test_cond_of_single_nodes(flag):
    def build(x, flag):
        y = tf.compat.v1.cond(flag, lambda: x + 1.0, lambda: tf.concat([x, x], 0))
        z = tf.compat.v1.cond(flag, lambda: tf.constant(3.0), lambda: tf.reduce_sum(y))
        return y, z

    check_first(build, X, flag)


@pytest.mark.mnn
@pytest.mark.parametrize("n", [0, 3])
@pytest.mark.parametrize("flag", [False, True])
def test_cond_and_loop_inside_of_each_other(n, flag, tmp_path):
    def build(x, n, flag):
        def body(i, y):
            y = tf.compat.v1.cond(tf.equal(i % 2, 0), lambda: y + x, lambda: y * 2.0)
            _, y = tf.compat.v1.while_loop(lambda j, y: j < i, lambda j, y: (j + 1, y - 1.0), [0, y])
            return i + 1, y

        def yes():
            return tf.compat.v1.while_loop(lambda i, y: i < n, body, [0, x])[1]

        return tf.compat.v1.cond(flag, yes, lambda: -x)

    check_first(build, X, np.int32(n), flag, peer=tmp_path)


@pytest.mark.parametrize("known", [True, False])
def test_arrays_in_a_loop_of_single_nodes(known):
    def build(x, n):
        source = tf.TensorArray(tf.float32, 4).unstack(x)
        rows = tf.TensorArray(tf.float32, 4 if known else n)

        def body(i, state, rows):
            state = state * 0.5 + source.read(i)
            return i + 1, state, rows.write(i, state)

        count = 4 if known else n
        _, last, rows = tf.compat.v1.while_loop(lambda i, *_: i < count, body, [0, x[0], rows])
        return last, rows.stack(), rows.size()

    check_first(build, array((4, 3)), np.int32(4))


def test_array_operations_of_single_nodes():
    def build(x):
        parts = tf.TensorArray(tf.float32, 2, clear_after_read=False).split(x, [2, 2])
        return parts.concat(), parts.gather([1, 0]), parts.read(1)

    check_first(build, array((4, 3)))


def test_a_merge_without_its_switches_is_refused():
    definition = tf.compat.v1.GraphDef()
    for name in "ab":
        node = definition.node.add(name=name, op="Placeholder")
        node.attr["dtype"].type = 1
        node.attr["shape"].shape.unknown_rank = True
    definition.node.add(name="m", op="Merge", input=["a", "b"]).attr["T"].type = 1
    assert "no Switch" in refused(model_of(definition))[0].message


def test_placeholder_with_a_default():
    def build(x):
        return x * tf.compat.v1.placeholder_with_default(np.float32([1, 2, 3]), [3], name="scale")

    model, _, wanted = first_generation(build, X)
    assert dict(model.inputs) == {"x0": "x0", "scale": "scale"}
    graph = graph_of(model)
    assert graph.metadata["default/scale"] == "[1.0, 2.0, 3.0]"
    run_pipeline(graph)
    got = run_graph(graph, {"x0": X, "scale": np.float32([1, 2, 3])})
    np.testing.assert_allclose(got["y0"], wanted[0])


# cells


@pytest.mark.parametrize("peephole", [False, True])
@pytest.mark.parametrize("clip", [0.4, -1.0])
def test_lstm_block_cell(peephole, clip):
    x, c, h, w = array((2, 3)), array((2, 4), seed=1), array((2, 4), seed=2), array((7, 16))
    looks, bias = [array((4,), seed=i) for i in range(3)], array((16,))
    more = {"w": w, "wci": looks[0], "wcf": looks[1], "wco": looks[2], "b": bias, "use_peephole": peephole}
    check(lambda x, c, h: raw.LSTMBlockCell(x=x, cs_prev=c, h_prev=h, cell_clip=clip, **more), x, c, h)


@pytest.mark.parametrize("name", ["BlockLSTM", "BlockLSTMV2"])
def test_block_lstm(name):
    x, c, h, w = array((5, 2, 3)), array((2, 4), seed=1), array((2, 4), seed=2), array((7, 16))
    looks, bias = [array((4,), seed=i) for i in range(3)], array((16,))
    more = {"w": w, "wci": looks[0], "wcf": looks[1], "wco": looks[2], "b": bias, "use_peephole": True}
    call = getattr(raw, name)
    check(lambda x, c, h: call(seq_len_max=np.int64(5), x=x, cs_prev=c, h_prev=h, **more), x, c, h)


def test_gru_block_cell():
    x, h, w, v = array((2, 3)), array((2, 4), seed=2), array((7, 8)), array((7, 4))
    more = {"w_ru": w, "w_c": v, "b_ru": array((8,)), "b_c": array((4,))}
    check(lambda x, h: raw.GRUBlockCell(x=x, h_prev=h, **more), x, h)


def test_equal_sizes_give_no_layout_away():
    def function(x):
        return tf.transpose(tf.matmul(x, x), [0, 2, 1, 3])

    check(function, array((1, 16, 16, 16)))
