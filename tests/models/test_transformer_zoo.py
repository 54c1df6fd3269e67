"""--transformerFuse on small transformers, as both exporters of torch write them, against onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import transformer_zoo as zoo
from transformer_zoo import (
    HEADS,
    KINDS,
    LAYERS,
    WIDTH,
    WORDS,
    export,
    export_decoder,
    export_program,
    feeds,
    save_keras,
)

import mnnconvert
from mnnconvert.api import convert_with
from mnnconvert.options import ConversionOptions
from mnnconvert.schema.reader import read_model
from mnnconvert.verify.engines import OnnxRuntimeEngine
from mnnconvert.verify.mnn_engine import MnnEngine

pytestmark = pytest.mark.filterwarnings("ignore")
slow = pytest.mark.slow
DOCS = Path(__file__).parents[2] / "docs/transformers.md"

TOLERANCE = 1e-3
CASES = [(name, how, False) for name, kind in KINDS.items() for how in kind.attention]
CASES += [(name, "eager" if name in zoo.BY_DYNAMO_EAGER else kind.attention[-1], True) for name, kind in KINDS.items()]
CASES += [("Llama", "eager", True), *((name, "sdpa", False) for name in zoo.FURTHER)]
DECODERS = [(name, dynamo) for name in zoo.WITH_PAST for dynamo in (False, True)]


def close(got, want):
    assert got.shape == want.shape
    return np.abs(got - want).max() <= TOLERANCE * np.abs(want).max()


def attentions(path: Path) -> int:
    return sum(node.op.kind == "Attention" for node in read_model(path).nodes)


def test_the_table_of_kinds_is_that_of_the_documentation():
    assert zoo.table() in DOCS.read_text(encoding="utf-8")


@slow
@pytest.mark.parametrize(("name", "how", "dynamo"), CASES)
def test_kinds(name, how, dynamo, tmp_path):
    kind, source, path = {**KINDS, **zoo.FURTHER}[name], tmp_path / "m.onnx", tmp_path / "m.mnn"
    export(name, how, source, dynamo)
    report = mnnconvert.convert(source, path, transformer_fuse=True, verify="always")
    fused = next(p for p in report.passes if p.name == "fuse-attention")
    assert (fused.changes, len(fused.misses)) == (kind.fused, kind.missed)
    assert attentions(path) == kind.fused * kind.ops
    assert all(kind.reason in miss for miss in fused.misses)
    notes = [d.message for d in report.diagnostics if d.reference == "attention-not-fused"]
    assert (kind.reason in notes[0]) if kind.reason else not notes
    reference, session = OnnxRuntimeEngine(source), mnnconvert.load(path)
    with MnnEngine(path) as engine:
        for batch, length in ((1, 8), (2, 6)):
            given = feeds(kind.takes, batch, length)
            want = reference.run(given)["y"]
            assert close(session.run(given)["y"], want)
            assert close(engine.run(given)["y"], want)


@slow
@pytest.mark.parametrize("name", ["BERT", "Llama", "T5, encoder", "Swin"])
def test_another_runtime_takes_masks_per_head_too(name, tmp_path):
    source, path = tmp_path / "m.onnx", tmp_path / "m.mnn"
    export(name, "eager", source, False)
    asked = {"transformer_fuse": True, "target": "none", "verify": "always"}
    convert_with(ConversionOptions.from_keywords(model_file=str(source), mnn_model=str(path), **asked))
    assert attentions(path) == LAYERS


@slow
@pytest.mark.parametrize(("name", "dynamo"), DECODERS)
def test_decoders_keep_what_they_were_handed(name, dynamo, tmp_path):
    source, path = tmp_path / "m.onnx", tmp_path / "m.mnn"
    pasts = export_decoder(name, source, dynamo)
    report = mnnconvert.convert(source, path, transformer_fuse=True, verify="always")
    assert attentions(path) == LAYERS * KINDS[name].ops
    assert "empty here" in report.verification.runs[0].notes[-1]
    reference, kept, afresh = OnnxRuntimeEngine(source), mnnconvert.load(path, kv_cache=True), mnnconvert.load(path)
    names = [i.name for i in kept.inputs]
    assert names[:2] == ["input_ids", "attention_mask"] and all(".encoder." in name for name in names[2:])
    found = {n: np.random.default_rng(i).standard_normal((1, HEADS, 7, WIDTH // HEADS)).astype(np.float32)
             for i, n in enumerate(names[2:])}  # fmt: skip
    words, at, logits = np.random.default_rng(0).integers(3, WORDS, (1, 9)), 0, []
    state = {past: np.zeros((1, heads, 0, size), np.float32) for past, (heads, size) in pasts.items()}
    for count in (4, 1, 1, 3):
        given = {"input_ids": words[:, at : at + count], "attention_mask": np.ones((1, at + count), np.int64)} | found
        want = reference.run({**given, **state})
        assert close(kept.run(given)["logits"], want["logits"])
        state = {past: want[past.replace("past_key_values", "present")] for past in pasts}
        logits.append(want["logits"])
        at += count
    whole = np.concatenate(logits, 1)
    everything = {"input_ids": words, "attention_mask": np.ones((1, 9), np.int64), **found}
    assert close(afresh.run(everything)["logits"], whole)
    with MnnEngine(path) as engine:
        assert close(engine.run(everything)["logits"], whole)


@slow
@pytest.mark.parametrize("name", zoo.FOR_ONE)
@pytest.mark.parametrize("dynamo", [False, True])
def test_matrices_of_one_sequence(name, dynamo, tmp_path):
    source, path = tmp_path / "m.onnx", tmp_path / "m.mnn"
    export(name, "eager", source, dynamo)
    mnnconvert.convert(source, path, transformer_fuse=True, verify="always", batch=1)
    assert attentions(path) == LAYERS * KINDS[name].ops
    given = feeds("text", 1, 8)
    want = OnnxRuntimeEngine(source).run(given)["y"]
    assert close(mnnconvert.load(path).run(given)["y"], want)
    with MnnEngine(path) as engine:
        assert close(engine.run(given)["y"], want)


@slow
@pytest.mark.parametrize(("dynamo", "reason"), [(False, "columns on"), (True, "an unknown number of keys")])
def test_windows_whose_keys_are_cropped_stay_in_pieces(dynamo, reason, tmp_path):
    source, path = tmp_path / "m.onnx", tmp_path / "m.mnn"
    export_decoder("Mistral", source, dynamo, cropped=True)
    report = mnnconvert.convert(source, path, transformer_fuse=True, verify="always")
    (note,) = [d.message for d in report.diagnostics if d.reference == "attention-not-fused"]
    assert reason in note
    assert attentions(path) == 0


@slow
@pytest.mark.parametrize("name", ["BERT", "GPT-2", "Llama", "ViT"])
def test_exported_programs(name, tmp_path):
    source, path = tmp_path / "m.pt2", tmp_path / "m.mnn"
    export_program(name, source)
    mnnconvert.convert(source, path, transformer_fuse=True, verify="always")
    assert attentions(path) == LAYERS


@slow
@pytest.mark.parametrize("layer", ["MultiHeadAttention", "causal", "GroupQueryAttention", "Attention"])
def test_layers_of_keras(layer, tmp_path):
    import keras

    make = {
        "MultiHeadAttention": lambda x: keras.layers.MultiHeadAttention(4, 8)(x, x),
        "causal": lambda x: keras.layers.MultiHeadAttention(4, 8)(x, x, use_causal_mask=True),
        "GroupQueryAttention": lambda x: keras.layers.GroupQueryAttention(8, 4, 2)(x, x),
        "Attention": lambda x: keras.layers.Attention()([x, x]),
    }[layer]
    source, path = tmp_path / "m.keras", tmp_path / "m.mnn"
    save_keras(make, source)
    report = mnnconvert.convert(source, path, transformer_fuse=True, verify="always")
    assert attentions(path) == 1
    assert not [d for d in report.diagnostics if d.reference == "attention-not-fused"]
    x = np.random.default_rng(0).standard_normal((2, 6, 32)).astype(np.float32)
    with MnnEngine(path) as engine:
        (got,) = engine.run({"x": x}).values()
    (want,) = mnnconvert.load(path).run({"x": x}).values()
    assert close(got, want)
