"""The benchmark of quality works: methods in their order on a small model, tables, tokenizers, file formats."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from small_llama import write_llama

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import quality
import quality_files


@pytest.fixture
def subject(tmp_path, monkeypatch):
    monkeypatch.setattr(quality, "SCRATCH", tmp_path)
    write_llama(tmp_path / "llama.onnx", 32)
    mix = np.random.default_rng(0).standard_normal((10, 64)).astype(np.float32)

    def feeds(seed, count):
        random = np.random.default_rng(seed)
        return [{"x": random.standard_normal((1, 32, 10), np.float32) @ mix} for _ in range(count)]

    def measure(exact, coded):
        return {"error": quality.relative(np.concatenate(exact), np.concatenate(coded)), "cosine": 0.5}

    return quality.Subject(
        "MiniLM", lambda: tmp_path / "llama.onnx", lambda: feeds(1, 12), lambda: feeds(2, 4), measure
    )


def test_each_method_is_better_than_the_one_before(subject):
    order = ["rtn", "hqq", "lsq awq", "gptq plain", "gptq"]
    results = list(quality.measure(subject, order, [(3, 32)]))
    errors = [r["error"] for r in results]
    assert [r["method"] for r in results] == order and errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.6 * errors[1]
    assert len({r["bytes"] for r in results}) == 1
    text = quality.tables(results)
    assert text.count("| 3 | 32 |") == 5 and text.index("| rtn |") < text.index("| gptq |")


@pytest.mark.mnn
def test_the_released_converter_takes_part(subject):
    (ours, theirs) = quality.measure(subject, ["hqq", "peer hqq"], [(4, 32)])
    assert theirs["error"] == pytest.approx(ours["error"], rel=0.1)
    assert theirs["bytes"] == pytest.approx(ours["bytes"], rel=0.1)


def test_results_and_page_are_kept(tmp_path, monkeypatch):
    base = {"model": "MiniLM", "bits": 4, "block": 64, "bytes": 10, "seconds": 1, "error": 0.25, "cosine": 0.1}
    results = quality.keep([base | {"method": "rtn"}, base | {"method": "lsq"}], base | {"method": "rtn", "error": 0.5})
    assert [(r["method"], r["error"]) for r in results] == [("lsq", 0.25), ("rtn", 0.5)]
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{quality.MARK}old")
    monkeypatch.setattr(quality, "PAGE", page)
    quality.write_page(results)
    assert page.read_text().startswith("# Title\n") and "old" not in page.read_text()
    assert "| 4 | 64 | rtn | 0.0 | 0.5 | 0.1 | 1 |" in page.read_text()


def test_word_pieces_take_the_longest_from_the_left(tmp_path):
    (tmp_path / "vocab.txt").write_text("[UNK]\ntoken\n##ization\n##iz\ncafe\n!\n")
    assert quality_files.WordPieces(tmp_path / "vocab.txt").encode("Tokenization café zebra!") == [1, 2, 4, 0, 5]


def test_byte_pairs_merge_in_the_order_of_the_table():
    tokens = ["l", "o", "w", "Ġ", "1", "2", "lo", "low", "Ġlow", "ow"]
    merges = ["l o", "o w", "lo w", "Ġ low"]
    file = SimpleNamespace(metadata={"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": merges})
    assert quality_files.BytePairs(file).encode("low low12") == [7, 8, 4, 5]
