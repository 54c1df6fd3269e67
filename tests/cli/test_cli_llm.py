"""The command `llm`: what it asks for, prints and returns."""

import json

import pytest
from llm_cases import write_folder

from mnnconvert.cli.main import main


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("llm") / "source")


def test_a_folder_is_converted(tmp_path, source, capsys):
    assert main(["llm", str(source), str(tmp_path / "made"), "--quant_block", "32", "--lm_quant_bit=8"]) == 0
    printed = capsys.readouterr()
    assert "llama, 2 layers, 0 M parameters; of its matrices 15 are coded" in printed.out
    assert f"wrote {tmp_path / 'made'}: config.json, llm.mnn, llm.mnn.weight" in printed.out
    assert json.loads((tmp_path / "made/llm_config.json").read_text())["tie_embeddings"][3:] == [8, 32]


def test_json_has_the_report(tmp_path, source, capsys):
    assert main(["llm", str(source), str(tmp_path / "made"), "--json", "--quiet"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["ok"], result["family"], result["quantized"]) == (True, "llama", 15)


@pytest.mark.parametrize(
    ("words", "code", "reference"),
    [
        (["--hqq", "--sym"], 2, "contradictory-options"),
        (["--quant_bit", "12"], 2, "out-of-range"),
        (["--quant_bit", "1"], 2, "out-of-range"),
        (["--quant_block", "many"], 2, "bad-option-value"),
        (["--quantBit", "4"], 2, "unknown-option"),
    ],
)
def test_wrong_options_are_explained(tmp_path, source, capsys, words, code, reference):
    assert main(["llm", str(source), str(tmp_path / "made"), *words]) == code
    assert f"[{reference}]" in capsys.readouterr().err
    assert not (tmp_path / "made").exists()


def test_wrong_files_are_explained(tmp_path, source, capsys):
    assert main(["llm", str(tmp_path / "nowhere"), str(tmp_path / "made")]) == 1
    assert main(["llm", str(source / "tokenizer.json"), str(tmp_path / "made")]) == 1
    assert main(["llm", str(source)]) == 2
    assert main(["llm", str(source), str(source / "config.json" / "made")]) == 1
    said = capsys.readouterr().err
    assert all(f"[{name}]" in said for name in ("missing-file", "bad-checkpoint", "missing-word", "unwritable-output"))
