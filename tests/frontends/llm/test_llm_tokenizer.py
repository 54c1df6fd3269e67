"""Tokenizers: what MNN's runtime makes of our file is what Hugging Face's package makes of the source."""

import json
import random
import struct

import numpy as np
import pytest
from llm_cases import CONFIG, encoded_by_mnn, llama_weights, write_folder, write_safetensors

from mnnconvert.errors import ConversionError
from mnnconvert.frontends.llm.bytepairs import PATTERNS, document, merges_of, sentencepiece_document
from mnnconvert.frontends.llm.sentencepiece import BYTE, CONTROL, NORMAL, UNKNOWN, Piece, read_pieces
from mnnconvert.llm import convert_llm
from mnnconvert.perplexity import encode
from mnnconvert.verify.mnn_engine import MnnEngine

tokenizers = pytest.importorskip("tokenizers")
TEXTS = ["hello there", "he", "the cat  sat", " leading", "trailing ", "</s>he<s>", "a" * 40]
needs_mnn = pytest.mark.skipif(not MnnEngine.available(), reason="needs MNN")


def sentence_pieces():
    """Special tokens, all bytes, letters, and words of two or three pieces with scores."""
    pieces = [Piece("<unk>", 0, UNKNOWN), Piece("<s>", 0, CONTROL), Piece("</s>", 0, CONTROL)]
    pieces += [Piece(f"<0x{i:02X}>", 0, BYTE) for i in range(256)]
    words = [
        "he",
        "th",
        "\u2581t",
        "\u2581th",
        "the",
        "\u2581the",
        "ll",
        "llo",
        "hello",
        "\u2581he",
        "at",
        "\u2581\u2581",
    ]
    pieces += [Piece(word, -float(i)) for i, word in enumerate(words)]
    return pieces + [Piece(c, -100.0 - i) for i, c in enumerate("\u2581abcdefghijklmnopqrstuvwxyz")]


def model_of(pieces, spaced=True):
    """The protobuf of a tokenizer.model."""
    data = b""
    for text, score, kind in pieces:
        raw = text.encode()
        inner = b"\x0a" + bytes([len(raw)]) + raw + b"\x15" + struct.pack("<f", score) + b"\x18" + bytes([kind])
        data += b"\x0a" + bytes([len(inner)]) + inner
    trainer = b"\x12\x03\x18\x02\x50"  # settings that nobody reads
    return data + trainer + (b"" if spaced else b"\x1a\x02\x18\x00")


def folder_with(folder, pieces):
    """A model whose vocabulary is that of a tokenizer.model."""
    size = len(pieces)
    write_folder(folder, llama_weights({**CONFIG, "vocab_size": size}), vocab_size=size)
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.model").write_bytes(model_of(pieces))
    return folder


def test_pieces_of_a_model_are_read(tmp_path):
    pieces = sentence_pieces()
    (tmp_path / "tokenizer.model").write_bytes(model_of(pieces))
    assert read_pieces(tmp_path / "tokenizer.model") == (pieces, True)
    (tmp_path / "tokenizer.model").write_bytes(model_of(pieces, spaced=False))
    assert read_pieces(tmp_path / "tokenizer.model") == (pieces, False)


