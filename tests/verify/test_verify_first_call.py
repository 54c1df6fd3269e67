"""A reference that is handed keys and values, beside a candidate that keeps them."""

from __future__ import annotations

import numpy as np
import pytest

from mnnconvert.verify.engines import TensorInfo
from mnnconvert.verify.first_call import FirstCall, at_first_call

F32 = np.dtype("float32")


class Decoder:
    """Gives back what it was fed, as `fed`, and the longer keys."""

    name, exact_kinds, notes = "decoder", True, ()

    def __init__(self, inputs, outputs=("y",)):
        self.inputs = [TensorInfo(name, F32, shape) for name, shape in inputs.items()]
        self.outputs = [TensorInfo(name, F32, None) for name in outputs]
        self.fed = {}

    def run(self, feeds):
        self.fed = dict(feeds)
        return {info.name: np.zeros(1, F32) for info in self.outputs}


OWN = {"x": ("n", "s"), "mask": ("n", "past + s")}
PASTS = {"k": ("n", 2, "past", 8), "v": ("n", 2, "past", 8)}


def test_the_past_is_empty_and_sizes_are_those_of_the_first_call():
    reference = Decoder({**OWN, **PASTS}, ("y", "longer"))
    paired = at_first_call(reference, Decoder(OWN))
    assert isinstance(paired, FirstCall)
    assert [(info.name, info.shape) for info in paired.inputs] == [("x", ("n", "s")), ("mask", ("n", "s"))]
    assert [info.name for info in paired.outputs] == ["y"]
    assert list(paired.run({"x": np.ones((3, 5), F32), "mask": np.ones((3, 5), F32)})) == ["y"]
    assert {name: reference.fed[name].shape for name in PASTS} == {"k": (3, 2, 0, 8), "v": (3, 2, 0, 8)}
    assert "k, v: empty here" in paired.notes[0]


def test_one_new_position_stays_a_number():
    sizes = {"x": (1, 1), "mask": (1, "past + 1")}
    paired = at_first_call(Decoder({**sizes, **PASTS}), Decoder(sizes))
    assert paired.inputs[1].shape == (1, 1)


OTHERS = {
    "nothing is lacking": {},
    "another kind of input": {"k": ("n", 8)},
    "a length that another input has": {"k": ("n", 2, "s", 8)},
    "a fixed length": {"k": ("n", 2, 4, 8)},
}


@pytest.mark.parametrize("other", OTHERS)
def test_any_other_reference_is_taken_as_it_is(other):
    reference = Decoder({**OWN, **OTHERS[other]})
    assert at_first_call(reference, Decoder(OWN)) is reference
