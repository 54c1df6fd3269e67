"""Runs random one-node models in three executors: onnxruntime, ours, and many of them in one file in MNN's runtime."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
from attribute_dice import Case
from graphs import import_proto, run_graph, through_file
from onnx import helper
from onnx_cases import assert_equal, onnxruntime_outputs

from mnnconvert.errors import MnnConvertError
from mnnconvert.ir import Graph
from mnnconvert.passes.pipeline import run_pipeline
from mnnconvert.schema.writer import write_model
from mnnconvert.verify.mnn_engine import MnnEngine

BATCH = 100  # graphs in one file
REFUSALS = {"unsupported-op", "unsupported-attribute", "unsupported-type", "int64-range", "runtime-defect"}
RTOL = {"float16": 2.0**-8}  # of the largest result; a half has 11 bits, and onnxruntime rounds between its steps
Arrays = dict[str, np.ndarray]


def expected(case: Case) -> tuple[onnx.ModelProto, Arrays] | None:
    """The model with the element types of its outputs, and what onnxruntime gives; None where it refuses the model."""
    from onnxruntime.capi import onnxruntime_pybind11_state as errors

    model = case.model()
    try:
        results = onnxruntime_outputs(model, case.feeds)
    except (errors.Fail, errors.InvalidArgument, errors.InvalidGraph, errors.NotImplemented, errors.RuntimeException):
        return None
    for output in model.graph.output:
        kind = helper.np_dtype_to_tensor_dtype(results[output.name].dtype)
        output.CopyFrom(helper.make_tensor_value_info(output.name, kind, None))
    return model, results


def written(model: onnx.ModelProto, target: str) -> tuple[Graph | None, str]:
    """The graph that goes into the file, or None and why there is none: it is one of `REFUSALS`."""
    try:
        graph = import_proto(model)
        run_pipeline(graph, target=target)
    except MnnConvertError as error:
        references = {d.reference for d in error.diagnostics}
        assert references <= REFUSALS, error.diagnostics
        return None, f"{error.diagnostics[0].reference}: {error.diagnostics[0].message}"
    return graph, ""


def difference(case: Case, got: Arrays, want: Arrays) -> str:
    """Why the results are not those of onnxruntime; integers of any width and bools compare by value."""
    for name, value in want.items():
        if value.dtype.kind != "f" and got[name].dtype.kind in "iub":
            value, got[name] = value.astype(np.int64), got[name].astype(np.int64)
        try:
            assert_equal(got[name], value, RTOL.get(str(value.dtype), 1e-5), 1e-6, name)
        except AssertionError as error:
            return " ".join(str(error).split())
    return ""


def ours(graph: Graph, feeds: Arrays) -> Arrays:
    return run_graph(through_file(graph), feeds)


def side_by_side(graphs: list[Graph]) -> Graph:
    """One graph of many. What is fed and read is `<place in the list>/<name>`."""
    whole = Graph()
    for i, graph in enumerate(graphs):
        for value in graph.values():
            value.name = f"{i}/{value.name}"
        whole.inputs += graph.inputs
        whole.nodes += graph.nodes
        whole.outputs += [(f"{i}/{name}", value) for name, value in graph.outputs]
    return whole


def in_mnn(graphs: list[Graph], feeds: list[Arrays]) -> list[Arrays | str]:
    """What MNN's runtime computes for each graph, or how it failed on it; halves what cannot be run."""
    whole = side_by_side(graphs)
    fed = {f"{i}/{name}": array for i, arrays in enumerate(feeds) for name, array in arrays.items()}
    fed = {v.name: fed[v.name] for v in whole.inputs}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.mnn"
        write_model(whole, path)
        try:
            with MnnEngine(path, timeout=30) as engine:
                results = engine.run(fed)
        except MnnConvertError as error:
            failure = error.diagnostics[0].message
        else:
            return [_of(results, f"{i}/") for i in range(len(graphs))]
    for i, graph in enumerate(graphs):
        for value in graph.values():
            value.name = value.name.removeprefix(f"{i}/")
    if len(graphs) == 1:
        return [failure]
    half = len(graphs) // 2
    return in_mnn(graphs[:half], feeds[:half]) + in_mnn(graphs[half:], feeds[half:])


def _of(results: Arrays, prefix: str) -> Arrays:
    return {name.removeprefix(prefix): array for name, array in results.items() if name.startswith(prefix)}
