"""Perplexity of a language model on a text: exp of the mean surprise, in nats, at the tokens that are counted.

Two definitions are in use, and numbers of one are not those of the other:

llama.cpp      windows of `window` tokens follow one another; the tokens of the second half of each count, which have
               half a window before them. Where texts begin with a special token, so does every window.
Hugging Face   windows of `window` tokens start every `stride` tokens; each token counts once, in the first window
               that holds it, unless nothing stands before it there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mnnconvert.errors import ConversionError, UsageError, unreadable
from mnnconvert.llm import TOKENIZER_JSON

LLAMA_CPP, HUGGING_FACE = "llama.cpp", "Hugging Face"


class Model(Protocol):
    """What is measured: see `LlmSession`."""

    def logits(self, tokens: Sequence[int], rows: int = 1) -> np.ndarray: ...
    def reset(self) -> None: ...


@dataclass(frozen=True)
class Perplexity:
    """The result: `perplexity` with its standard `error`, on `counted` of `tokens` tokens in `windows` windows."""

    perplexity: float
    error: float
    surprise: float
    counted: int
    tokens: int
    windows: int
    window: int
    stride: int
    definition: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Span:
    """Tokens of one window, of which the last `counted` count."""

    tokens: tuple[int, ...]
    counted: int


def measure(
    model: Model,
    tokens: Sequence[int],
    window: int,
    stride: int = 0,
    first: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> Perplexity:
    """By Hugging Face's definition with a `stride`, else by llama.cpp's, whose windows begin with the token `first`.

    Raises `bad-input` for windows below 2 tokens, a stride beyond the window, and texts that are too short.
    """
    if window < 2 or not 0 <= stride <= window:
        raise UsageError.of("bad-input", f"a window of {window} tokens every {stride} cannot be measured")
    spans = list(sliding(tokens, window, stride) if stride else halves(tokens, window, first))
    if not spans:
        raise UsageError.of("bad-input", f"the text has {len(tokens)} tokens, too few for a window of {window}")
    surprises: list[np.ndarray] = []
    for number, span in enumerate(spans):
        model.reset()
        surprises.append(surprise(model.logits(span.tokens[:-1], span.counted), span.tokens[-span.counted :]))
        if progress is not None:
            progress((number + 1) / len(spans))
    return _result(np.concatenate(surprises), len(tokens), len(spans), window, stride)


def _result(values: np.ndarray, tokens: int, windows: int, window: int, stride: int) -> Perplexity:
    mean = float(values.mean())
    found = math.exp(mean)
    error = found * float(values.std(ddof=1)) / math.sqrt(values.size) if values.size > 1 else math.inf
    definition = HUGGING_FACE if stride else LLAMA_CPP
    return Perplexity(found, error, mean, values.size, tokens, windows, window, stride, definition)


def halves(tokens: Sequence[int], window: int, first: int | None) -> Iterator[Span]:
    """llama.cpp's windows: those that the text fills."""
    for start in range(0, len(tokens) - window + 1, window):
        part = tuple(tokens[start : start + window])
        yield Span(part if first is None else (first, *part[1:]), window - window // 2 - 1)


def sliding(tokens: Sequence[int], window: int, stride: int) -> Iterator[Span]:
    """Hugging Face's windows; the last one ends with the text."""
    done = 1
    for start in range(0, len(tokens), stride):
        end = min(start + window, len(tokens))
        counted = min(end - done, end - start - 1)  # nothing stands before the first of a window
        if counted > 0:
            yield Span(tuple(tokens[start:end]), counted)
        done = end
        if end == len(tokens):
            return


def surprise(scores: np.ndarray, tokens: Sequence[int]) -> np.ndarray:
    """-log of the probability of each token [n] by its row of scores [n, vocabulary], in float64."""
    rows = scores.astype(np.float64)
    rows -= rows.max(axis=1, keepdims=True)
    picked = rows[np.arange(len(tokens)), np.asarray(tokens)]
    result: np.ndarray = np.log(np.exp(rows).sum(axis=1)) - picked
    return result


def encode(folder: Path, text: str) -> tuple[list[int], int | None]:
    """The tokens of a text by the folder's tokenizer.json, and the one that texts begin with, if any.

    Needs the package tokenizers (`missing-extra`); raises `missing-file`, `bad-checkpoint`.
    """
    path = folder / TOKENIZER_JSON
    if not path.is_file():
        raise ConversionError.of("missing-file", f"'{path}' does not exist", file=path,
                                 hint="put the tokenizer.json of the model there")  # fmt: skip
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ConversionError.of("missing-extra", "the package tokenizers is not installed",
                                 hint="pip install 'mnnconvert[llm]'") from error  # fmt: skip
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises nothing more specific
        raise ConversionError.of("bad-checkpoint", f"'{path}' cannot be used: {error}", file=path) from error
    leading = tokenizer.encode("").ids
    return tokenizer.encode(text).ids, leading[0] if leading else None


def read_text(path: Path) -> str:
    """A file of UTF-8. Raises `missing-file`, `unreadable-file`."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise unreadable(path, error) from error
    except UnicodeDecodeError as error:
        raise ConversionError.of("unreadable-file", f"'{path}' is no UTF-8: {error}", file=path) from error
