"""Small ONNX models from text, and the check that our graph computes what onnxruntime computes."""

from __future__ import annotations

import numpy as np
import onnx
from graphs import import_proto, run_graph, through_file
from onnx import TensorProto, numpy_helper, parser

from mnnconvert.errors import ConversionError


def model(text: str, arrays=None, opset: int = 17, domains=()) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model in ONNX text syntax (from the list of graph inputs on) and its feeds.

    An array named like a graph input is fed, any other becomes an initializer.
    """
    imports = ", ".join(f'"{d}" : {v}' for d, v in [("", opset), *((d, 1) for d in domains)])
    proto = parser.parse_model(f"<ir_version: {11 if opset >= 23 else 10}, opset_import: [{imports}]> g {text.strip()}")
    inputs, feeds = {i.name for i in proto.graph.input}, {}
    for name, value in (arrays or {}).items():
        if name in inputs:
            feeds[name] = np.asarray(value)
        elif isinstance(value, TensorProto):
            proto.graph.initializer.add().CopyFrom(value)
            proto.graph.initializer[-1].name = name
        else:
            proto.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return proto, feeds


def onnxruntime_outputs(proto: onnx.ModelProto, feeds) -> dict[str, np.ndarray]:
    """What onnxruntime computes with every optimisation off."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [o.name for o in proto.graph.output]
    return dict(zip(names, session.run(names, feeds), strict=True))


def assert_equal(got: np.ndarray, want: np.ndarray, rtol: float, atol: float, name: str = "") -> None:
    """Same shape and kind of type; integers exact; floats within atol + rtol * the largest finite value."""
    want = np.asarray(want)
    assert got.shape == want.shape, f"{name}: shape {got.shape} instead of {want.shape}"
    assert got.dtype.kind == want.dtype.kind, f"{name}: {got.dtype} instead of {want.dtype}"
    if want.dtype.kind != "f":
        np.testing.assert_array_equal(got, want, err_msg=name)
        return
    finite = np.isfinite(want)
    largest = float(np.abs(want[finite]).max(initial=0))
    np.testing.assert_allclose(
        got.astype(np.float64), want.astype(np.float64), rtol=0, atol=atol + rtol * largest, err_msg=name
    )


def check(text: str, arrays=None, *, opset: int = 17, domains=(), rtol: float, atol: float = 1e-6, want=None) -> None:
    """The imported graph, before and after a trip through a file, computes what onnxruntime (or `want`) gives."""
    proto, feeds = model(text, arrays, opset, domains)
    expected = want if want is not None else onnxruntime_outputs(proto, feeds)
    graph = import_proto(proto)
    for got in (run_graph(graph, feeds), run_graph(through_file(graph), feeds)):
        for name, value in expected.items():
            assert_equal(got[name], value, rtol, atol, name)


def refusal(text: str, arrays=None, opset: int = 17, domains=()) -> list:
    """The diagnostics with which the import of a model is refused."""
    proto, _ = model(text, arrays, opset, domains)
    try:
        import_proto(proto)
    except ConversionError as error:
        return error.diagnostics
    raise AssertionError("the model was not refused")
