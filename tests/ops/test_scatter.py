"""Scattering into data that do not lie in the order of their axes."""

from __future__ import annotations

import numpy as np
import pytest

from mnnconvert.ops.scatter import ScatterElements, ScatterNd


@pytest.mark.parametrize("order", ["C", "F"])
def test_the_order_in_memory_does_not_matter(order):
    data = np.asarray(np.arange(12, dtype=np.float32).reshape(3, 4), order=order)
    shape, row = np.array([3, 4], np.int32), np.full((1, 4), -1, np.float32)
    want = data.copy()
    want[1] = -1
    np.testing.assert_array_equal(ScatterNd().ref(np.array([[1]], np.int32), row, shape, data), want)
    ones = np.ones((1, 4), np.int32)
    np.testing.assert_array_equal(ScatterElements().ref(data, ones, row, np.array(0, np.int32)), want)
