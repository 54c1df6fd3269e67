"""Perplexity by both definitions, against the sums written out, and by the command."""

import json

import numpy as np
import pytest
from llm_cases import write_folder

from mnnconvert.cli.main import main
from mnnconvert.errors import UsageError
from mnnconvert.llm import LlmOptions, convert_llm
from mnnconvert.perplexity import HUGGING_FACE, LLAMA_CPP, halves, measure, sliding


class Lookup:
    """Scores that depend on all tokens so far, so that every window gives others."""

    def reset(self):
        self.seen = []

    def logits(self, tokens, rows=1):
        scores = []
        for token in tokens:
            self.seen.append(token)
            scores.append(np.sin(np.arange(10) * (1 + sum(self.seen)) + len(self.seen)).astype(np.float32))
        return np.stack(scores[-rows:])


TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6]


def surprise(context, token):
    """-log p of a token after a context, from the definition of a softmax."""
    model = Lookup()
    model.reset()
    scores = model.logits(context)[-1].astype(np.float64)
    return float(np.log(np.exp(scores).sum()) - scores[token])


@pytest.mark.parametrize("first", [None, 0])
def test_llama_cpp_counts_the_second_half_of_each_window(first):
    expected = []
    for start in (0, 8):
        window = list(TOKENS[start : start + 8])
        window = window if first is None else [first, *window[1:]]
        expected += [surprise(window[:i], window[i]) for i in range(5, 8)]
    found = measure(Lookup(), TOKENS, 8, first=first)
    assert found.definition == LLAMA_CPP and (found.counted, found.windows, found.tokens) == (6, 2, 23)
    assert found.perplexity == pytest.approx(np.exp(np.mean(expected)), rel=1e-6)
    assert found.error == pytest.approx(found.perplexity * np.std(expected, ddof=1) / np.sqrt(6), rel=1e-6)


@pytest.mark.parametrize(("window", "stride"), [(8, 3), (8, 8), (8, 1), (40, 5), (23, 23)])
def test_hugging_face_counts_each_token_with_something_before_it_once(window, stride):
    expected, end = [], 1
    for start in range(0, len(TOKENS), stride):
        last = min(start + window, len(TOKENS))
        expected += [surprise(TOKENS[start:i], TOKENS[i]) for i in range(max(end, start + 1), last)]
        end = last
    found = measure(Lookup(), TOKENS, window, stride)
    assert found.definition == HUGGING_FACE and found.counted == len(expected)
    assert stride == window or len(expected) == len(TOKENS) - 1
    assert found.perplexity == pytest.approx(np.exp(np.mean(expected)), rel=1e-6)


def test_windows_that_cannot_be_measured_are_refused():
    for window, stride in ((1, 0), (8, 9), (8, -1), (24, 0)):
        with pytest.raises(UsageError):
            measure(Lookup(), TOKENS, window, stride)
    assert list(halves([1, 2], 3, None)) == [] == list(sliding([1], 8, 2))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("perplexity")
    convert_llm(write_folder(path / "source"), path / "made", LlmOptions(quant_block=32))
    (path / "text.txt").write_text("the quick brown fox jumps over the lazy dog " * 8)
    return path


def test_the_command_says_which_definition_it_follows(folder, capsys):
    words = ["perplexity", str(folder / "made"), "--text", str(folder / "text.txt"), "--window", "32"]
    assert main(words) == 0
    assert "(as llama.cpp defines it)" in capsys.readouterr().out
    assert main([*words, "--stride", "16", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["definition"] == HUGGING_FACE and result["counted"] == result["tokens"] - 1
    assert main([*words, "--characters", "20"]) == 2
    assert "too few for a window" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "reference"),
    [
        (["made"], 2, "missing-option"),
        (["made", "--text", "nowhere.txt"], 1, "missing-file"),
        (["nowhere", "--text", "text.txt"], 1, "missing-file"),
        (["source", "--text", "text.txt"], 1, "missing-file"),
        (["made", "--text", "made/llm.mnn.weight"], 1, "unreadable-file"),
    ],
)
def test_wrong_calls_are_explained(folder, capsys, monkeypatch, words, code, reference):
    monkeypatch.chdir(folder)
    assert main(["perplexity", *words]) == code
    assert f"[{reference}]" in capsys.readouterr().err
