"""A measure of one's own for a gate: it is given the outputs of source and file by name, and gives a number."""

import numpy as np


def largest_error(expected: dict[str, np.ndarray], got: dict[str, np.ndarray]) -> float:
    """The largest difference relative to the largest value, over all outputs."""
    return max(float(np.abs(got[name] - want).max() / np.abs(want).max()) for name, want in expected.items())
