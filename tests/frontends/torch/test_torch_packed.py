"""Packed sequences of traces: lengths stay data, and steps behind the end of a sequence change nothing."""

from __future__ import annotations

import numpy as np
import pytest
from torch_cases import TOLERANCE, refusal, save, torch

import mnnconvert
from mnnconvert.verify.mnn_engine import MnnEngine

nn = torch.nn
rnn = torch.nn.utils.rnn


class Reader(nn.Module):
    """A recurrent network over sequences of several lengths, and what a head makes of their last states."""

    def __init__(self, kind, batch_first=True, sorted=False, value=0.0, **more):
        super().__init__()
        self.rnn = kind(5, 6, batch_first=batch_first, **more)
        self.head = nn.Linear(6, 3)
        self.batch_first, self.sorted, self.value = batch_first, sorted, value

    def forward(self, x, lengths):
        packed = rnn.pack_padded_sequence(x, lengths, batch_first=self.batch_first, enforce_sorted=self.sorted)
        y, last = self.rnn(packed)
        y, count = rnn.pad_packed_sequence(y, batch_first=self.batch_first, padding_value=self.value)
        states = last if isinstance(last, tuple) else (last,)
        return y, count, self.head(states[0][-1]), *states[1:]


READERS = {
    "lstm": lambda: Reader(nn.LSTM),
    "lstm, both ways, two layers, steps first": lambda: Reader(nn.LSTM, False, num_layers=2, bidirectional=True),
    "gru, both ways": lambda: Reader(nn.GRU, bidirectional=True, value=-1.5),
    "gru, without bias, sorted": lambda: Reader(nn.GRU, sorted=True, bias=False),
    "rnn": lambda: Reader(nn.RNN, nonlinearity="relu"),
}


@pytest.mark.parametrize("name", READERS)
def test_sequences_of_several_lengths(name, tmp_path):
    torch.manual_seed(0)
    module = READERS[name]()
    x = torch.randn(*((3, 7, 5) if module.batch_first else (7, 3, 5)))
    path = save(module, (x, torch.tensor([7, 5, 2])), "traced", tmp_path)
    mnnconvert.convert(path, tmp_path / "m.mnn", verify="never")
    engines = [mnnconvert.load(tmp_path / "m.mnn"), *([MnnEngine(tmp_path / "m.mnn")] if MnnEngine.available() else [])]
    for lengths in ([7, 5, 2], [6, 4, 1]) if module.sorted else ([2, 7, 4], [1, 3, 5]):
        want = module(x, torch.tensor(lengths))
        for engine in engines:
            got = engine.run({"x": x.numpy(), "lengths": np.array(lengths, np.int64)})
            for result, array in zip(want, got.values(), strict=True):
                expected = result.detach().numpy()
                np.testing.assert_allclose(array, expected, atol=TOLERANCE * np.abs(expected).max())


def test_they_are_proved_and_compared_layer_by_layer(tmp_path):
    path = save(READERS["lstm"](), (torch.randn(3, 7, 5), torch.tensor([7, 5, 2])), "traced", tmp_path)
    report = mnnconvert.convert(path, tmp_path / "m.mnn", verify="always")
    assert report.verification is not None and report.verification.passed
    inputs = {"x": np.ones((3, 7, 5), np.float32), "lengths": np.array([2, 6, 1])}
    result = mnnconvert.verify(path, tmp_path / "m.mnn", inputs=inputs, per_layer=True)
    assert result.passed and result.layers.first_bad is None and result.layers.layers


class Packs(nn.Module):
    def forward(self, x, lengths):
        packed = rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return rnn.pad_packed_sequence(packed._replace(data=packed.data.tanh()), batch_first=True)[0]


def test_other_work_on_packed_data_is_refused(tmp_path):
    path = save(Packs(), (torch.randn(3, 7, 5), torch.tensor([7, 5, 2])), "traced", tmp_path)
    (problem,) = refusal(path)
    assert problem.reference == "unsupported-op" and "aten::tanh" in problem.message


def test_a_module_with_packed_sequences_is_refused_with_the_way_out(tmp_path):
    inputs = torch.randn(3, 7, 5), torch.tensor([7, 5, 2])
    with pytest.raises(mnnconvert.ConversionError) as caught:
        mnnconvert.convert(READERS["rnn"](), tmp_path / "m.mnn", example_inputs=inputs)
    (problem,) = caught.value.diagnostics
    assert problem.reference == "torch-export-failed" and "torch.jit.trace" in problem.hint
