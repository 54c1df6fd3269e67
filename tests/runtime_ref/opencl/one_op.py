"""Graphs of one op for tests of kernels, and what they have to give."""

from __future__ import annotations

import numpy as np
from op_samples import close

from mnnconvert.ir import Builder, Graph
from mnnconvert.ops.pooling import Pooling
from mnnconvert.runtime_ref.session import Session


def graph_of(op, x, *constants, maps=False):
    """The op on x, or on arrays of a list, and on constants; and what to feed.

    With `maps` the operands lie with channels last: a pooling over single pixels has made them.
    """
    builder, feeds, values = Builder(Graph()), {}, []
    for i, array in enumerate(x if isinstance(x, list) else [x]):
        feeds[f"x{i}"] = array
        value = builder.input(f"x{i}", array.dtype, array.shape)
        values.append(builder.add(Pooling("AVEPOOL"), value, name=f"m{i}") if maps else value)
    values += [builder.constant(np.asarray(c), f"c{i}") for i, c in enumerate(constants)]
    results = op.infer(*(v.spec for v in values))
    names = [f"y{i}" for i in range(len(results) if isinstance(results, tuple) else 1)]
    for value in builder.add(op, *values, names=names):
        builder.output(value)
    return builder.graph, feeds


def check(op, x, *constants, maps=False, bound=1e-5, **options):
    """The op gives what its definition does, with a kernel, twice to the same bit; returns the session."""
    graph, feeds = graph_of(op, x, *constants, maps=maps)
    session = Session(graph, "opencl", **options)
    with np.errstate(all="ignore"):
        want = Session(graph, "reference").run(feeds)
    one, again = session.run(feeds), session.run(feeds)
    for name, array in want.items():
        assert one[name].dtype == array.dtype and one[name].shape == array.shape
        assert close(one[name], array, bound), name
        assert one[name].tobytes() == again[name].tobytes()
    assert session.fallbacks == {}
    return session


def kernels(session, feeds):
    """The kernels that a run takes, by their names."""
    return [t.kernel for t in session.profile(feeds)]
