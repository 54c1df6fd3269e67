"""Tokenizers: from tokenizer.json, SentencePiece's tokenizer.model or a GGUF file to what MNN's runtime reads.

`tokenizer.txt` is the text form of MNN's runtime: a line with its mark and the kind, the numbers of special, stop and
prefix tokens, their ids in one line, then the vocabulary. Kind 0 (SentencePiece): a count, then a line of base64 piece,
score and type each. Kind 3 (byte-level pairs): counts of tokens and merges, then a line for each of them.
`tokenizer.json` is that of Hugging Face, copied or made, for those who encode texts elsewhere.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mnnconvert.errors import ConversionError, Diagnostic
from mnnconvert.frontends.llm import bytepairs
from mnnconvert.frontends.llm.checkpoint import Checkpoint, GgufCheckpoint
from mnnconvert.frontends.llm.safetensors import read_json
from mnnconvert.frontends.llm.sentencepiece import BYTE, CONTROL, NORMAL, UNKNOWN, USER, Piece, read_pieces

MARK = 430
SENTENCE_PIECES, BYTE_PAIRS = 0, 3
MOST_TOKENS = 1 << 24  # what says more is damaged
ENDS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|endoftext|>", "</s>")
"""Tokens that end an answer wherever a vocabulary has them as special ones."""


SPACED = ('"Prepend"', '"prepend_scheme": "always"', '"prepend_scheme": "first"', '"add_prefix_space": true')
"""What tells that a tokenizer.json puts a space before texts."""


@dataclass
class Tokenizer:
    """A vocabulary by id, and what is special in it.

    `merges` are those of byte-level pairs; without, the pieces are those of SentencePiece. `document` is the content
    of tokenizer.json, None where there is none.
    """

    pieces: list[Piece]
    merges: list[str]
    special: list[int]
    stop: list[int]
    prefix: list[int]
    bos: str = ""
    eos: str = ""
    template: str = ""
    document: dict[str, Any] | None = None
    notes: list[Diagnostic] = field(default_factory=list)

    def write(self, text: Path, document: Path) -> None:
        """Write both files."""
        text.write_text("\n".join(self._lines()) + "\n", encoding="utf-8", newline="\n")
        if self.document is not None:
            document.write_text(json.dumps(self.document, ensure_ascii=False), encoding="utf-8")

    def _lines(self) -> Iterable[str]:
        kind = BYTE_PAIRS if self.merges else SENTENCE_PIECES
        yield f"{MARK} {kind}"
        yield f"{len(self.special)} {len(self.stop)} {len(self.prefix)}"
        yield "".join(f"{number} " for number in (*self.special, *self.stop, *self.prefix))
        if kind == BYTE_PAIRS:
            yield f"{len(self.pieces)} {len(self.merges)}"
            yield from (_on_one_line(piece.text) for piece in self.pieces)
            yield from self.merges
        else:
            yield f"{len(self.pieces)}"
            yield from (f"{_base64(p.text)} {p.score:.9g} {p.kind}" for p in self.pieces)

    def described(self) -> dict[str, Any]:
        """What llm_config.json says of it: the template of chats, and its first and last token."""
        if not self.template:
            return {"prompt_template": "%s"}
        jinja = {"chat_template": self.template, "eos": self.eos} | ({"bos": self.bos} if self.bos else {})
        return {"jinja": jinja}


def read_tokenizer(source: Path, checkpoint: Checkpoint) -> Tokenizer:
    """The tokenizer of a checkpoint. Raises `bad-checkpoint`, `llm-unsupported`."""
    try:
        return _found(source, checkpoint)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        problem = f"the files of the tokenizer cannot be used: {type(error).__name__}: {error}"
        raise ConversionError.of("bad-checkpoint", problem, file=source) from error


def _found(source: Path, checkpoint: Checkpoint) -> Tokenizer:
    if isinstance(checkpoint, GgufCheckpoint):
        return _of_gguf(checkpoint)
    if (source / "tokenizer.json").is_file():
        return _of_json(source, checkpoint.config)
    if (source / "tokenizer.model").is_file():
        return _of_pieces(source, checkpoint.config)
    raise ConversionError.of(
        "bad-checkpoint", f"'{source}' has neither tokenizer.json nor tokenizer.model", file=source
    )


def _of_json(folder: Path, config: Mapping[str, Any]) -> Tokenizer:
    document = read_json(folder / "tokenizer.json")
    model = document.get("model")
    if not isinstance(model, dict) or model.get("type") != "BPE" or not isinstance(model.get("vocab"), dict):
        kind = model.get("type") if isinstance(model, dict) else None
        raise ConversionError.of("llm-unsupported", f"a tokenizer of type '{kind}' is not known here", hint="BPE is")
    added = {int(t["id"]): str(t["content"]) for t in document.get("added_tokens", [])}
    tokens = {int(number): str(text) for text, number in model["vocab"].items()} | added
    merges = [m if isinstance(m, str) else " ".join(m) for m in model.get("merges", [])]
    settings = _settings(folder)
    size = max(tokens, default=-1) + 1
    if not 0 < size <= MOST_TOKENS or min(tokens) < 0:
        raise ValueError(f"a vocabulary of {size}")
    texts = [tokens.get(i, f"<unused_{i}>") for i in range(size)]
    prefix = [i for i in _leading(document, tokens) if i < size]
    names = {"bos": settings.get("bos_token"), "eos": settings.get("eos_token")}
    stop = _stops(folder, config, texts, set(added), names["eos"])
    byte_level = "ByteLevel" in json.dumps([document.get("pre_tokenizer"), document.get("decoder")])
    pieces = [Piece(text, 0.0, NORMAL) for text in texts] if byte_level else _scored(texts, merges, set(added))
    notes = [] if byte_level else _unlike(_spaced(document))
    return Tokenizer(
        pieces, merges if byte_level else [], sorted(added), stop, prefix, names["bos"] or "", names["eos"] or "",
        _template(folder, settings), document, notes,
    )  # fmt: skip


def _settings(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json, with its tokens as texts."""
    path = folder / "tokenizer_config.json"
    found = read_json(path) if path.is_file() else {}
    return {key: value.get("content") if isinstance(value, dict) and "content" in value else value
            for key, value in found.items()}  # fmt: skip


