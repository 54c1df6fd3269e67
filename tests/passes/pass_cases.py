"""Small graphs written as functions, and the check of what every pass must keep."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from mnnconvert.ir import Builder, Graph, Value, verify
from mnnconvert.passes.base import Pass, Report
from mnnconvert.passes.rewrite import Maker
from mnnconvert.runtime_ref.session import Session

F32 = np.dtype("float32")


def build(make: Callable[..., Any], **inputs: Any) -> Graph:
    """The graph of `make(op, **inputs)`: a tuple of sizes is a float32 input, an array one of its type and shape.

    One result is named y, several y0, y1, ...
    """
    builder = Builder()
    values = {}
    for name, given in inputs.items():
        dtype, shape = (given.dtype, given.shape) if isinstance(given, np.ndarray) else (F32, given)
        values[name] = builder.input(name, dtype, shape)
    with builder.at("g", "source"):
        result = make(Maker(builder), **values)
    results = result if isinstance(result, tuple) else (result,)
    for i, value in enumerate(results):
        builder.output(value, "y" if len(results) == 1 else f"y{i}")
    verify(builder.graph)
    return builder.graph


def kinds(graph: Graph) -> list[str]:
    """What the nodes are, in order: the function of a unary or binary op, else the kind."""
    return [n.op.function if n.op.kind in ("Unary", "Binary") else n.op.kind for n in graph.nodes]


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    """Standard normal float32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def feeds_for(graph: Graph, symbol: int = 3) -> dict[str, np.ndarray]:
    """Noise for every input; sizes that are not known become `symbol`."""
    return {v.name: _draw(v, symbol) for v in graph.inputs}


def _draw(value: Value, symbol: int) -> np.ndarray:
    shape = [d if isinstance(d, int) else symbol for d in value.shape or ()]
    rng = np.random.default_rng(zlib.crc32(value.name.encode()))
    return (
        rng.integers(0, 3, shape).astype(value.dtype)
        if value.dtype.kind in "iu"
        else rng.standard_normal(shape).astype(F32)
    )


def _boundary(graph: Graph) -> list[tuple]:
    """Inputs and outputs with their types; an unknown size may become known, so it is left out."""
    inputs = [(v.name, v.dtype, v.shape) for v in graph.inputs]
    return inputs + [(name, v.dtype, v.rank) for name, v in graph.outputs]


def check_pass(
    run: Pass, graph: Graph, *, rtol: float, atol: float, feeds: dict[str, np.ndarray] | None = None
) -> Report:
    """Run a pass and assert what every pass keeps: a legal graph, its inputs and outputs, and the values.

    Values agree within atol + rtol * |largest value|, at two sizes where the graph leaves sizes open.
    """
    boundary, known = _boundary(graph), {n: v.shape for n, v in graph.outputs}
    cases = [feeds] if feeds is not None else [feeds_for(graph, 3), feeds_for(graph, 4)]
    wanted = [Session(graph).run(f) for f in cases]
    report = run.run(graph)
    verify(graph, run.name)
    assert report.name == run.name
    assert _boundary(graph) == boundary
    for name, value in graph.outputs:
        pairs = zip(known[name] or (), value.shape or (), strict=False)
        assert all(not isinstance(a, int) or a == b for a, b in pairs), f"{name} was {known[name]}, is {value.shape}"
    for case, want in zip(cases, wanted, strict=True):
        _compare(Session(graph).run(case), want, rtol, atol)
    return report


def _compare(got: dict[str, np.ndarray], want: dict[str, np.ndarray], rtol: float, atol: float) -> None:
    for name, expected in want.items():
        assert got[name].shape == expected.shape
        assert got[name].dtype == expected.dtype
        finite = expected[np.isfinite(expected)]
        largest = float(np.abs(finite).max(initial=0)) if expected.dtype.kind == "f" else 0.0
        np.testing.assert_allclose(got[name], expected, rtol=0, atol=atol + rtol * largest, err_msg=name)