@pytest.mark.parametrize("source", ["json", "model"])
def test_a_space_that_only_the_runtime_writes_is_told(tmp_path, source):
    pieces = sentence_pieces()
    folder = folder_with(tmp_path / "source", pieces)
    if source == "json":
        document = sentencepiece_document(pieces, [1], spaced=False)
        (folder / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    else:
        (folder / "tokenizer.model").write_bytes(model_of(pieces, spaced=False))
    report = convert_llm(folder, tmp_path / "made")
    assert [d.reference for d in report.diagnostics] == ["llm-tokenizer"]
    assert encode(tmp_path / "made", "he")[0] == [1, pieces.index(("he", 0.0, NORMAL))]


def test_damaged_models_are_refused_or_read(tmp_path):
    data = model_of(sentence_pieces())
    random.seed(0)
    for _ in range(300):
        broken = bytearray(data[: random.randrange(len(data))])
        for _ in range(random.randint(0, 3)):
            if broken:
                broken[random.randrange(len(broken))] = random.randrange(256)
        (tmp_path / "t.model").write_bytes(broken)
        try:
            read_pieces(tmp_path / "t.model")
        except ConversionError as error:
            assert error.diagnostics[0].reference == "bad-checkpoint"


@pytest.mark.mnn
@needs_mnn
def test_the_runtime_encodes_sentence_pieces_as_the_made_document_does(tmp_path):
    convert_llm(folder_with(tmp_path / "source", sentence_pieces()), tmp_path / "made")
    expected = [encode(tmp_path / "made", text)[0] for text in TEXTS[:3]]
    assert encode(tmp_path / "made", "")[1] == 1
    assert encoded_by_mnn(tmp_path / "made", TEXTS[:3]) == expected


@pytest.mark.mnn
@needs_mnn
def test_the_runtime_encodes_byte_pairs_as_the_source_does(tmp_path):
    source = write_folder(tmp_path / "source")
    convert_llm(source, tmp_path / "made")
    package = tokenizers.Tokenizer.from_file(str(source / "tokenizer.json"))
    assert encoded_by_mnn(tmp_path / "made", TEXTS) == [package.encode(text).ids for text in TEXTS]


def test_pieces_of_a_tokenizer_json_get_scores_in_the_order_of_its_merges(tmp_path):
    pieces = sentence_pieces()
    source = folder_with(tmp_path / "source", pieces)
    (source / "tokenizer.json").write_text(json.dumps(sentencepiece_document(pieces, [1])), encoding="utf-8")
    (source / "tokenizer.model").unlink()
    convert_llm(source, tmp_path / "made")
    kind, counts, ids, size, *lines = (tmp_path / "made/tokenizer.txt").read_text().splitlines()
    assert (kind, counts, ids, size) == ("430 0", "3 1 1", "0 1 2 2 1 ", str(len(pieces)))
    found = [line.split(" ") for line in lines]
    assert [int(k) for _, _, k in found] == [p.kind for p in pieces]
    words = [i for i, p in enumerate(pieces) if p.kind == NORMAL and len(p.text) > 1]
    ours, theirs = ([float(score) for score in scores] for scores in
                    zip(*((found[i][1], pieces[i].score) for i in words), strict=True))  # fmt: skip
    assert np.argsort(ours).tolist() == np.argsort(theirs).tolist()


def test_merges_follow_from_scores():
    pieces = [("a", -9.0, 0), ("b", -9.0, 1), ("ab", -1.0, 2), ("ba", 0.0, 3), ("aba", -2.0, 4)]
    assert merges_of(pieces) == ["b a", "a b", "a ba", "ab a"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_documents_with_every_known_pattern_load(pattern):
    tokens = ["<s>", "a", "1", "\u0120", "\u0120a"]
    made = tokenizers.Tokenizer.from_str(json.dumps(document(pattern, tokens, ["\u0120 a"], [0], [0])))
    assert made.encode("a a11").tokens == ["<s>", "a", "\u0120a", "1", "1"]
    assert document("of another kind", tokens, [], [], []) is None


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    source = write_folder(tmp_path / "source")
    (source / "tokenizer.json").unlink()
    with pytest.raises(ConversionError, match=r"neither tokenizer.json nor tokenizer.model"):
        convert_llm(source, tmp_path / "made")
    (source / "tokenizer.json").write_text('{"model": {"type": "WordPiece", "vocab": {}}}')
    with pytest.raises(ConversionError, match="WordPiece"):
        convert_llm(source, tmp_path / "made")


def test_template_and_ends_come_from_the_files_beside(tmp_path):
    source = write_folder(tmp_path / "source")
    (source / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": "{{ x }}", "eos_token": {"content": "</s>"}, "bos_token": "<s>"})
    )
    (source / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 7]}))
    convert_llm(source, tmp_path / "made")
    described = json.loads((tmp_path / "made/llm_config.json").read_text())
    assert described["jinja"] == {"chat_template": "{{ x }}", "eos": "</s>", "bos": "<s>"}
    assert (tmp_path / "made/tokenizer.txt").read_text().splitlines()[1:3] == ["3 2 0", "0 1 2 2 7 "]


def test_weights_of_another_size_than_configured_are_refused(tmp_path):
    source = write_folder(tmp_path / "source")
    weights = llama_weights(CONFIG)
    for name, wrong in (("model.layers.1.mlp.up_proj.weight", (95, 64)), ("model.norm.weight", (63,))):
        write_safetensors(source / "model.safetensors", weights | {name: np.zeros(wrong, np.float32)})
        with pytest.raises(ConversionError) as caught:
            convert_llm(source, tmp_path / "made")
        assert caught.value.diagnostics[0].reference == "bad-checkpoint"
        assert name.removesuffix(".weight") in str(caught.value)
    weights.pop("model.norm.weight")
    write_safetensors(source / "model.safetensors", weights)
    with pytest.raises(ConversionError, match=r"has no weight 'model.norm'"):
        convert_llm(source, tmp_path / "made")