def _template(folder: Path, settings: Mapping[str, Any]) -> str:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    found = settings.get("chat_template")
    if isinstance(found, list):  # several with names
        found = next((t.get("template") for t in found if isinstance(t, dict) and t.get("name") == "default"), None)
    return found if isinstance(found, str) else ""


def _leading(document: Mapping[str, Any], tokens: Mapping[int, str]) -> list[int]:
    """Ids that the post-processor puts before a single text."""
    processor = document.get("post_processor") or {}
    parts = processor.get("processors", [processor]) if isinstance(processor, dict) else []
    ids = {text: number for number, text in tokens.items()}
    leading: list[int] = []
    for part in parts:
        for item in part.get("single", []) if isinstance(part, dict) else []:
            if "SpecialToken" not in item:
                break
            number = ids.get(item["SpecialToken"].get("id"))
            leading += [] if number is None else [number]
    return leading


def _stops(
    folder: Path, config: Mapping[str, Any], texts: Sequence[str], added: set[int], eos: str | None
) -> list[int]:
    """Ids that end an answer: as configured, and those special tokens that are known to."""
    path = folder / "generation_config.json"
    found: list[Any] = []
    for settings in (config, read_json(path) if path.is_file() else {}):
        value = settings.get("eos_token_id")
        found += value if isinstance(value, list) else [value]
    found += [i for i, text in enumerate(texts) if i in added and text in (*ENDS, eos)]
    return sorted({i for i in found if isinstance(i, int) and 0 <= i < len(texts)})


def _scored(texts: Sequence[str], merges: Sequence[str], added: set[int]) -> list[Piece]:
    """Pieces whose scores make SentencePiece merge in the order of a list of merges."""
    rank = {merge.replace(" ", "", 1): -float(i) for i, merge in reversed(list(enumerate(merges)))}
    least = -float(len(merges))
    return [Piece(text, rank.get(text, least), _kind(text, i in added)) for i, text in enumerate(texts)]


def _kind(text: str, added: bool) -> int:
    if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        return BYTE
    return UNKNOWN if text == "<unk>" else CONTROL if added else NORMAL


