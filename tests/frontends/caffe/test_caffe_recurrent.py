"""Recurrent layers against Caffe's definitions in numpy."""

from __future__ import annotations

import numpy as np
import pytest
from caffe_cases import check, feeds_for, one, random, refusal

T, N, WIDE, STATIC, HIDDEN = 4, 3, 5, 2, 6


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm(feeds, blobs, h, c):
    wx, bias, *rest = blobs
    rows = []
    for t in range(T):
        mark = feeds["cont"][t][:, None]
        gates = feeds["x"][t].reshape(N, -1) @ wx.T + bias + (h * mark) @ rest[-1].T
        gates = gates + feeds["s"].reshape(N, -1) @ rest[0].T if len(rest) > 1 else gates
        i, f, o, g = np.split(gates, 4, 1)
        c = sigmoid(f) * (c * mark) + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        rows.append(h)
    return np.stack(rows), h, c


def rnn(feeds, blobs, h):
    wx, bias, *static, wh, wo, bo = blobs
    rows = []
    for t in range(T):
        inner = feeds["x"][t].reshape(N, -1) @ wx.T + bias + (h * feeds["cont"][t][:, None]) @ wh.T
        h = np.tanh(inner + feeds["s"].reshape(N, -1) @ static[0].T if static else inner)
        rows.append(np.tanh(h @ wo.T + bo))
    return np.stack(rows), h


def case(kind, static, exposed, rng):
    """The net, its weights, and feeds with sequences that begin in the middle."""
    gates, states = (4, ("h", "c")) if kind == "LSTM" else (1, ("h",))
    shapes = {"x": (T, N, WIDE), "cont": (T, N)}
    shapes |= {"s": (N, STATIC, 1)} if static else {}
    shapes |= dict.fromkeys(states, (1, N, HIDDEN)) if exposed else {}
    blobs = [random(rng, gates * HIDDEN, WIDE), random(rng, gates * HIDDEN)]
    blobs += [random(rng, gates * HIDDEN, STATIC)] if static else []
    blobs += [random(rng, gates * HIDDEN, HIDDEN)]
    blobs += [random(rng, HIDDEN, HIDDEN), random(rng, HIDDEN)] if kind == "RNN" else []
    tops = " ".join(["y", *(f"{state}_last" for state in states)]) if exposed else "y"
    settings = f"recurrent_param {{ num_output: {HIDDEN} expose_hidden: {str(exposed).lower()} }}"
    text = one(kind, settings, tops, **shapes)
    marks = np.ones((T, N), np.float32)
    marks[0] = 0
    marks[2, 1] = 0
    return text, blobs, {**feeds_for(text), "cont": marks if not exposed else np.maximum(marks, np.eye(T, N))}, states


@pytest.mark.parametrize("exposed", [False, True])
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("kind", ["LSTM", "RNN"])
def test_recurrent_layers(kind, static, exposed, tmp_path, rng):
    text, blobs, feeds, states = case(kind, static, exposed, rng)
    start = [feeds[s][0] if exposed else np.zeros((N, HIDDEN), np.float32) for s in states]
    y, *last = lstm(feeds, blobs, *start) if kind == "LSTM" else rnn(feeds, blobs, *start)
    want = {"y": y} | ({f"{s}_last": v[None] for s, v in zip(states, last, strict=True)} if exposed else {})
    check(text, {"y": blobs}, tmp_path, feeds=feeds, want=want)


def test_refusals(rng):
    (found,) = refusal(one("LSTM", "recurrent_param { num_output: 6 }", x=(9999, 1, 5), cont=(9999, 1)))
    assert "9999 steps" in found.message
    (found,) = refusal(one("RNN", "recurrent_param { num_output: 6 }", x=(4, 1, 5)))
    assert found.reference == "bad-caffe-file"
