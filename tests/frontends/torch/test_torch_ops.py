"""Operators of torch against torch, with the samples of torch's own tests: right, or refused as the page says."""

from __future__ import annotations

import re

import pytest
from op_coverage import PAGE, SAMPLES, TABLE, page, table
from torch_samples import Row, measure, operators

import mnnconvert.api

pytestmark = pytest.mark.filterwarnings("ignore")

QUICK = [
    "div.floor_rounding", "where", "clamp", "cumsum", "cummax", "sort", "scatter_add", "slice_scatter", "index_put",
    "einsum", "matmul", "std_mean", "unfold", "masked_select",
]  # fmt: skip
FUNCTIONAL = [
    "conv2d", "conv_transpose2d", "avg_pool2d", "adaptive_max_pool2d", "layer_norm", "pad.reflect",
    "scaled_dot_product_attention", "interpolate.bicubic", "grid_sample",
]  # fmt: skip
INFOS = dict(operators())
PARTS = 24


def refused_on_the_page() -> dict[str, int]:
    """How many samples of an operator are refused, by name."""
    rows = re.findall(r"^\| ([^|]+) \| (\d*) \| (\d*) \| .* \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {name: int(refused or 0) for name, _, refused in rows}


def is_as_the_page_says(name: str, refused: dict[str, int]) -> None:
    row = measure(name, INFOS[name], SAMPLES)
    if row is None:
        return
    assert row.mistakes == [], f"{name}: {row.mistakes}"
    assert row.refused <= refused.get(name, 0), f"{name}: {row.refusals}"


@pytest.mark.parametrize("name", QUICK + [f"nn.functional.{name}" for name in FUNCTIONAL])
def test_an_operator(name):
    is_as_the_page_says(name, refused_on_the_page())


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_all_operators(part):
    refused = refused_on_the_page()
    for name in list(INFOS)[part::PARTS]:
        is_as_the_page_says(name, refused)


def test_nothing_on_the_page_is_wrong():
    text = PAGE.read_text(encoding="utf-8")
    assert "wrong:" not in text and re.search(r"^\| \d+ \| \d+ \| \d+ \| \d+ \| 0 \|$", text, re.MULTILINE)


def test_the_table_of_the_package():
    rows = mnnconvert.api.supported_ops("TORCH")
    names = {row["name"] for row in rows}
    assert len(names) == len(rows) == len(TABLE.read_text(encoding="utf-8").splitlines()) - 1 > 250
    assert {"aten::add.Tensor", "aten::conv2d", "aten::scaled_dot_product_attention", "aten::add_.Tensor"} <= names


def test_a_page_is_made_of_rows():
    """The counts, what is said, and the table, from three rows."""
    rows = [
        Row("add", 3, 0, 0, {"aten::add.Tensor", "aten::clone"}),
        Row("gcd", 0, 2, 0, set(), {"unsupported-op: no <float>"}),
        Row("sort", 1, 1, 0, {"aten::sort"}, {"unsupported-type: complex"}),
    ]
    text = page(rows)
    assert "| 3 | 7 | 4 | 3 | 0 |" in text and "| gcd |  | 2 | unsupported-op: no &lt;float> |" in text
    assert table(rows).splitlines()[1:] == [
        "aten::add.Tensor", "aten::clone", "aten::sort\tnot all forms, see docs/torch-operators.md",
    ]  # fmt: skip