def _of_pieces(folder: Path, config: Mapping[str, Any]) -> Tokenizer:
    pieces, spaced = read_pieces(folder / "tokenizer.model")
    settings = _settings(folder)
    special = [i for i, p in enumerate(pieces) if p.kind in (CONTROL, UNKNOWN, USER)]
    ids = {p.text: i for i, p in enumerate(pieces)}
    bos, eos = settings.get("bos_token") or "<s>", settings.get("eos_token") or "</s>"
    prefix = [ids[bos]] if settings.get("add_bos_token", True) and bos in ids else []
    stop = _stops(folder, config, [p.text for p in pieces], set(special), eos)
    document = bytepairs.sentencepiece_document(pieces, prefix, spaced)
    template = _template(folder, settings)
    return Tokenizer(pieces, [], special, stop, prefix, bos, eos, template, document, _unlike(spaced))


def _of_gguf(checkpoint: GgufCheckpoint) -> Tokenizer:
    data = checkpoint.file.metadata
    kind, tokens = data.get("tokenizer.ggml.model"), data.get("tokenizer.ggml.tokens")
    if kind not in ("gpt2", "llama") or not isinstance(tokens, list):
        raise ConversionError.of("llm-unsupported", f"a GGUF tokenizer of type '{kind}' is not known here",
                                 hint="gpt2 and llama are", file=checkpoint.file.path)  # fmt: skip
    types = data.get("tokenizer.ggml.token_type") or [NORMAL] * len(tokens)
    scores = data.get("tokenizer.ggml.scores") or [0.0] * len(tokens)
    pieces = [Piece(*each) for each in zip(tokens, scores, types, strict=True)]
    special = [i for i, p in enumerate(pieces) if p.kind in (CONTROL, USER, UNKNOWN)]
    bos, eos = (data.get(f"tokenizer.ggml.{n}_token_id") for n in ("bos", "eos"))
    prefix = [bos] if data.get("tokenizer.ggml.add_bos_token", kind == "llama") and isinstance(bos, int) else []
    stop = {i for i in special if tokens[i] in ENDS} | ({eos} if isinstance(eos, int) else set())
    merges = data.get("tokenizer.ggml.merges", []) if kind == "gpt2" else []
    spaced = bool(data.get("tokenizer.ggml.add_space_prefix", True))
    if kind == "llama":
        document: dict[str, Any] | None = bytepairs.sentencepiece_document(pieces, prefix, spaced)
    else:
        document = bytepairs.document(str(data.get("tokenizer.ggml.pre", "default")), tokens, merges, special, prefix)
    first, last = (tokens[i] if isinstance(i, int) and 0 <= i < len(tokens) else "" for i in (bos, eos))
    notes = [_no_document(data)] if document is None else _unlike(spaced or kind == "gpt2")
    template = data.get("tokenizer.chat_template") or ""
    return Tokenizer(pieces, merges, special, sorted(stop), prefix, first, last, template, document, notes)


def _unlike(spaced: bool) -> list[Diagnostic]:
    """What the runtime does with pieces of SentencePiece that their tokenizer does not."""
    problem = "the runtime puts a space before texts, which the tokenizer of this model does not"
    return [] if spaced else [Diagnostic("llm-tokenizer", problem, hint="feed it token numbers where it matters")]


def _spaced(document: Mapping[str, Any]) -> bool:
    """Whether a tokenizer.json for pieces of SentencePiece puts a space before texts."""
    text = json.dumps([document.get("normalizer"), document.get("pre_tokenizer")])
    return any(mark in text for mark in SPACED)


def _no_document(data: Mapping[str, Any]) -> Diagnostic:
    name = data.get("tokenizer.ggml.pre")
    problem = f"how texts are cut before pairs are merged ('{name}') is not known here: there is no tokenizer.json"
    return Diagnostic("llm-tokenizer", problem, hint="the runtime has a rule of its own; perplexity needs that file")


def _on_one_line(text: str) -> str:
    """A token as the byte-level form spells it: line ends only stand in added tokens, which no line can hold."""
    return text.replace("\n", "Ċ").replace("\r", "č")


def _base64(text: str) -> str:
    return base64.b64encode(text.encode("utf-8", errors="surrogatepass")).decode("ascii")
