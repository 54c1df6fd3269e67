"""Networks of the usual kinds with seeded weights, as scripts and as programs, in both executors."""

from __future__ import annotations

import numpy as np
import pytest
from torch_cases import check, save, torch

import mnnconvert

nn = torch.nn


class Residual(nn.Module):
    def __init__(self, narrow: int, wide: int, stride: int):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(narrow, wide, 3, stride, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU(inplace=True),
            nn.Conv2d(wide, wide, 3, 1, 1, bias=False), nn.BatchNorm2d(wide),
        )  # fmt: skip
        self.skip = nn.Sequential(nn.Conv2d(narrow, wide, 1, stride, bias=False), nn.BatchNorm2d(wide))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.main(x) + self.skip(x))


def resnet():
    layers = [nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    layers += [Residual(8, 8, 1), Residual(8, 16, 2), Residual(16, 24, 2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10))


class Vit(nn.Module):
    """Patches, a class token, and the encoder that torch ships."""

    def __init__(self, width: int = 32):
        super().__init__()
        self.patch = nn.Conv2d(3, width, 8, 8)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, 17, width))
        layer = nn.TransformerEncoderLayer(width, 4, 64, activation="gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, image):
        x = self.patch(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.position
        return self.head(self.encoder(x)[:, 0])


class Tagger(nn.Module):
    """Words -> two layers of LSTM in both directions -> tags; the state is given back too."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 12)
        self.lstm = nn.LSTM(12, 8, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, 5)

    def forward(self, words):
        x, (h, c) = self.lstm(self.table(words))
        return {"tags": self.head(x).log_softmax(-1), "state": (h, c)}


class Block(nn.Module):
    """A decoder block: causal attention with fewer heads for keys than for queries, RMS norms, a gated product."""

    def __init__(self, width: int = 32):
        super().__init__()
        self.norms = nn.ModuleList([nn.RMSNorm(width), nn.RMSNorm(width)])
        self.q, self.kv, self.o = nn.Linear(width, width), nn.Linear(width, 16), nn.Linear(width, width)
        self.gate, self.up, self.down = nn.Linear(width, 48), nn.Linear(width, 48), nn.Linear(48, width)

    def forward(self, x):
        b, n, w = x.shape
        y = self.norms[0](x)
        q = self.q(y).view(b, n, 4, 8).transpose(1, 2)
        k, v = (z.view(b, n, 1, 8).transpose(1, 2) for z in self.kv(y).chunk(2, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, n, w))
        y = self.norms[1](x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class Halving(nn.Module):
    """A loop over the rows of a parameter, and a decision on the numbers."""

    def __init__(self):
        super().__init__()
        self.steps = nn.ModuleList([nn.Linear(6, 6) for _ in range(3)])

    def forward(self, x, count: int):
        for step in self.steps:
            x = torch.tanh(step(x))
        for _ in range(count):
            x = x * 0.5 + 1
        if x.mean() > 1:
            x = -x
        return x


PICTURE = (torch.ones(2, 3, 32, 32),)
NETS = {
    "resnet": (resnet, PICTURE, ("traced", "scripted", "program"), {0: torch.export.Dim("batch")}),
    "vit": (Vit, PICTURE, ("traced", "program"), {0: torch.export.Dim("batch")}),
    "tagger": (Tagger, (torch.ones(2, 7, dtype=torch.int64),), ("program",), {0: torch.export.Dim("batch")}),
    "block": (Block, (torch.ones(2, 5, 32),), ("traced", "program"), {1: torch.export.Dim("n", min=2)}),
}
QUICK = {("resnet", "traced"), ("resnet", "scripted"), ("vit", "program"), ("block", "traced")}
FIXED = [
    pytest.param(name, form, marks=() if (name, form) in QUICK else pytest.mark.slow)
    for name, (_, _, forms, _) in NETS.items() for form in forms
]  # fmt: skip


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.mark.parametrize(("name", "form"), FIXED)
def test_a_net_of_fixed_sizes(name, form, tmp_path):
    build, inputs, _, _ = NETS[name]
    keywords = {} if form != "scripted" else {"input_shape": {"input": (2, 3, 32, 32)}}
    check(save(build(), inputs, form, tmp_path), **keywords)


@pytest.mark.parametrize(
    "name", ["tagger", "block", *(pytest.param(n, marks=pytest.mark.slow) for n in ("resnet", "vit"))]
)
def test_a_program_keeps_its_open_sizes(name, tmp_path):
    build, inputs, _, axes = NETS[name]
    report = check(save(build(), inputs, "program", tmp_path, (axes,)))
    assert report.verification is not None and len(report.verification.runs) == 2


def test_a_trace_of_a_dict_of_outputs(tmp_path):
    path = tmp_path / "m.pt"

    class Named(nn.Module):
        def forward(self, x):
            return {"twice": x * 2, "sum": x.sum(-1)}

    torch.jit.trace(Named(), (torch.ones(2, 7),), strict=False).save(str(path))
    check(path)


def test_a_script_with_loops_and_a_decision(tmp_path):
    report = check(save(Halving(), (), "scripted", tmp_path), input_shape={"x": (0, 6)})
    assert report.verification is not None and len(report.verification.runs) == 2


class Attends(nn.Module):
    """Attention of rank 3 with a mask for each entry, then of rank 2, whose rows are sorted."""

    def forward(self, q, k, mask):
        y = nn.functional.scaled_dot_product_attention(q, k, k, attn_mask=mask)
        z = nn.functional.scaled_dot_product_attention(y[0], k[0], k[1], is_causal=True)
        return z.sort(-1, descending=True).values


@pytest.mark.parametrize("form", ["traced", "program"])
def test_attention_without_an_axis_of_heads(form, tmp_path):
    check(save(Attends(), (torch.randn(2, 5, 8), torch.randn(2, 6, 8), torch.randn(2, 5, 6)), form, tmp_path))


class Sorts(nn.Module):
    def forward(self, x):
        return (
            torch.sort(x, stable=True, dim=-1, descending=True)[1],
            torch.argsort(x, stable=True),
            x.sort(stable=True, dim=0)[0],
        )


def test_stable_sorts_keep_the_order_of_equal_values(tmp_path):
    path = save(Sorts(), (torch.zeros(4, 9),), "program", tmp_path)
    check(path)
    x = np.random.default_rng(0).integers(0, 3, (4, 9)).astype(np.float32)
    found = mnnconvert.load(path.with_suffix(".mnn")).run({"x": x}).values()
    for got, want in zip(found, Sorts()(torch.from_numpy(x)), strict=True):
        np.testing.assert_array_equal(got, want.numpy())


class Projected(nn.Module):
    """An LSTM whose states are projected, both ways and in two layers, from states that are given."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(5, 6, 2, proj_size=3, bidirectional=True, batch_first=True)

    def forward(self, x, h, c):
        y, (h, c) = self.rnn(x, (h, c))
        return y, h, c


@pytest.mark.parametrize("form", ["traced", "program"])
def test_projected_states(form, tmp_path):
    check(save(Projected(), (torch.randn(2, 4, 5), torch.randn(4, 2, 3), torch.randn(4, 2, 6)), form, tmp_path))
