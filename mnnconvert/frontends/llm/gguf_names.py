"""What GGUF files call things, in the words of Hugging Face: names of weights, and keys of the configuration."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from mnnconvert.errors import ConversionError
from mnnconvert.frontends.llm.gguf import GgufFile

ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma2": "gemma2", "gemma3": "gemma3_text",
                 "phi3": "phi3", "mistral": "mistral"}  # fmt: skip
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_qkv": "self_attn.qkv_proj", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "ffn_norm": "post_attention_layernorm",
    "post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm",
}  # fmt: skip
SANDWICH = ("gemma2", "gemma3")
OTHER = {"phi3": {"ffn_up": "mlp.gate_up_proj"}} | {k: {"ffn_norm": "pre_feedforward_layernorm"} for k in SANDWICH}
"""What an architecture calls differently."""
SIZES = {
    "hidden_size": "embedding_length", "intermediate_size": "feed_forward_length", "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count", "num_key_value_heads": "attention.head_count_kv",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon", "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length", "sliding_window": "attention.sliding_window",
    "final_logit_softcapping": "final_logit_softcapping", "attn_logit_softcapping": "attn_logit_softcapping",
}  # fmt: skip
LARGE_GEMMA = {"gemma2": 46, "gemma3": 62}
"""Layers of the 27B models, whose scores are scaled by width / heads: the files do not say so."""
INTERLEAVED = ("llama", "mistral")


def architecture(file: GgufFile) -> str:
    """The architecture of a file. Raises `llm-unsupported` where it is not one of ours."""
    found = str(file.metadata.get("general.architecture"))
    if found not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ConversionError.of("llm-unsupported", f"the architecture '{found}' is not known", hint=f"{known} are",
                                 file=file.path)  # fmt: skip
    return found


def published(file: GgufFile, name: str) -> str:
    """The Hugging Face name of a tensor of a file; itself where it has none."""
    stem, dot, kind = name.rpartition(".")
    if stem in TOP:
        return f"{TOP[stem]}{dot}{kind}"
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    names = LAYER | OTHER.get(architecture(file), {})
    if match is None or match[2] not in names:
        return name
    return f"model.layers.{match[1]}.{names[match[2]]}{dot}{kind}"


def interleaved(file: GgufFile, name: str) -> int:
    """Heads of a projection whose rows lie pair by pair in the file; 0 for all other weights."""
    kind = architecture(file)
    if kind not in INTERLEAVED or not re.search(r"\.[qk]_proj(\.bias)?$", name):
        return 0
    key = "head_count_kv" if "k_proj" in name else "head_count"
    heads = file.metadata.get(f"{kind}.attention.{key}", file.metadata.get(f"{kind}.attention.head_count"))
    if not isinstance(heads, int) or heads < 1:
        raise ConversionError.of("bad-checkpoint", f"'{file.path}' says {heads!r} heads", file=file.path)
    return heads


def configuration(file: GgufFile) -> dict[str, Any]:
    """The keys of a config.json that the families read."""
    kind, data = architecture(file), file.metadata
    config = {key: data[f"{kind}.{name}"] for key, name in SIZES.items() if f"{kind}.{name}" in data}
    if "token_embd.weight" not in file.entries:
        raise ConversionError.of("bad-checkpoint", f"'{file.path}' has no table of embeddings", file=file.path)
    config |= {
        "model_type": ARCHITECTURES[kind],
        "vocab_size": file.entries["token_embd.weight"].shape[0],
        "tie_word_embeddings": "output.weight" not in file.entries,
        "hidden_act": "gelu_pytorch_tanh" if kind in SANDWICH else "silu",
        "rope_parameters": _positions(file, kind),
        "bos_token_id": data.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": data.get("tokenizer.ggml.eos_token_id"),
    }
    if kind in SANDWICH:
        config |= _gemma(kind, config)
    elif kind == "phi3" and "phi3.rope.dimension_count" in data and "head_dim" in config:
        config["partial_rotary_factor"] = data["phi3.rope.dimension_count"] / config["head_dim"]
    return config


def _gemma(kind: str, config: dict[str, Any]) -> dict[str, Any]:
    if config.get("num_hidden_layers") == LARGE_GEMMA[kind]:
        return {"query_pre_attn_scalar": config["hidden_size"] // config["num_attention_heads"]}
    return {"query_pre_attn_scalar": config.get("head_dim", 256)}


def _positions(file: GgufFile, kind: str) -> dict[str, Any]:
    data = file.metadata
    settings: dict[str, Any] = {"rope_theta": data.get(f"{kind}.rope.freq_base", 10000.0), "rope_type": "default"}
    if "rope_freqs.weight" in file.entries:
        return settings | {
            "rope_type": "factors",
            "factors": np.asarray(file.tensor("rope_freqs.weight").numpy()).tolist(),
        }
    if "rope_factors_short.weight" in file.entries:
        factors = np.asarray(file.tensor("rope_factors_short.weight").numpy()).tolist()
        context = data.get(f"{kind}.rope.scaling.original_context_length")
        scale = data.get(f"{kind}.rope.scaling.attn_factor")
        return settings | {"rope_type": "longrope", "short_factor": factors, "attention_factor": scale,
                           "original_max_position_embeddings": context}  # fmt: skip
    scaling = data.get(f"{kind}.rope.scaling.type", "none")
    if scaling == "none" or f"{kind}.rope.scaling.factor" not in data:
        return settings
    context = data.get(f"{kind}.rope.scaling.original_context_length")
    return settings | {"rope_type": scaling, "factor": data[f"{kind}.rope.scaling.factor"],
                       "original_max_position_embeddings": context}  # fmt: skip
