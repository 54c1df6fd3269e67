"""Runs the folder of a language model on our engine: embeddings, masks and positions around a session."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from mnnconvert.errors import ConversionError, UsageError
from mnnconvert.frontends.llm.block import INPUTS
from mnnconvert.frontends.llm.checkpoint import HEAD
from mnnconvert.frontends.llm.safetensors import read_json
from mnnconvert.ir import CodedTensor, CodedWeights, FileTensor, Graph
from mnnconvert.llm import CONFIG, EMBEDDINGS, MODEL
from mnnconvert.runtime_ref.session import Session
from mnnconvert.schema.reader import read_model

UNSEEN = np.float32(np.finfo(np.float32).min)  # as the runtime writes it into masks
BF16 = np.dtype(ml_dtypes.bfloat16)


class LlmSession:
    """A language model that is ready to go on with a text.

    `threads` and `precision` are those of `Session`. Raises `missing-file`, `bad-checkpoint` and what readers raise.
    """

    def __init__(self, folder: str | Path, threads: int = 0, precision: str = "exact", backend: str = "cpu"):
        folder = Path(folder)
        self.config = read_json(folder / CONFIG)
        graph = read_model(folder / str(read_json(folder / "config.json").get("llm_model", MODEL)))
        self.width, self.window = self._number("hidden_size"), int(self.config.get("sliding_window") or 0)
        self._table = _Table(folder, graph, self.width, "tie_embeddings" in self.config)
        self._session = Session(graph, backend, threads, precision, kv_cache=True)
        self.past = 0

    def on(self, graph: Graph) -> LlmSession:
        """The same model with another graph, for comparisons."""
        other = copy(self)
        other._session = Session(graph, kv_cache=True)
        other.past = 0
        return other

    def _number(self, name: str) -> int:
        value = self.config.get(name)
        if not isinstance(value, int) or value < 1:
            raise ConversionError.of("bad-checkpoint", f"'{CONFIG}' says {value!r} for {name}")
        return value

    @property
    def context(self) -> int | None:
        """Tokens that the model was trained to look back on, where the folder says it."""
        value = self.config.get("max_position_embeddings")
        return value if isinstance(value, int) else None

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        return self._table.rows

    def logits(self, tokens: Sequence[int], rows: int = 1) -> np.ndarray:
        """Scores float32 [rows, vocabulary] of what follows the last `rows` of these tokens (0: of each of them).

        The tokens come after those of earlier calls. Raises `bad-input` for a token that there is none.
        """
        ids = np.asarray(tokens, np.int64)
        if ids.ndim != 1 or not ids.size or ids.min() < 0 or ids.max() >= self.vocabulary:
            raise UsageError.of("bad-input", f"tokens are numbers from 0 to {self.vocabulary - 1}")
        positions = np.arange(self.past, self.past + ids.size, dtype=np.int32)
        first = np.array([-rows], np.int32)
        feeds = self._table.look_up(ids)[:, None], self._mask(positions), positions[None], first
        result = self._session.run(dict(zip(INPUTS, feeds, strict=True)))["logits"]
        self.past += ids.size
        return np.asarray(result[0])

    def _mask(self, positions: np.ndarray) -> np.ndarray:
        """What is added to scores: [1,1,S,S] for the last keys, as all earlier ones are seen; or with a window, that of
        layers without and with it, [2,1,1,S,T] for all keys."""
        first = 0 if self.window else positions[0]
        behind = positions[:, None] - np.arange(first, positions[-1] + 1)
        full = np.where(behind >= 0, np.float32(0), UNSEEN)
        if not self.window:
            return full[None, None]
        return np.stack([full, np.where(behind < self.window, full, UNSEEN)])[:, None, None]

    def reset(self) -> None:
        """Forget all tokens."""
        self._session.reset()
        self.past = 0

    def generate(self, tokens: Sequence[int], count: int) -> Iterator[int]:
        """The likeliest token, `count` times, after these."""
        following = list(tokens)
        for _ in range(count):
            best = int(self.logits(following)[-1].argmax())
            yield best
            following = [best]


class _Table:
    """Embeddings of tokens: a file of bfloat16, or the coded head of the model."""

    def __init__(self, folder: Path, graph: Graph, width: int, tied: bool):
        self._coded = _head_of(graph) if tied else None
        path = folder / EMBEDDINGS
        if self._coded is not None:
            self.rows = self._coded.shape[0]
            return
        if not path.is_file():
            raise ConversionError.of("missing-file", f"'{path}' does not exist", file=path)
        self.rows = path.stat().st_size // (2 * width)
        self._table = FileTensor(path, 0, BF16, (self.rows, width)).memmap()

    def look_up(self, ids: np.ndarray) -> np.ndarray:
        """float32 [S, width]."""
        if self._coded is None:
            return np.asarray(self._table[ids], np.float32)
        return np.concatenate([self._coded.decode_rows(i, i + 1) for i in ids.tolist()])


def _head_of(graph: Graph) -> CodedWeights:
    node = next((n for n in graph.nodes if n.name == HEAD), None)
    tensor: Any = None if node is None else node.inputs[1].tensor
    if not isinstance(tensor, CodedTensor):
        raise ConversionError.of("bad-checkpoint", "embeddings should be those of the head, which has no codes")
    return tensor.coded
