"""Small transformers of many kinds with random weights, and what the exporters of torch make of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

WIDTH, HEADS, LAYERS, WORDS, LONGEST = 32, 4, 2, 60, 64
TEXT = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 48,
        "vocab_size": WORDS, "max_position_embeddings": LONGEST}  # fmt: skip
GROUPED = {**TEXT, "num_key_value_heads": 2}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GPT = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "vocab_size": WORDS, "n_positions": LONGEST}
VISION = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 48,
          "image_size": 32, "patch_size": 8}  # fmt: skip
SAM = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "image_size": 32,
       "patch_size": 4, "window_size": 4, "global_attn_indexes": (1,), "output_channels": 8, "mlp_dim": 48}  # fmt: skip
SWIN = {"embed_dim": 16, "depths": [2], "num_heads": [2], "image_size": 32, "patch_size": 4, "window_size": 4}
WHISPER = {"d_model": WIDTH, "encoder_layers": LAYERS, "decoder_layers": LAYERS, "encoder_attention_heads": HEADS,
           "decoder_attention_heads": HEADS, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "vocab_size": WORDS,
           "max_source_positions": 16, "max_target_positions": 16, "num_mel_bins": 8, **SPECIAL,
           "decoder_start_token_id": 1}  # fmt: skip
T5 = {"d_model": WIDTH, "d_kv": 8, "d_ff": 48, "num_layers": LAYERS, "num_heads": HEADS, "vocab_size": WORDS}


@dataclass(frozen=True)
class Kind:
    """A class of transformers and of its configuration; what it is fed; how many of its attentions are `fused`, each to
    so many `ops`, how many are not, and why."""

    model: str
    config: str
    sizes: dict[str, Any]
    takes: str = "text"
    fused: int = LAYERS
    ops: int = 1
    missed: int = 0
    reason: str = ""
    attention: tuple[str, ...] = ("eager", "sdpa")


FLAT = "a mask on scores of another shape"
APART = "the mask differs from head to head, and between (4*batch) sequences"
CROSSED = "sequence queries on positions keys"
KINDS = {
    "BERT": Kind("BertModel", "BertConfig", TEXT),
    "CLIP, text": Kind("CLIPTextModel", "CLIPTextConfig", {**TEXT, "eos_token_id": 2}),
    "CLIP, pictures": Kind("CLIPVisionModel", "CLIPVisionConfig", VISION, "pictures"),
    "DINOv2": Kind("Dinov2Model", "Dinov2Config", VISION, "pictures"),
    "Gemma": Kind("GemmaForCausalLM", "GemmaConfig", {**TEXT, "num_key_value_heads": 1, "head_dim": 8}),
    "Gemma 3": Kind("Gemma3ForCausalLM", "Gemma3TextConfig", {**GROUPED, "head_dim": 8, "sliding_window": 4}),
    "GPT-2": Kind("GPT2LMHeadModel", "GPT2Config", GPT),
    "GPT-J": Kind("GPTJForCausalLM", "GPTJConfig", {**GPT, "rotary_dim": 4}),
    "GPT-NeoX": Kind("GPTNeoXForCausalLM", "GPTNeoXConfig", TEXT),
    "Llama": Kind("LlamaForCausalLM", "LlamaConfig", GROUPED),
    "Mistral": Kind("MistralForCausalLM", "MistralConfig", {**GROUPED, "sliding_window": 4}),
    "OPT": Kind("OPTForCausalLM", "OPTConfig", {**TEXT, "ffn_dim": 48, "word_embed_proj_dim": WIDTH}),
    "Phi": Kind("PhiForCausalLM", "PhiConfig", TEXT),
    "Phi-3": Kind("Phi3ForCausalLM", "Phi3Config", {**GROUPED, **SPECIAL}),
    "Qwen 2": Kind("Qwen2ForCausalLM", "Qwen2Config", GROUPED),
    "Qwen 3": Kind("Qwen3ForCausalLM", "Qwen3Config", {**GROUPED, "head_dim": 8}),
    "SmolLM 3": Kind("SmolLM3ForCausalLM", "SmolLM3Config", {**GROUPED, **SPECIAL}),
    "ViT": Kind("ViTModel", "ViTConfig", VISION, "pictures"),
    "Whisper, encoder": Kind("WhisperModel", "WhisperConfig", WHISPER, "sound"),
    "Bloom": Kind("BloomForCausalLM", "BloomConfig", {"hidden_size": WIDTH, "n_layer": LAYERS, "n_head": HEADS,
                  "vocab_size": WORDS}, fused=0, missed=LAYERS, ops=HEADS, reason=FLAT),
    "DeBERTa": Kind("DebertaV2Model", "DebertaV2Config", {**TEXT, "relative_attention": True,
                    "pos_att_type": ["p2c", "c2p"]}, fused=0, missed=LAYERS, ops=HEADS, reason=FLAT,
                    attention=("eager",)),
    "Gemma 2": Kind("Gemma2ForCausalLM", "Gemma2Config", {**GROUPED, "head_dim": 8}, fused=0, missed=LAYERS,
                    reason="scores are capped softly", attention=("eager",)),
    "SAM": Kind("SamVisionModel", "SamVisionConfig", SAM, "pictures", 1, HEADS, 1, APART),
    "Swin": Kind("SwinModel", "SwinConfig", SWIN, "pictures", 1, 2, 1, APART),
    "T5, encoder": Kind("T5EncoderModel", "T5Config", T5, ops=HEADS),
    "T5, decoder": Kind("T5Model", "T5Config", T5, "findings", LAYERS, HEADS, LAYERS, CROSSED),
    "Whisper, decoder": Kind("WhisperModel", "WhisperConfig", WHISPER, "findings", LAYERS, 1, LAYERS, CROSSED),
}  # fmt: skip

FOR_ONE = ("Bloom", "DeBERTa")  # are fused with --batch 1
WITH_PAST = ["Gemma", "Gemma 3", "GPT-2", "Llama", "Phi-3", "Qwen 2", "Qwen 3", "SmolLM 3", "T5, decoder",
             "Whisper, decoder"]  # fmt: skip
BY_DYNAMO_EAGER = {"Swin", "T5, encoder", "T5, decoder"}  # torch 2.13 fails to export their sdpa

NAMED = {"hidden_size": WIDTH, "vocab_size": WORDS, "num_layers": LAYERS, "num_heads": HEADS}
FURTHER = {  # by the TorchScript exporter
    "ALBERT": Kind("AlbertModel", "AlbertConfig", {**TEXT, "embedding_size": 16}),
    "BEiT": Kind("BeitModel", "BeitConfig", {**VISION, "use_relative_position_bias": True}, "pictures", ops=HEADS),
    "CodeGen": Kind("CodeGenForCausalLM", "CodeGenConfig", {**GPT, "rotary_dim": 4}),
    "DeiT": Kind("DeiTModel", "DeiTConfig", VISION, "pictures"),
    "DistilBERT": Kind("DistilBertModel", "DistilBertConfig", {"dim": WIDTH, "n_layers": LAYERS, "n_heads": HEADS,
                       "hidden_dim": 48, "vocab_size": WORDS}),
    "Electra": Kind("ElectraModel", "ElectraConfig", TEXT),
    "Falcon": Kind("FalconForCausalLM", "FalconConfig", TEXT),
    "GPT-Neo": Kind("GPTNeoForCausalLM", "GPTNeoConfig", {**NAMED, "attention_types": [[["global", "local"], 1]],
                    "window_size": 4}),
    "Granite": Kind("GraniteForCausalLM", "GraniteConfig", GROUPED),
    "ModernBERT": Kind("ModernBertModel", "ModernBertConfig", {**TEXT, **SPECIAL, "sep_token_id": 2,
                       "cls_token_id": 1}),
    "MPNet": Kind("MPNetModel", "MPNetConfig", TEXT, ops=HEADS),
    "MPT": Kind("MptForCausalLM", "MptConfig", {"d_model": WIDTH, "n_heads": HEADS, "n_layers": LAYERS,
                "vocab_size": WORDS, "max_seq_len": LONGEST}, ops=HEADS),
    "OLMo 2": Kind("Olmo2ForCausalLM", "Olmo2Config", GROUPED),
    "RoBERTa": Kind("RobertaModel", "RobertaConfig", TEXT),
    "SigLIP": Kind("SiglipVisionModel", "SiglipVisionConfig", VISION, "pictures"),
    "StarCoder 2": Kind("Starcoder2ForCausalLM", "Starcoder2Config", GROUPED),
    "UMT5": Kind("UMT5EncoderModel", "UMT5Config", T5, ops=HEADS),
    "YOLOS": Kind("YolosModel", "YolosConfig", {**VISION, "image_size": (32, 32), "num_detection_tokens": 3},
                  "pictures"),
}  # fmt: skip


def table() -> str:
    """What becomes of attentions by kind, for docs/transformers.md; the tests hold each line."""
    heads = (
        "kind",
        "`dynamo=False`",
        "`dynamo=True`",
        "operators of each",
        "keys of earlier calls",
        "in pieces, because",
    )
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for name, kind in KINDS.items():
        count = f"{kind.fused}/{kind.fused + kind.missed}"
        dynamo = f"{count}, `eager` only" if name in BY_DYNAMO_EAGER else count
        ops = "one" if kind.ops == 1 else "one per head"
        if not kind.fused:
            ops = f"{ops}, with `--batch 1`" if name in FOR_ONE else ""
        past = "kept inside" if name in WITH_PAST else ""
        lines.append(f"| {name} | {count} | {dynamo} | {ops} | {past} | {kind.reason} |")
    return "\n".join(lines) + "\n"


def build(name: str, attention: str) -> Any:
    """The model, its weights drawn from the same seed each time."""
    import torch
    import transformers

    torch.manual_seed(0)
    kind = {**KINDS, **FURTHER}[name]
    model = getattr(transformers, kind.model)(getattr(transformers, kind.config)(**kind.sizes))
    model.set_attn_implementation(attention)
    for weight in model.parameters():
        spread, centre = (0.3, 0.0) if weight.dim() > 1 else (0.1, 1.0)
        weight.data = centre + spread * torch.randn_like(weight)
    part = {"sound": "encoder", "findings": "decoder"}.get(kind.takes)
    return (getattr(model, part) if part else model).eval()


INPUTS = {
    "text": {"input_ids": ("batch", "sequence"), "attention_mask": ("batch", "sequence")},
    "pictures": {"pixel_values": ("batch", 3, 32, 32)},
    "sound": {"input_features": ("batch", 8, 32)},
    "findings": {
        "input_ids": ("batch", "sequence"),
        "attention_mask": ("batch", "sequence"),
        "encoder_hidden_states": ("batch", "positions", WIDTH),
    },
}


def feeds(takes: str, batch: int, length: int) -> dict[str, np.ndarray]:
    """Inputs; a second sequence is padded on its left; an encoder found 10 positions."""
    random = np.random.default_rng(batch)
    sizes = {"batch": batch, "sequence": length, "positions": 10}
    shapes = {name: [sizes.get(d, d) for d in dims] for name, dims in INPUTS[takes].items()}  # type: ignore[call-overload]
    arrays: dict[str, np.ndarray] = {name: random.standard_normal(s).astype(np.float32) for name, s in shapes.items()}
    if "input_ids" in arrays:
        arrays["input_ids"] = random.integers(3, WORDS, (batch, length))
    if "attention_mask" in arrays:
        arrays["attention_mask"] = (np.arange(length) >= length // 3 * np.arange(batch)[:, None]).astype(np.int64)
    return arrays


def export(name: str, attention: str, path: Path, dynamo: bool) -> None:
    """Write the ONNX model of one kind, its batch and (of text) its length open."""
    takes = {**KINDS, **FURTHER}[name].takes
    call = _call(build(name, attention), list(INPUTS[takes]), lambda y: y[0])
    _export(call, INPUTS[takes], feeds(takes, 2, 8), path, ["y"], dynamo)


def export_program(name: str, path: Path) -> None:
    """Write one kind as an exported program of torch, for one sequence of eight words or one picture."""
    import torch

    takes = KINDS[name].takes
    call = _call(build(name, "sdpa"), list(INPUTS[takes]), lambda y: y[0])
    operands = tuple(torch.from_numpy(array) for array in feeds(takes, 1, 8).values())
    torch.export.save(torch.export.export(call, operands, strict=False), path)


def save_keras(layer: Callable[[Any], Any], path: Path) -> None:
    """Write a model of keras: `layer` of x [batch, 6, 32]."""
    import keras

    x = keras.Input((6, WIDTH), name="x")
    keras.Model(x, layer(x)).save(path)


def _call(model: Any, names: list[str], results: Callable[[Any], Any], **more: Any) -> Any:
    """A module with operands by position."""
    import torch

    class Call(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *operands: Any) -> Any:
            return results(self.model(**dict(zip(names, operands, strict=True)), return_dict=True, **more))

    if hasattr(model.config, "use_cache") and "use_cache" not in more:
        model.config.use_cache = False
    return Call().eval()


def _export(module: Any, inputs: dict, arrays: dict, path: Path, outputs: list[str], dynamo: bool) -> None:
    import torch

    axes = {name: {i: d for i, d in enumerate(dims) if isinstance(d, str)} for name, dims in inputs.items()}
    more = {"dynamic_shapes": (tuple(axes.values()),)} if dynamo else {"dynamic_axes": axes, "opset_version": 17}
    operands = tuple(torch.from_numpy(array) for array in arrays.values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, operands, path, dynamo=dynamo, input_names=list(inputs), output_names=outputs,
                          **({"external_data": False, "verbose": False} if dynamo else {}), **more)  # fmt: skip


def export_decoder(name: str, path: Path, dynamo: bool, cropped: bool = False) -> dict[str, tuple[int, int]]:
    """A decoder of one sequence that takes keys and values of earlier calls; their names, heads and sizes.

    What a window does not reach is handed on too, unless it is `cropped`. Keys and values of an encoder stay inputs.
    """
    import torch
    from transformers.cache_utils import DynamicCache, EncoderDecoderCache

    crossed, how = "decoder" in name, "eager" if name in BY_DYNAMO_EAGER else KINDS[name].attention[-1]
    model = build(name, how)
    heads = getattr(model.config, "num_key_value_heads", HEADS)
    pasts, others = ([f"past_key_values.{i}{of}.{kind}" for i in range(LAYERS) for kind in ("key", "value")]
                     for of in (".decoder" if crossed else "", ".encoder"))  # fmt: skip

    def filled(arrays: Any) -> Any:
        cache = DynamicCache(config=model.config if cropped else None)
        for i in range(LAYERS):
            cache.update(arrays[2 * i], arrays[2 * i + 1], i)
        return cache

    class Decoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any, *rest: Any) -> Any:
            cache, more = filled(rest), {}
            if crossed:
                cache = EncoderDecoderCache(cache, filled(rest[2 * LAYERS :]))
                more["encoder_hidden_states"] = rest[-1].new_zeros(1, rest[-1].shape[2], WIDTH)
            y = self.model(input_ids=input_ids, attention_mask=attention_mask, past_key_values=cache, use_cache=True,
                           **more)  # fmt: skip
            kept = y.past_key_values.self_attention_cache if crossed else y.past_key_values
            return (y[0], *(t for layer in kept.layers for t in (layer.keys, layer.values)))

    inputs: dict[str, Any] = {"input_ids": (1, "sequence"), "attention_mask": (1, "past + sequence")}
    inputs |= dict.fromkeys(pasts, (1, heads, "past", WIDTH // HEADS))
    inputs |= dict.fromkeys(others if crossed else (), (1, heads, "positions", WIDTH // HEADS))
    sizes, random = {"past": 5, "positions": 10}, np.random.default_rng(0)
    arrays = feeds("text", 1, 3) | {"attention_mask": np.ones((1, 8), np.int64)}
    arrays |= {n: random.standard_normal([sizes.get(d, d) for d in dims]).astype(np.float32)
               for n, dims in inputs.items() if n not in arrays}  # fmt: skip
    outputs = ["logits", *(past.replace("past_key_values", "present") for past in pasts)]
    if dynamo:
        axes = [{i: d for i, d in enumerate(dims) if isinstance(d, str)} for dims in inputs.values()]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                Decoder().eval(), tuple(torch.from_numpy(a) for a in arrays.values()), path, dynamo=True,
                input_names=list(inputs), output_names=outputs, external_data=False, verbose=False,
                dynamic_shapes=(axes[0], axes[1], tuple(axes[2:])),
            )  # fmt: skip
    else:
        _export(Decoder().eval(), inputs, arrays, path, outputs, False)
    return dict.fromkeys(pasts, (heads, WIDTH // HEADS))
