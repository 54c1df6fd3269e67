"""GGUF files of small language models, written by the published package."""

import gguf
import numpy as np
from llm_cases import CONFIG, LETTERS, SPECIAL

TOKENS = [*SPECIAL, *LETTERS, "he"]


def interleaved(weight, heads):
    """Rows as GGUF files have them for Llama: first and second half of a head alternate."""
    return weight.reshape(heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path, weights, kind=None, config=CONFIG, arch="llama", **extra):
    """A file with the weights of a Hugging Face folder, its matrices in blocks of a kind; `extra` are entries."""
    writer = gguf.GGUFWriter(str(path), arch)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_context_length(config["max_position_embeddings"])
    for name, value in ({"rope_freq_base": config["rope_theta"]} | extra).items():
        getattr(writer, f"add_{name}")(value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    size = config["vocab_size"]
    writer.add_token_list([*TOKENS, *(f"filler{i}" for i in range(len(TOKENS), size))])
    writer.add_token_types([3] * 3 + [1] * (size - 3))
    writer.add_token_merges(["h e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, arch.upper()), config["num_hidden_layers"])
    for name, weight in weights.items():
        if arch == "llama" and "self_attn.q_proj" in name:
            weight = interleaved(weight, config["num_attention_heads"])
        if arch == "llama" and "self_attn.k_proj" in name:
            weight = interleaved(weight, config["num_key_value_heads"])
        if arch.startswith("gemma") and "norm" in name:
            weight = weight + 1
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if kind is None or weight.ndim < 2:
            writer.add_tensor(stored, np.ascontiguousarray(weight, np.float32))
        else:
            blocks = gguf.quantize(np.ascontiguousarray(weight), kind)
            writer.add_tensor(stored, blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
