"""Import rules of feature extraction: n-grams, thresholds, columns."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from mnnconvert.frontends.common.compose import calc, cast, chain
from mnnconvert.frontends.common.moves import reduced, reshaped, sliced, unsqueezed
from mnnconvert.frontends.onnx.node import OnnxNode
from mnnconvert.frontends.onnx.registry import onnx_op
from mnnconvert.ir import F32, I32, Builder, Value
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.matmul import MatMul

ML = "ai.onnx.ml"


@onnx_op("Binarizer", domain=ML)
def binarizer(b: Builder, n: OnnxNode) -> Value:
    """1 above the threshold, else 0."""
    x = n.input(0)
    return cast(b, calc(b, "GREATER", cast(b, x, F32), n.attr("threshold", 0.0)), x.dtype)


@onnx_op("ArrayFeatureExtractor", domain=ML)
def array_feature_extractor(b: Builder, n: OnnxNode) -> Value:
    """Chosen columns; a vector counts as one row."""
    x, columns = n.input(0), n.input(1)
    if x.rank is None:
        raise n.refuse("the rank of the operand of ArrayFeatureExtractor is not known", reference="open-size")
    rows = unsqueezed(b, x, 0) if x.rank == 1 else x
    return b.add(GatherV2(), rows, reshaped(b, columns, [-1]), b.ints(x.rank - 1 if x.rank > 1 else 1))


@onnx_op("TfIdfVectorizer", limits="of integers, with a known number of them per row")
def tf_idf_vectorizer(b: Builder, n: OnnxNode) -> Value:
    """How often each n-gram of the pool occurs in a row, at its place in the result; IDF and TFIDF weigh it."""
    x, mode = n.input(0), n.attr("mode")
    pool, indexes = n.attr("pool_int64s", ()), np.array(n.attr("ngram_indexes"))
    if not pool:
        raise n.refuse("TfIdfVectorizer of strings is not supported", reference="unsupported-type")
    size = x.shape[-1] if x.rank in (1, 2) and x.shape else None
    if not isinstance(size, int):
        raise n.refuse("TfIdfVectorizer needs to know the number of integers per row", reference="open-size")
    rows = unsqueezed(b, x, 0) if x.rank == 1 else x
    weights = np.array(n.attr("weights") or (1.0,) * len(indexes), np.float32)
    total: Value | None = None
    for first, grams in _grams(n, pool):
        counts = _counts(b, rows, size, grams, n.attr("max_skip_count"))
        if counts is None:
            continue
        counts = calc(b, "MINIMUM", counts, 1.0) if mode == "IDF" else counts
        place = np.zeros((len(grams), indexes.max() + 1), np.float32)
        own = slice(first, first + len(grams))
        place[np.arange(len(grams)), indexes[own]] = 1.0 if mode == "TF" else weights[own]
        part = b.add(MatMul(), counts, b.floats(place))
        total = part if total is None else calc(b, "ADD", total, part)
    if total is None:
        ones = calc(b, "MUL", cast(b, sliced(b, rows, 1, 0, 1), F32), 0.0)
        total = b.add(MatMul(), ones, b.floats(np.zeros((1, indexes.max() + 1))))
    return reshaped(b, total, [-1]) if x.rank == 1 else total


def _grams(n: OnnxNode, pool: tuple[int, ...]) -> Iterator[tuple[int, np.ndarray]]:
    """The n-grams [count, length] of each length that is searched, with the number of the first of them."""
    starts, first = [*n.attr("ngram_counts"), len(pool)], 0
    for length, (start, end) in enumerate(pairwise(starts), 1):
        grams = np.array(pool[start:end], np.int64).reshape(-1, length)
        if len(grams) and n.attr("min_gram_length") <= length <= n.attr("max_gram_length"):
            yield first, grams
        first += len(grams)


def _counts(b: Builder, rows: Value, size: int, grams: np.ndarray, skips: int) -> Value | None:
    """How often each n-gram occurs in each row [N, count], with up to `skips` elements left out between its own."""
    length, found = grams.shape[1], []
    for step in range(1, (skips if length > 1 else 0) + 2):
        windows = size - (length - 1) * step
        if windows < 1:
            break
        parts = [sliced(b, rows, 1, k * step, k * step + windows) for k in range(length)]
        equal = [
            calc(b, "EQUAL", unsqueezed(b, part, 2), grams[:, k].reshape(1, 1, -1)) for k, part in enumerate(parts)
        ]
        found.append(reduced(b, "SUM", cast(b, chain(b, "MUL", equal), I32), 1, keep=False))
    return cast(b, chain(b, "ADD", found), F32) if found else None
