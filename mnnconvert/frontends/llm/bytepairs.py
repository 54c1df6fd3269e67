"""The content of a Hugging Face tokenizer.json for vocabularies that came without one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mnnconvert.frontends.llm.sentencepiece import CONTROL, UNKNOWN, USER, Piece

WORDS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
ENGLISH = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
OTHERS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = ENGLISH + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + OTHERS
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
SPACE = "\u2581"  # what SentencePiece writes for a space
PATTERNS: dict[str, tuple[str, bool]] = {
    "default": (WORDS, False), "gpt-2": (WORDS, False), "smollm": (WORDS, True), "llama-bpe": (LLAMA3, False),
    "llama3": (LLAMA3, False), "qwen2": (QWEN2, False),
}  # fmt: skip
"""By the name in GGUF files: how texts are cut into words, and whether digits are cut apart first."""


def document(
    pattern: str, tokens: Sequence[str], merges: Sequence[str], special: Sequence[int], prefix: Sequence[int]
) -> dict[str, Any] | None:
    """tokenizer.json for byte-level pairs; None where the pattern has a name that is not known."""
    if pattern not in PATTERNS:
        return None
    words, single_digits = PATTERNS[pattern]
    split = {"type": "Split", "pattern": {"Regex": words}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    digits = [{"type": "Digits", "individual_digits": True}] if single_digits else []
    return _document(
        tokens, merges, special, prefix,
        {"type": "Sequence", "pretokenizers": [*digits, split, level]}, None, {**level, "use_regex": True}, {},
    )  # fmt: skip


def sentencepiece_document(pieces: Sequence[Piece], prefix: Sequence[int], spaced: bool = True) -> dict[str, Any]:
    """tokenizer.json that encodes as SentencePiece does with these pieces: pairs are merged by the score of the result.

    `spaced`: texts get a space in front.
    """
    tokens = [p.text for p in pieces]
    special = [i for i, p in enumerate(pieces) if p.kind in (CONTROL, UNKNOWN, USER)]
    plain = [(p.text, p.score, i) for i, p in enumerate(pieces) if i not in set(special)]
    before = [{"type": "Prepend", "prepend": SPACE}] if spaced else []
    normal = [*before, {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}]
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if spaced else []
    decoder = [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "}, {"type": "ByteFallback"},
               {"type": "Fuse"}, *strip]  # fmt: skip
    unknown = next((p.text for p in pieces if p.kind == UNKNOWN), None)
    extra = {"unk_token": unknown, "fuse_unk": True, "byte_fallback": any(p.kind == 6 for p in pieces)}
    return _document(
        tokens, merges_of(plain), special, prefix, None, {"type": "Sequence", "normalizers": normal},
        {"type": "Sequence", "decoders": decoder}, extra,
    )  # fmt: skip


def merges_of(pieces: Sequence[tuple[str, float, int]]) -> list[str]:
    """The pairs of pieces (text, score, id) that make a piece, those of the best scores first."""
    ids = {text: number for text, _, number in pieces}
    ranked: list[tuple[float, int, int, str]] = []
    for text, score, _ in pieces:
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in ids and right in ids:
                ranked.append((-score, ids[left], ids[right], f"{left} {right}"))
    return [pair for *_, pair in sorted(ranked)]


def _document(
    tokens: Sequence[str], merges: Sequence[str], special: Sequence[int], prefix: Sequence[int],
    words: Any, normal: Any, decoder: Any, extra: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    added = [{"id": i, "content": tokens[i], "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True} for i in special]  # fmt: skip
    leading = [{"SpecialToken": {"id": tokens[i], "type_id": 0}} for i in prefix]
    text = {"Sequence": {"id": "A", "type_id": 0}}
    names = {tokens[i]: {"id": tokens[i], "ids": [i], "tokens": [tokens[i]]} for i in prefix}
    template = {"type": "TemplateProcessing", "single": [*leading, text],
                "pair": [*leading, text, {"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": names}  # fmt: skip
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
             "vocab": {text: i for i, text in enumerate(tokens)}, "merges": list(merges), **extra}  # fmt: skip
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": normal,
            "pre_tokenizer": words, "post_processor": template if prefix else None, "decoder": decoder,
            "model": model}  # fmt: skip
