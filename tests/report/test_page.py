"""Pages stand alone, are sound HTML that everyone can read, and say what was measured."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from model_files import network
from pages import branches, data_of, deep_model, parsed, problems

import mnnconvert
from mnnconvert.cli.main import main
from mnnconvert.layers import histogram
from mnnconvert.options import ConversionOptions
from mnnconvert.report import write_page
from mnnconvert.report.content import Content, common_prefix, level_of, of_model, shorter, within
from mnnconvert.report.gather import of_verification
from mnnconvert.report.page import page
from mnnconvert.report.plots import outline
from mnnconvert.verification import Request, verify_files

REPORT = Path(mnnconvert.__file__).parent / "report"
STYLE = (REPORT / "style.css").read_text()
FOUR_BITS = {"weight_bits": 4, "weight_block": 32}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source, its 4-bit file, and the pages of conversion, verification and file alone."""
    place = tmp_path_factory.mktemp("pages")
    source = str(network(place / "m.onnx"))
    mnnconvert.convert(source, place / "m.mnn", html=place / "convert.html", **FOUR_BITS)
    assert main(["verify", source, str(place / "m.mnn"), "--html", str(place / "verify.html"), "-q"]) == 3
    assert main(["show", str(place / "m.mnn"), "--html", str(place / "show.html"), "-q"]) == 0
    return place


def text_of(folder: Path, name: str) -> str:
    return (folder / f"{name}.html").read_text()


@pytest.mark.parametrize("name", ["convert", "verify", "show"])
def test_pages_are_sound_and_stand_alone(folder: Path, name: str) -> None:
    assert problems(text_of(folder, name)) == []


@pytest.mark.parametrize(
    ("name", "badge", "sections"),
    [
        ("convert", "Float graph agrees", "summary answers errors sizes graph layers weights passes notes"),
        ("verify", "Does not agree", "summary answers errors sizes graph layers weights passes notes"),
        ("show", "Not compared", "summary sizes graph layers weights notes"),
    ],
)
def test_each_page_tells_what_is_known(folder: Path, name: str, badge: str, sections: str) -> None:
    found = parsed(text_of(folder, name))
    (words,) = [text for (_, a), text in _with_text(text_of(folder, name)) if "badge" in a]
    assert words[2:] == badge
    assert [a["id"] for a in found.of("section")] == sections.split()


def _with_text(text: str) -> list[tuple[tuple[str, str], str]]:
    return [((tag, attributes), words) for tag, attributes, words in re.findall(r"<(\w+)([^>]*)>([^<]*)", text)]


def test_the_table_holds_every_layer_and_its_numbers(folder: Path) -> None:
    text = text_of(folder, "convert")
    content = of_model(folder / "m.mnn")
    rows = re.findall(r'<tr id="layer-(\d+)">(.*?)</tr>', text)
    assert [int(number) for number, _ in rows] == list(range(len(content.rows)))
    coded = [row for _, row in rows if "4 bit, block 32, asymmetric" in row]
    assert len(coded) == 2
    for row in coded:
        decibels = [float(value) for value in re.findall(r"([\d.]+) dB", row)]
        assert decibels and all(15 < value < 40 for value in decibels)
    data = data_of(text)
    assert len(data["layers"]) == len(content.rows) and {own["v"] for own in data["layers"]} - {0, 5}


def test_layers_that_lead_nowhere_by_themselves_are_measured_with_the_next(folder: Path) -> None:
    layers = data_of(text_of(folder, "convert"))["layers"]
    shared = [own for own in layers if "with" in own]
    assert shared and all(own["v"] == layers[own["with"]]["v"] for own in shared)


def test_weights_before_and_after(folder: Path) -> None:
    text = text_of(folder, "convert")
    assert len(re.findall(r'<figure data-weight="\d+">', text)) == 2
    assert text.count('<path class="before"') == 2
    assert '<path class="before"' not in text_of(folder, "show")


def test_passes_say_what_they_do(folder: Path) -> None:
    text = text_of(folder, "convert")
    table = re.search(r'<section id="passes".*?</section>', text, re.DOTALL)
    assert table and "convert-matmul" in table[0]
    assert len(re.findall(r"<tr>", table[0])) > 10


