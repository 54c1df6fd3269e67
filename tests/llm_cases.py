"""Small language models on disk, with random weights, and MNN's runtime for such models."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np

LETTERS = "\u0120abcdefghijklmnopqrstuvwxyz"
SPECIAL = ("<unk>", "<s>", "</s>")
CONFIG = {
    "model_type": "llama", "vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "max_position_embeddings": 128, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": True,
}  # fmt: skip


def write_tokenizer(folder: Path, size: int = 64) -> None:
    """A byte-level tokenizer.json: three special tokens, letters, one merge, and fillers."""
    vocabulary = {text: i for i, text in enumerate((*SPECIAL, *LETTERS, "he"))}
    vocabulary |= {f"filler{i}": i for i in range(len(vocabulary), size)}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    document = {
        "version": "1.0", "added_tokens": [{"id": i, "content": text, **plain} for i, text in enumerate(SPECIAL)],
        "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": ["h e"]},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")


def llama_weights(config: dict, seed: int = 0) -> dict[str, np.ndarray]:
    """float32 weights of a Llama by their published names. Embeddings are numbers that bfloat16 holds."""
    random = np.random.default_rng(seed)
    width, inner, heads = (config[n] for n in ("hidden_size", "intermediate_size", "num_attention_heads"))
    size = width // heads
    outputs = {"q": width, "k": config["num_key_value_heads"] * size, "v": config["num_key_value_heads"] * size}

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (random.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    table = matrix(config["vocab_size"], width)
    weights = {"model.embed_tokens.weight": (table.view(np.uint32) & 0xFFFF0000).view(np.float32)}
    for i in range(config["num_hidden_layers"]):
        key = f"model.layers.{i}"
        weights |= {f"{key}.self_attn.{n}_proj.weight": matrix(rows, width) for n, rows in outputs.items()}
        weights[f"{key}.self_attn.o_proj.weight"] = matrix(width, width)
        weights |= {f"{key}.mlp.{n}_proj.weight": matrix(inner, width) for n in ("gate", "up")}
        weights[f"{key}.mlp.down_proj.weight"] = matrix(width, inner)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{key}.{norm}.weight"] = np.exp(random.standard_normal(width) / 4).astype(np.float32)
    weights["model.norm.weight"] = np.ones(width, np.float32)
    return weights


def write_safetensors(path: Path, tensors: dict[str, np.ndarray], names: dict[str, str] | None = None) -> None:
    """A safetensors file; `names` says the stored type of arrays whose own does not tell (BF16 as uint16)."""
    kinds = {"float32": "F32", "float16": "F16", "int32": "I32", "uint8": "U8", "bfloat16": "BF16", "int64": "I64"}
    header, at = {}, 0
    for name, array in tensors.items():
        kind = (names or {}).get(name, kinds[array.dtype.name])
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    data = b"".join(np.ascontiguousarray(a).tobytes() for a in tensors.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_folder(folder: Path, weights: dict[str, np.ndarray] | None = None, **changes: object) -> Path:
    """A Hugging Face folder of a small Llama."""
    folder.mkdir(parents=True, exist_ok=True)
    config = CONFIG | changes
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    write_safetensors(folder / "model.safetensors", llama_weights(config) if weights is None else weights)
    write_tokenizer(folder, config["vocab_size"])
    return folder


def fed_to_mnn(folder: Path, steps: list[list[int]], **settings: object) -> list[np.ndarray]:
    """Logits [vocabulary] that MNN's runtime for language models gives after each of some runs of tokens."""
    settings = {"precision": "high", "memory": "high", "thread_num": 1, **settings}
    code = (
        "import json, os, pickle, sys\nimport numpy as np\nimport _mnncengine.llm as llm\n"
        "folder, settings, steps = json.load(sys.stdin)\nmodel = llm.create(folder + '/config.json', False)\n"
        "model.set_config(json.dumps(settings))\nassert model.load()\n"
        "found = [np.array(model.forward(ids).read()).ravel() for ids in steps]\n"
        "sys.stdout.flush()\npickle.dump(found, open(sys.argv[1], 'wb'))\nos._exit(0)\n"
    )
    return _in_child(code, folder, settings, steps)


def encoded_by_mnn(folder: Path, texts: list[str]) -> list[list[int]]:
    """The tokens that MNN's runtime makes of texts."""
    code = (
        "import json, os, pickle, sys\nimport _mnncengine.llm as llm\n"
        "folder, settings, texts = json.load(sys.stdin)\nmodel = llm.create(folder + '/config.json', False)\n"
        "assert model.load()\nfound = [model.tokenizer_encode(text) for text in texts]\n"
        "pickle.dump(found, open(sys.argv[1], 'wb'))\nos._exit(0)\n"
    )
    return _in_child(code, folder, {}, texts)


def _in_child(code: str, folder: Path, settings: dict, rest: list) -> list:
    """The runtime ends a process on what it does not like, so it has one of its own."""
    import pickle

    answer = folder.parent / f"{folder.name}.answer"
    subprocess.run(
        [sys.executable, "-c", code, str(answer)], input=json.dumps([str(folder), settings, rest]), text=True,
        timeout=120, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    with answer.open("rb") as file:
        return pickle.load(file)
