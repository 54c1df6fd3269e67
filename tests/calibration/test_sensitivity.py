"""Which layers go back to floats: the order is that of their noise alone, the number that of the noise together."""

from pathlib import Path

import pytest

from mnnconvert.calibration.sensitivity import Sensitivity

NAMES = [f"layer{i}" for i in range(10)]
ALONE = {name: 1.0 / (i + 1) for i, name in enumerate(NAMES)}


class Told(Sensitivity):
    """Sensitivity whose noises are given: of single layers, and of all but the first 0, 1, 2."""

    def __init__(self, together):
        super().__init__(Path(), dict.fromkeys(NAMES), (), ())
        self.together = together

    def noise(self, in_floats):
        if len(in_floats) == len(NAMES) - 1:
            return ALONE[next(iter(set(NAMES) - set(in_floats)))]
        assert list(in_floats) == NAMES[: len(in_floats)]
        return self.together[len(in_floats)]


@pytest.mark.parametrize(
    ("together", "count"),
    [
        ((0.01, None, None), 0),  # good enough as it is
        ((0.9, 0.04, None), 1),  # one layer was all of it
        ((0.9, 1.4, 0.03), 2),  # worse at first
        ((0.9, 0.5, 0.7), 1),  # never good enough: the least noise
        ((0.9, 1.4, 1.1), 0),  # only worse
    ],
)
def test_no_more_layers_than_help(together, count):
    assert Told(together).worst(0.05, lambda fraction: None) == NAMES[:count]
