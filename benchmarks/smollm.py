"""SmolLM2-135M-Instruct, of which a GGUF file is at hand, as transformers has it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import quality_files as files

from mnnconvert.perplexity import halves, sliding

HEADS = {"attn_q": 9, "attn_k": 3}
LAYERS = 30


def apart(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows [heads * 2n, columns], whose pairs of a rotation lie together in GGUF, with these n rows apart."""
    return rows.reshape(heads, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def write_half(folder: Path, tokenizer: Path) -> None:
    """A float16 folder of Hugging Face, of weights that the published package gguf decodes."""
    import gguf
    import torch
    import transformers

    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, LAYERS)
    config = transformers.LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=LAYERS, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=8192, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e5}, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    stored = {
        t.name: gguf.dequantize(t.data, t.tensor_type).reshape(t.shape[::-1])
        for t in gguf.GGUFReader(str(files.SMOLLM)).tensors
    }
    weights = {}
    for name in model.state_dict():
        if name != "lm_head.weight":  # the table of words
            key = names.get_name(name, try_suffixes=(".weight",))
            heads = HEADS.get(key.split(".")[-2])
            weights[name] = torch.tensor(np.ascontiguousarray(apart(stored[key], heads) if heads else stored[key]))
    model.load_state_dict(weights, strict=False)
    model.tie_weights()
    model.half().save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(tokenizer.read_bytes())


def in_transformers(folder: Path) -> Any:
    """A folder in transformers, in float32."""
    import torch
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def perplexity(model: Any, tokens: Sequence[int], window: int, stride: int = 0, first: int | None = None) -> float:
    """That of a model in transformers, over the windows of `mnnconvert perplexity`."""
    import torch

    surprises = []
    with torch.no_grad():
        for span in sliding(tokens, window, stride) if stride else halves(tokens, window, first):
            known = torch.tensor([span.tokens])
            scores = torch.log_softmax(model(known).logits[0, -span.counted - 1 : -1].double(), -1)
            surprises.append(-scores.gather(1, known[0, -span.counted :, None])[:, 0])
    return float(torch.cat(surprises).mean().exp())
