"""TorchScript: control flow, lists, attributes, writing in place, numbers as inputs, and what cannot be followed."""

from __future__ import annotations

import numpy as np
import pytest
from torch_cases import check, refusal, save, torch

import mnnconvert
from mnnconvert.options import ConversionOptions
from mnnconvert.schema.reader import read_model

nn = torch.nn


class Loop(nn.Module):
    """D12."""

    def forward(self, x, y, n: int):
        for _ in range(n):
            y = y * 0.5 + x
        if y.sum() > 0:
            y = -y
        return y


@pytest.mark.parametrize("engine", ["mnnconvert", "mnn"])
def test_a_loop_of_as_many_steps_as_an_input_says(engine, tmp_path, rng):
    path = save(Loop(), (), "scripted", tmp_path)
    check(path, mnn=False, input_shape={"x": (4,), "y": (4,)})
    for n in (0, 1, 5):
        feeds = {"x": rng.standard_normal(4, np.float32), "y": rng.standard_normal(4, np.float32), "n": np.array(n)}
        result = mnnconvert.verify(path, path.with_suffix(".mnn"), feeds, engine=engine)
        assert result.passed, (n, result.lines())


@pytest.mark.parametrize("form", ["traced", "program"])
def test_a_gru_in_both_directions(form, tmp_path):
    """D11: both outputs, batch first."""
    check(save(nn.GRU(3, 4, batch_first=True, bidirectional=True), (torch.ones(2, 6, 3),), form, tmp_path))


class InPlace(nn.Module):
    """D14: the second output is the unchanged operand."""

    def forward(self, x):
        y = x.clone()
        y[:, 1:3] += 1
        y.relu_()
        return y, x


class InPlaceOnInput(nn.Module):
    def forward(self, x):
        x[0] = x[1] * 2
        x.mul_(3)
        return x


@pytest.mark.parametrize("module", [InPlace(), InPlaceOnInput()], ids=["clone", "input"])
@pytest.mark.parametrize("form", ["traced", pytest.param("scripted", marks=pytest.mark.slow), "program"])
def test_writing_in_place(module, form, tmp_path):
    told = form == "program" or (form == "traced" and isinstance(module, InPlace))  # a changed input keeps no sizes
    sizes = {} if told else {"input_shape": {"x": (3, 5)}}
    check(save(module, (torch.ones(3, 5),), form, tmp_path), **sizes)


@pytest.mark.parametrize("form", ["traced", "program", 18, 19])
def test_average_pooling_with_a_ceiled_size(form, tmp_path):
    """D15: through torch, and through ONNX of an opset, the same."""
    module, inputs = nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=True), (torch.ones(1, 1, 4, 4),)
    if isinstance(form, int):
        path = tmp_path / "m.onnx"
        torch.onnx.export(module, inputs, path, opset_version=form, dynamo=False, input_names=["input"])
    else:
        path = save(module, inputs, form, tmp_path)
    check(path)
    x = np.arange(1, 17, dtype=np.float32).reshape(1, 1, 4, 4)
    (y,) = mnnconvert.load(path.with_suffix(".mnn")).run({"input": x}).values()
    np.testing.assert_allclose(y.reshape(-1), [14 / 9, 10 / 3, 2, 19 / 3, 11, 6, 4.5, 7.5, 4], rtol=1e-5)


class While(nn.Module):
    """A loop that the data ends, with a decision on a flag inside its condition."""

    def __init__(self):
        super().__init__()
        self.step = nn.Linear(4, 4)

    def forward(self, x):
        count = 0
        while x.sum() < 10 and count < 20:
            x = torch.relu(self.step(x)) + 1
            count += 1
        return x, count


class Lists(nn.Module):
    """Lists that grow, an unpacked tuple, a dict, an optional input that is left out, an early return."""

    def forward(self, x, scale: float = 2.0, mask: torch.Tensor | None = None):
        parts = []
        for i in range(x.size(0)):
            if i % 2 == 0:
                continue
            parts.append(x[i] * i)
        first, second = torch.stack(parts).sum(0), len(parts)
        if mask is not None:
            first = first * mask
        named = {"a": first * scale, "b": x.mean(0)}
        if x.dim() == 3:
            return named["a"]
        return named["a"] + named["b"] * second


class Nested(nn.Module):
    """Decisions inside decisions, and a loop inside of one."""

    def forward(self, x):
        if x[0, 0] > 0:
            if x[0, 1] > 0:
                y = x * 2
            else:
                y = x - 1
            for _ in range(3):
                y = y * 0.5
        else:
            y = x.abs()
        return y + 1


