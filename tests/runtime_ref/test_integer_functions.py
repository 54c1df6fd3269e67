"""Functions of integers that have no kernel for them run by their definition, alone and in chains."""

from __future__ import annotations

import numpy as np
import pytest

from mnnconvert.ir import I32, Builder, Graph
from mnnconvert.ops.elementwise import UNARY, Unary
from mnnconvert.runtime_ref.session import Session


@pytest.fixture(params=["cpu", "opencl"])
def backend(request):
    if request.param == "opencl":
        request.getfixturevalue("opencl_device")
    return request.param


@pytest.mark.parametrize("function", sorted(UNARY))
def test_every_function_takes_integers(function, backend):
    builder = Builder(Graph())
    x = builder.input("x", I32, (3, 5))
    squares = builder.add(Unary("SQUARE"), x)
    y = builder.add(Unary(function), squares)
    builder.output(builder.add(Unary("NEG"), y, name="y"))
    feeds = {"x": np.arange(-7, 8, dtype=np.int32).reshape(3, 5)}
    want = Session(builder.graph, "reference").run(feeds)["y"]
    np.testing.assert_array_equal(Session(builder.graph, backend).run(feeds)["y"], want)