def test_hostile_names_stay_names(tmp_path: Path) -> None:
    bad = '</script><img src=x onerror="alert(1)">&\'"/\u2028<!--'
    model = onnx.load(network(tmp_path / "m.onnx", name="fc1"))
    for node in model.graph.node:
        node.name = bad + node.name
        node.output[:] = [bad + n if n != "y" else n for n in node.output]
        node.input[:] = [bad + n if n in ("fc1", "act") else n for n in node.input]
    onnx.save(model, tmp_path / "m.onnx")
    write_page(of_model(tmp_path / "m.onnx"), tmp_path / "m.html")
    text = (tmp_path / "m.html").read_text(encoding="utf-8")
    assert problems(text) == []
    assert not parsed(text).of("img")
    shown = [tag for tag, words in parsed(text).texts if "onerror" in words]
    assert set(shown) == {"code", "script"}  # the prefix of all names, and the data
    assert data_of(text)["prefix"].startswith("</script><img")


def test_names_of_files_are_text(tmp_path: Path) -> None:
    path = tmp_path / "<b>&m.onnx"
    network(path)
    text = page(of_model(path))
    assert problems(text) == [] and not parsed(text).of("b")


def test_a_model_without_layers_or_weights(tmp_path: Path) -> None:
    source = '<ir_version: 8, opset_import: ["": 17]> m (float[2] x) => (float[2] y) { y = Identity(x) }'
    onnx.save(onnx.parser.parse_model(source), tmp_path / "m.onnx")
    mnnconvert.convert(tmp_path / "m.onnx", tmp_path / "m.mnn", html=tmp_path / "m.html")
    assert problems((tmp_path / "m.html").read_text()) == []


def test_every_graph_can_be_drawn(tmp_path: Path) -> None:
    text = page(of_model(branches(tmp_path / "m.onnx")))
    assert problems(text) == []
    assert len(parsed(text).of("option")) == 3
    data = data_of(text)
    assert [(f["first"], f["layers"]) for f in data["flows"]] == [(0, 1), (1, 1), (2, 1)]
    assert len(data["layers"]) == 3


def test_the_example_is_sound_and_of_today() -> None:
    """`make report` writes it again."""
    text = (Path(__file__).parents[2] / "docs" / "reports" / "minilm-4bit.html").read_text(encoding="utf-8")
    assert problems(text) == []
    assert len(text) < 200_000
    assert STYLE in text and (REPORT / "script.js").read_text() in text


def test_a_large_model_makes_a_small_page(tmp_path: Path) -> None:
    content = of_model(deep_model(tmp_path / "m.onnx", 500))
    text = page(content)
    assert problems(text) == []
    assert len(content.rows) == 1500 and len(text) < 1_000_000
    simple = data_of(text)["flows"][0]["views"][1]
    assert len(simple["b"]) <= 1502 and simple["l"] <= 2


COLOURS = {name: dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block)) for name, block in
           zip(("light", "dark"), re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL), strict=True)}  # fmt: skip


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb as WCAG 2.1 defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    """(lighter + 0.05) / (darker + 0.05)."""
    bright, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def test_contrast_by_hand() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(scheme: str) -> None:
    colours = COLOURS[scheme]
    pairs = [(a, b) for a in ("text", "soft", "accent", "good", "bad", "warn") for b in ("page", "card", "accent-soft")]
    assert {f"{a} on {b}": contrast(colours[a], colours[b]) for a, b in pairs
            if contrast(colours[a], colours[b]) < 4.5} == {}  # fmt: skip


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_marks_can_be_seen(scheme: str) -> None:
    colours = COLOURS[scheme]
    pairs = [(f"l{i}", b) for i in range(6) for b in ("page", "card")]
    assert {f"{a} on {b}" for a, b in pairs if contrast(colours[a], colours[b]) < 3} == set()


def test_colours_are_named_in_both_schemes() -> None:
    assert set(COLOURS["light"]) == set(COLOURS["dark"])
    used = set(re.findall(r"var\(--([\w-]+)\)", STYLE)) - {"shadow"}
    assert used <= set(COLOURS["light"])


@pytest.mark.parametrize(
    ("decibels", "level"),
    [(math.inf, 0), (60.0, 0), (59.9, 1), (40.0, 1), (30.0, 2), (20.0, 3), (19.9, 4), (-math.inf, 4)],
)
def test_levels_of_error(decibels: float, level: int) -> None:
    assert level_of(decibels) == level
    assert level_of(None) == 5


