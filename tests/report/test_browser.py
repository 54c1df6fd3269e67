"""Pages in headless Chromium: they open quickly, fit a telephone, work by keyboard, and their script makes no error.

A copy of the page gets a second script, which does what a person would and leaves what it saw in the document.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest
from model_files import network
from pages import branches, deep_model

import mnnconvert
from mnnconvert.report import write_page
from mnnconvert.report.content import of_model

CHROMIUM = next((p for name in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(name))), None)
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
         "--disable-background-networking", "--disable-component-update", "--hide-scrollbars")  # fmt: skip
OPENED = 2000  # ms until everything is drawn
NARROWEST = 500  # pixels: windows are never narrower, but frames in them are

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (apt-get install chromium)"),
]

# Without a window there are no frames, so that a timer has to stand for them.
BEFORE = """<script>
window.seen = {errors: []};
addEventListener("error", (event) => seen.errors.push(event.message));
window.requestAnimationFrame = (work) => setTimeout(work, 16);
</script>"""
AFTER = """<script>
addEventListener("load", () => setTimeout(() => {{
  const $ = (query) => document.querySelector(query), all = (query) => [...document.querySelectorAll(query)];
  seen.boxes = all("#canvas .box").length;
  seen.width = innerWidth; seen.scroll = document.documentElement.scrollWidth;
  seen.opened = performance.now();
  seen.loaded = performance.getEntriesByType("resource").length;
  const press = (key) =>
    $("#canvas").dispatchEvent(new KeyboardEvent("keydown", {{key, bubbles: true, cancelable: true}}));
  const chosen = () => $("#details h3")?.textContent ?? "";
  const finish = () => {{
    const note = document.createElement("pre"); note.id = "seen"; note.textContent = JSON.stringify(seen);
    parent.document.body.append(note);
  }};
  const steps = [{steps}];
  const walk = () => {{ const step = steps.shift(); if (!step) return finish(); step(); setTimeout(walk, 40); }};
  walk();
}}, 40));
</script>"""


def watch(
    page: Path, folder: Path, steps: str = "", *, width: int = 1300, dark: bool = False, fragment: str = ""
) -> dict[str, Any]:
    """What the second script saw in a window of this width (pixels)."""
    text = (
        page.read_text()
        .replace("<head>", f"<head>{BEFORE}", 1)
        .replace("</body>", AFTER.format(steps=steps) + "</body>")
    )
    if width < NARROWEST:
        text = f'<!doctype html><iframe srcdoc="{escape(text)}" width="{width}" height="800"></iframe>'
    copy = folder / "watched.html"
    copy.write_text(text)
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    words = [str(CHROMIUM), *FLAGS, *scheme, f"--user-data-dir={folder / 'chromium'}", f"--window-size={width},900",
             "--timeout=20000", "--virtual-time-budget=10000", "--dump-dom", copy.as_uri() + fragment]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr[-2000:]
    return dict(json.loads(unescape(found[1])))


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    network(folder / "m.onnx")
    mnnconvert.convert(folder / "m.onnx", folder / "m.mnn", weight_bits=4, weight_block=32, html=folder / "m.html")
    return folder / "m.html"


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deep")
    write_page(of_model(deep_model(folder / "m.onnx", 500)), folder / "m.html")
    return folder / "m.html"


def test_a_page_of_1500_layers_opens_at_once(deep: Path, tmp_path: Path) -> None:
    seen = min((watch(deep, tmp_path) for _ in range(2)), key=lambda each: each["opened"])
    assert seen["errors"] == []
    assert seen["opened"] < OPENED
    assert 0 < seen["boxes"] < 60  # what can be seen, not all


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [375, 800, 1300])
def test_nothing_is_wider_than_the_window(converted: Path, tmp_path: Path, width: int, dark: bool) -> None:
    seen = watch(converted, tmp_path, "() => { seen.back = getComputedStyle(document.body).backgroundColor; }",
                 width=width, dark=dark)  # fmt: skip
    assert (seen["errors"], seen["width"], seen["loaded"]) == ([], width, 0)
    assert seen["scroll"] <= width
    assert seen["back"] == ("rgb(16, 20, 26)" if dark else "rgb(246, 247, 249)")


def test_the_graph_can_be_walked_by_keys(deep: Path, tmp_path: Path) -> None:
    steps = """
        () => press("Home"), () => { seen.first = chosen(); },
        () => press("ArrowDown"), () => press("ArrowDown"),
        () => { seen.third = chosen(); seen.hash = location.hash; },
        () => press("ArrowUp"), () => { seen.second = chosen(); },
        () => press("End"),
        () => { seen.last = chosen(); seen.on = all("#canvas .box.on").length; seen.top = $("#canvas").scrollTop; }"""
    seen = watch(deep, tmp_path, steps)
    assert seen["errors"] == []
    assert (seen["first"], seen["second"]) == ("x", "body/block.0/product")
    assert (seen["third"], seen["hash"]) == ("body/block.0/relu", "#layer-1")
    assert seen["last"] == "body/block.499/sum" and seen["on"] == 1 and seen["top"] > 10_000


def test_layers_are_found_sorted_and_described(converted: Path, tmp_path: Path) -> None:
    steps = """
        () => { $("#find").value = "convolution"; $("#find").dispatchEvent(new Event("input")); },
        () => { seen.found = all("#layers-table tbody tr").filter((row) => !row.hidden).length;
                seen.hits = all("#canvas .box.hit").length;
                $("#find").value = ""; $("#find").dispatchEvent(new Event("input")); },
        () => $("#layers-table thead th:nth-child(6) button").click(),
        () => $("#layers-table thead th:nth-child(6) button").click(),
        () => { seen.sort = $("#layers-table thead th:nth-child(6)").getAttribute("aria-sort");
                seen.sizes = all("#layers-table tbody tr").map((row) => Number(row.cells[5].dataset.v ?? -1)); },
        () => $("#layers-table tbody tr a").click(),
        () => { seen.name = chosen(); seen.terms = all("#details dt").map((term) => term.textContent);
                seen.pictures = all("#details svg path").length;
                seen.selected = all('tr[aria-selected="true"]').length; },
        () => $("#worst").click(),
        () => { seen.worst = chosen(); seen.level = $("#canvas .box.on .stripe").className.baseVal; },
        () => { $("#simplify").click(); }, () => { seen.all = all("#canvas .box").length; }"""
    seen = watch(converted, tmp_path, steps)
    assert seen["errors"] == []
    assert seen["found"] == 2 and seen["hits"] >= 1
    assert seen["sort"] == "descending"
    assert seen["sizes"] == sorted(seen["sizes"], reverse=True) and seen["sizes"][0] > 0
    assert seen["name"].endswith("__matmul_converted")
    assert {"Computes", "Stored as", "Before", "Weight"} <= set(seen["terms"])
    assert seen["pictures"] == 2 and seen["selected"] == 1
    assert seen["worst"] and seen["level"] in ("stripe l2", "stripe l3", "stripe l4")
    assert seen["all"] > seen["boxes"]


def test_layers_inside_of_graphs_are_drawn_when_chosen(tmp_path: Path) -> None:
    write_page(of_model(branches(tmp_path / "m.onnx")), tmp_path / "m.html")
    steps = """
        () => $("#layer-2 a").click(), () => { seen.flow = $("#flow").value; seen.name = chosen();
        seen.on = all("#canvas .box.on .name").map((name) => name.textContent); },
        () => { $("#flow").value = "0"; $("#flow").dispatchEvent(new Event("change")); },
        () => { seen.main = all("#canvas .box .name").map((name) => name.textContent); }"""
    seen = watch(tmp_path / "m.html", tmp_path, steps)
    assert seen["errors"] == []
    assert (seen["flow"], seen["on"]) == ("2", ["Unary"])
    assert sorted(seen["main"]) == ["If", "input", "input", "output"]


def test_a_link_to_a_layer_opens_it(converted: Path, tmp_path: Path) -> None:
    seen = watch(converted, tmp_path, "() => { seen.name = chosen(); }", fragment="#layer-0")
    assert seen["errors"] == [] and seen["name"]