class Counter(nn.Module):
    """A buffer that every call changes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x):
        self.seen = self.seen + x
        return self.seen * 2


@pytest.mark.parametrize(
    ("module", "sizes"),
    [(While(), (2, 4)), (Lists(), (6, 3)), (Nested(), (2, 3)), (Nested(), (0, 3))],
    ids=["while", "lists", "nested", "nested, open size"],
)
def test_control_flow(module, sizes, tmp_path):
    check(save(module, (), "scripted", tmp_path), input_shape={"x": sizes})


class CondProgram(nn.Module):
    def forward(self, x):
        def add(y):
            return y + 1, y.sum()

        def mul(y):
            return y * 2, y.mean()

        return torch.cond(x.sum() > 0, add, mul, (x,))


class WhileProgram(nn.Module):
    def __init__(self):
        super().__init__()
        self.step = nn.Linear(3, 3)

    def forward(self, count, x):
        from torch._higher_order_ops.while_loop import while_loop

        def condition(count, x):
            return count > 0

        def body(count, x):
            return count - 1, torch.tanh(self.step(x)) + x

        return while_loop(condition, body, (count, x))


@pytest.mark.parametrize(
    ("module", "inputs"),
    [(CondProgram(), (torch.ones(2, 3),)), (WhileProgram(), (torch.tensor(3), torch.ones(2, 3)))],
    ids=["cond", "while"],
)
def test_control_flow_of_a_program(module, inputs, tmp_path):
    check(save(module, inputs, "program", tmp_path))


@pytest.mark.parametrize("form", ["scripted", "program"])
def test_state_starts_anew_and_is_said_to(form, tmp_path):
    sizes = {"input_shape": {"x": (3,)}} if form == "scripted" else {}
    report = check(save(Counter(), (torch.ones(3),), form, tmp_path), **sizes)
    assert "state-forgotten" in [d.reference for d in report.diagnostics]


def test_numbers_can_be_bound(tmp_path):
    path = save(Loop(), (), "scripted", tmp_path)
    report = check(path, mnn=False, input_shape={"x": (4,), "y": (4,)}, input_value="n:3")
    assert [i.name for i in mnnconvert.load(report.target).inputs] == ["x", "y"]


def test_types_of_inputs_can_be_said(tmp_path):
    path = save(nn.Embedding(9, 4), (), "scripted", tmp_path)
    check(path, mnn=False, input_shape={"input": (2, 3)}, input_type="input:int64")


def test_a_trace_keeps_its_sizes_and_can_be_given_others(tmp_path):
    path = save(nn.Conv2d(3, 4, 3), (torch.ones(1, 3, 8, 8),), "traced", tmp_path)
    check(path)
    report = check(path, input_shape={"input": (0, 3, 0, 9)})
    assert mnnconvert.load(report.target).inputs[0].shape[1::2] == (3, 9)


class Raises(nn.Module):
    def forward(self, x):
        if x.size(0) != 2:
            raise ValueError("two rows please")
        if x.sum() > 1e9:
            raise ValueError("too much")
        return x * 2


def test_an_exception_that_is_reached_is_told_and_one_that_data_decides_on_is_not_taken(tmp_path):
    path = save(Raises(), (), "scripted", tmp_path)
    check(path, mnn=False, input_shape={"x": (2, 3)})
    (problem,) = refusal(path, input_shape={"x": (3, 3)})
    assert problem.reference == "torch-export-failed" and "two rows please" in problem.message


class Packs(nn.Module):
    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return packed.data


class Grows(nn.Module):
    def forward(self, x, n: int):
        for _ in range(n):
            x = torch.cat([x, x])
        return x


@pytest.mark.parametrize(
    ("module", "options", "reference", "said"),
    [
        (Loop(), {"input_shape": {"x": (4,)}}, "open-size", "'y'"),
        (Loop(), {"input_shape": {"z": (4,)}}, "unknown-input", "'z'"),
        (Loop(), {"input_value": "n:x"}, "bad-option-value", "NAME:NUMBER"),
        (Loop(), {"input_type": "x:text"}, "unsupported-type", "text"),
        (Grows(), {"input_shape": {"x": (4,)}}, "torch-export-failed", ""),
        (Loop(), {"input_shape": {"x": (4,), "y": (4,)}, "input_value": "n:99999"}, "too-large", "50"),
    ],
    ids=["sizes", "name", "value", "type", "growing", "endless"],
)
def test_what_cannot_be_followed(module, options, reference, said, tmp_path, monkeypatch):
    monkeypatch.setattr("mnnconvert.frontends.torch.script_control.MOST_STEPS", 50)
    problem = refusal(save(module, (), "scripted", tmp_path), **options)[0]
    assert problem.reference == reference and said in problem.message


class Rated(nn.Module):
    """A number decides sizes, and what is computed."""

    def forward(self, x, rate: int):
        window = 4 if rate == 16000 else 2
        return x.unfold(1, window, window).mean(2) * (rate / 1000)


def test_a_file_knows_what_its_inputs_were_bound_to(tmp_path):
    """It is verified, also layer by layer and step by step, without the options of its conversion being repeated."""
    path = save(Rated(), (), "scripted", tmp_path)
    check(path, input_shape={"x": (1, 8)}, input_value="rate:16000")
    assert read_model(path.with_suffix(".mnn")).metadata["bound/rate"] == "16000"
    result = mnnconvert.verify(path, path.with_suffix(".mnn"), per_layer=True, bisect=True)
    assert result.passed and result.layers.first_bad is None and not result.bisection.culprit
    options = ConversionOptions.from_keywords(model_file=str(path), input_value="rate:8000", framework="TORCH")
    assert not mnnconvert.verify(path, path.with_suffix(".mnn"), options=options).passed