def test_shorter_names() -> None:
    names = [f"/model/encoder/layer.{i}/dense/Add_output_0__matmul_converted" for i in range(8)] + [
        "/model/head",
        "out",
    ]
    prefix = common_prefix(names)
    assert prefix == "/model/encoder/"
    assert shorter(names[0], prefix) == "layer.0/dense/Add"
    assert (within("/model/head", prefix), within("out", prefix), within(prefix, prefix)) == ("head", "out", prefix)
    assert common_prefix(["a", "b"]) == common_prefix([]) == common_prefix(["one/a"]) == ""
    assert shorter("_output_0", "") == "_output_0"


def test_outlines_have_the_height_of_their_counts(rng: np.random.Generator) -> None:
    spread = histogram(rng.standard_normal(4000).astype(np.float32), 4000)
    path = outline(spread.counts, max(spread.counts))
    tops = [float(v) for v in re.findall(r"V([\d.e+-]+)h5", path)]
    assert len(tops) == len(spread.counts) == 48
    assert tops == pytest.approx([72 * (1 - math.sqrt(c / max(spread.counts))) for c in spread.counts], abs=0.1)
    assert outline([0, 0], 0) == "M0 72V72h120V72h120V72Z"


def test_pages_replace_no_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, model = str(folder / "m.onnx"), str(folder / "m.mnn")
    before = (folder / "m.mnn").read_bytes(), (folder / "m.onnx").read_bytes()
    assert main(["show", model, "--html", model]) == 2
    assert main(["verify", source, model, "--html", source]) == 2
    assert main(["--modelFile", source, "--MNNModel", model, "--html", model]) == 2
    assert main(["--modelFile", source, "--MNNModel", model, "--html", source]) == 2
    assert main(["--modelFile", source, "--plan", "--html", model]) == 2
    assert main(["show", model, "--html", str(folder / "absent" / "page.html")]) == 1
    assert capsys.readouterr().err.count("error[") == 6
    assert ((folder / "m.mnn").read_bytes(), (folder / "m.onnx").read_bytes()) == before


def test_compress_writes_a_page(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, html = str(tmp_path / "c.mnn"), str(tmp_path / "c.html")
    assert main(["compress", str(folder / "m.onnx"), out, "--avg-bits", "5", "--html", html, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["target"] == out
    assert problems(Path(html).read_text()) == []


def test_an_unproved_conversion_says_so(folder: Path, tmp_path: Path) -> None:
    mnnconvert.convert(folder / "m.onnx", tmp_path / "m.mnn", verify="never", html=tmp_path / "m.html")
    assert "Not compared" in (tmp_path / "m.html").read_text()


def test_content_without_anything_measured_has_levels(folder: Path) -> None:
    content: Content = of_model(folder / "m.mnn")
    assert {row.level for row in content.rows} == {5}


def test_layers_without_a_comparison_have_the_colour_of_their_weight(folder: Path, tmp_path: Path) -> None:
    mnnconvert.convert(folder / "m.onnx", tmp_path / "m.mnn", verify="never", html=tmp_path / "m.html", **FOUR_BITS)
    text = (tmp_path / "m.html").read_text()
    assert "colour of the error of their weight" in text and problems(text) == []
    levels = [own["v"] for own in data_of(text)["layers"]]
    assert sum(level in (2, 3) for level in levels) == 2 and levels.count(5) == len(levels) - 2


def test_a_source_that_is_not_converted_again_leaves_a_note(folder: Path, tmp_path: Path) -> None:
    options = ConversionOptions(model_file=str(folder / "m.onnx"), disable_pass=("no-such-pass",))
    request = Request(folder / "m.onnx", folder / "m.mnn", layers_if_told=True, options=options)
    content = of_verification(request, verify_files(request))
    assert [note.reference for note in content.notes] == ["unknown-pass"]
    assert content.layerwise is not None and not content.passes
    assert problems(page(content)) == []


def test_verify_writes_a_page_from_python(folder: Path, tmp_path: Path) -> None:
    result = mnnconvert.verify(folder / "m.onnx", folder / "m.mnn", html=tmp_path / "v.html")
    assert not result.passed and result.layers is not None
    assert "Does not agree" in (tmp_path / "v.html").read_text()
