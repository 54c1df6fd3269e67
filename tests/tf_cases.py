"""Small TensorFlow models, and the check that our graph computes what TensorFlow computes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from graphs import run_graph, through_file
from onnx_cases import assert_equal

from mnnconvert.errors import ConversionError
from mnnconvert.frontends.tensorflow.importer import Importer
from mnnconvert.frontends.tensorflow.model import SourceModel, parse
from mnnconvert.frontends.tensorflow.ports import ports
from mnnconvert.ir import Graph, verify
from mnnconvert.passes.pipeline import run_pipeline
from mnnconvert.schema.writer import write_model
from mnnconvert.verify.mnn_engine import MnnEngine

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
tf: Any = pytest.importorskip("tensorflow", reason="needs TensorFlow (make setup)")
raw: Any = tf.raw_ops


def model_of(definition: Any) -> SourceModel:
    """A GraphDef as records, with the inputs and outputs that it has by itself."""
    graph, functions = parse(memoryview(definition.SerializeToString()))
    return SourceModel(graph, functions, *ports(graph))


def source_of(concrete: Any) -> SourceModel:
    """A concrete function as records: inputs x0, x1, ... and outputs y0, y1, ..."""
    graph, functions = parse(memoryview(concrete.graph.as_graph_def().SerializeToString()))
    inputs = tuple((f"x{i}", t.op.name) for i, t in enumerate(concrete.inputs))
    return SourceModel(graph, functions, inputs, tuple((f"y{i}", t.name) for i, t in enumerate(concrete.outputs)))


def graph_of(model: SourceModel, **more: Any) -> Graph:
    graph = Importer(model, **more).run()
    verify(graph, "import")
    return graph


def traced(function: Callable[..., Any], specs: Sequence[Any]) -> Any:
    """The concrete function of a Python function, with `tf.control_flow` of functions."""

    def flat(*tensors: Any) -> Any:
        return tf.nest.flatten(function(*tensors))

    return tf.function(flat, autograph=False).get_concrete_function(*specs)


def array(shape: Sequence[int], dtype: str = "float32", low: float = -2.0, high: float = 2.0, seed: int = 0) -> Any:
    """Seeded numbers: floats in [low, high), whole numbers from -4 (0 where there is no sign) to 4, truths."""
    random = np.random.default_rng([seed, *shape])
    if dtype.startswith("float"):
        return random.uniform(low, high, tuple(shape)).astype(dtype)
    if dtype == "bool":
        return random.integers(0, 2, tuple(shape)).astype(bool)
    return random.integers(0 if dtype.startswith("u") else -4, 5, tuple(shape)).astype(dtype)


def check(
    function: Callable[..., Any], *operands: Any, open_: Sequence[int] = (), rtol: float = 1e-5, atol: float = 1e-6,
    peer: Any = None,
) -> Graph:  # fmt: skip
    """The imported graph computes what TensorFlow computes, as it is, and after all passes and through a file.

    `open_` names operands whose sizes are left open. With `peer` (a folder) the released runtime has to agree as well.
    """
    arrays = [np.asarray(x) for x in operands]
    specs = [
        tf.TensorSpec([None] * a.ndim if i in open_ else a.shape, a.dtype, name=f"x{i}") for i, a in enumerate(arrays)
    ]
    concrete = traced(function, specs)
    wanted = [np.asarray(y) for y in concrete(*map(tf.constant, arrays))]
    return compare(source_of(concrete), arrays, wanted, rtol, atol, peer)


def compare(
    model: SourceModel, arrays: Sequence[np.ndarray], wanted: Sequence[np.ndarray], rtol: float = 1e-5,
    atol: float = 1e-6, peer: Any = None,
) -> Graph:  # fmt: skip
    """See `check`."""
    feeds = {name: a for (name, _), a in zip(model.inputs, arrays, strict=True)}
    graph = graph_of(model)
    results = [run_graph(graph, feeds)]
    run_pipeline(graph)
    results.append(run_graph(through_file(graph), feeds))
    if peer is not None:
        results.append(peer_outputs(graph, feeds, peer))
    for got in results:
        for (name, _), value in zip(model.outputs, wanted, strict=True):
            found = got[name]
            if value.dtype.kind == "u" and found.dtype.kind == "i":  # MNN has no unsigned numbers of more than 8 bits
                found = found.astype(value.dtype)
            assert_equal(found, value, rtol, atol, name)
    return graph


def peer_outputs(graph: Graph, feeds: dict[str, np.ndarray], folder: Any) -> dict[str, np.ndarray]:
    """What the released runtime computes."""
    write_model(graph, folder / "peer.mnn")
    with MnnEngine(folder / "peer.mnn") as engine:
        return engine.run(feeds)


def refusal(function: Callable[..., Any], *operands: Any, open_: Sequence[int] = ()) -> list[Any]:
    """The diagnostics with which a model is refused."""
    arrays = [np.asarray(x) for x in operands]
    specs = [
        tf.TensorSpec([None] * a.ndim if i in open_ else a.shape, a.dtype, name=f"x{i}") for i, a in enumerate(arrays)
    ]
    return refused(source_of(traced(function, specs)))


def refused(model: SourceModel) -> list[Any]:
    try:
        Importer(model).run()
    except ConversionError as error:
        return error.diagnostics
    raise AssertionError("the model was not refused")


def old_op(op: str, operands: Sequence[np.ndarray], **attributes: Any) -> SourceModel:
    """A model of one op that TensorFlow does not make any more."""
    definition = tf.compat.v1.GraphDef()
    for i, operand in enumerate(operands):
        node = definition.node.add(name=f"x{i}", op="Placeholder")
        node.attr["dtype"].type = tf.as_dtype(operand.dtype).as_datatype_enum
        node.attr["shape"].shape.CopyFrom(tf.TensorShape(operand.shape).as_proto())
    node = definition.node.add(name="y", op=op, input=[f"x{i}" for i in range(len(operands))])
    node.attr["T"].type = tf.as_dtype(operands[0].dtype).as_datatype_enum
    for name, value in attributes.items():
        field = {bool: "b", int: "i", float: "f"}[type(value)]
        setattr(node.attr[name], field, value)
    return model_of(definition)
