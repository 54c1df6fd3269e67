"""Every family against transformers: tiny models with random weights, in our executor and in MNN's runtime."""

import json

import numpy as np
import pytest
from llm_cases import fed_to_mnn, write_folder, write_tokenizer

from mnnconvert.llm import LlmOptions, convert_llm
from mnnconvert.llm_session import LlmSession
from mnnconvert.verify.mnn_engine import MnnEngine

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

BASE = {
    "vocab_size": 200, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
PLAIN = {"rope_type": "default", "rope_theta": 1e4}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
LONG = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1 + i / 10 for i in range(8)],
        "long_factor": [2.0] * 8, "original_max_position_embeddings": 32}  # fmt: skip
CASES = {
    "llama": ("LlamaConfig", {}),
    "llama 3": ("LlamaConfig", {"rope_parameters": LLAMA3}),
    "llama, linear": ("LlamaConfig", {"rope_parameters": {**PLAIN, "rope_type": "linear", "factor": 2.0}}),
    "llama with biases": ("LlamaConfig", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "mistral": ("MistralConfig", {"sliding_window": 7, "head_dim": 24}),
    "qwen 2": ("Qwen2Config", {}),
    "qwen 2, yarn": ("Qwen2Config", {"rope_parameters": YARN}),
    "qwen 2, windows": ("Qwen2Config", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    "qwen 3": ("Qwen3Config", {"head_dim": 32, "tie_word_embeddings": True}),
    "gemma 2": ("Gemma2Config", {"head_dim": 32, "query_pre_attn_scalar": 20, "sliding_window": 6,
                                 "attn_logit_softcapping": None}),
    "gemma 3": ("Gemma3TextConfig", {"head_dim": 32, "query_pre_attn_scalar": 20, "sliding_window": 6,
                                     "num_hidden_layers": 7}),
    "phi 3": ("Phi3Config", {"rope_parameters": {**PLAIN, "partial_rotary_factor": 0.75}}),
    "phi 3, longrope": ("Phi3Config", {"original_max_position_embeddings": 32, "rope_parameters": LONG}),
}  # fmt: skip


def random_model(kind, changes):
    """A model whose weights are all random, gains and biases too; embeddings are numbers that bfloat16 holds."""
    torch.manual_seed(0)
    config = getattr(transformers, kind)(**{**BASE, **changes})
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            small = "norm" in name or "bias" in name
            weight.copy_(torch.randn_like(weight) * (0.1 if small else weight.shape[-1] ** -0.5) + ("norm" in name))
        table = model.get_input_embeddings().weight
        table.copy_(table.bfloat16().float())
    return model


@pytest.mark.mnn
@pytest.mark.skipif(not MnnEngine.available(), reason="needs MNN")
@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers(tmp_path, case):
    model = random_model(*CASES[case])
    model.save_pretrained(tmp_path / "source")
    write_tokenizer(tmp_path / "source", 200)
    convert_llm(tmp_path / "source", tmp_path / "made", LlmOptions(quant_bit=32))
    ids = torch.randint(0, 200, (1, 20))
    with torch.no_grad():
        expected = model(ids).logits[0].numpy()
    tokens = ids[0].tolist()
    ours = LlmSession(tmp_path / "made", threads=1)
    np.testing.assert_allclose(ours.logits(tokens, rows=0), expected, atol=2e-5 * np.abs(expected).max())
    ours.reset()
    steps = [tokens[:12], *([t] for t in tokens[12:])]
    stepped = np.stack([ours.logits(step)[-1] for step in steps])
    np.testing.assert_allclose(stepped, expected[11:], atol=2e-5 * np.abs(expected).max())
    theirs = np.stack(fed_to_mnn(tmp_path / "made", steps))
    np.testing.assert_allclose(theirs, expected[11:], atol=1e-3 * np.abs(expected).max())


def test_gemma_2_says_that_its_scores_are_not_capped(tmp_path):
    random_model("Gemma2Config", {"head_dim": 32}).save_pretrained(tmp_path / "source")
    write_tokenizer(tmp_path / "source", 200)
    report = convert_llm(tmp_path / "source", tmp_path / "made", LlmOptions(quant_bit=32))
    assert [d.reference for d in report.diagnostics] == ["llm-score-cap"]


@pytest.mark.parametrize(("scaling", "limit", "notes"), [(LONG, 32, ["llm-short-context"]), (None, 128, [])])
def test_a_limit_of_positions_is_told(tmp_path, scaling, limit, notes):
    source = write_folder(tmp_path / "source", rope_scaling=scaling)
    report = convert_llm(source, tmp_path / "made", LlmOptions(quant_bit=32))
    assert [d.reference for d in report.diagnostics] == notes
    assert json.loads((tmp_path / "made/llm_config.json").read_text())["max_position_embeddings"] == limit


GGUF_CASES = {
    "qwen2": ("Qwen2Config", {}, {}),
    "qwen3": ("Qwen3Config", {"head_dim": 32, "tie_word_embeddings": True}, {"key_length": 32}),
    "gemma2": (
        "Gemma2Config",
        {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 6, "attn_logit_softcapping": None},
        {"key_length": 32, "sliding_window": 6, "final_logit_softcapping": 30.0},
    ),
    "gemma3": (
        "Gemma3TextConfig",
        {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 6, "num_hidden_layers": 7},
        {"key_length": 32, "sliding_window": 6, "rope_freq_base": 1e6},
    ),
    "phi3": ("Phi3Config", {}, {"rope_dimension_count": 16}),
}


@pytest.mark.parametrize("arch", GGUF_CASES)
def test_a_gguf_file_is_the_same_model_as_the_folder(tmp_path, arch):
    pytest.importorskip("gguf")
    from llm_gguf import write_gguf

    kind, changes, extra = GGUF_CASES[arch]
    model = random_model(kind, changes)
    model.save_pretrained(tmp_path / "source")
    write_tokenizer(tmp_path / "source", 200)
    weights = {name: weight.numpy() for name, weight in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        weights.pop("lm_head.weight")
    config = model.config.to_dict() | {"rope_theta": 1e4}
    write_gguf(tmp_path / "m.gguf", weights, config=config, arch=arch, **extra)
    sources = {"source": "made", "m.gguf": "other"}
    for source, target in sources.items():
        convert_llm(tmp_path / source, tmp_path / target, LlmOptions(quant_bit=32))
    ids = [5, 9, 33, 7, 8, 12, 60, 2, 150, 3]
    one, other = (LlmSession(tmp_path / n, threads=1).logits(ids, rows=0) for n in sources.values())
    np.testing.assert_allclose(other, one, atol=1e-5)


def test_the_text_part_of_a_larger_gemma_3_is_found(tmp_path):
    from llm_cases import write_safetensors

    kind, changes = CASES["gemma 3"]
    model = random_model(kind, changes)
    model.save_pretrained(tmp_path / "text")
    write_tokenizer(tmp_path / "text", 200)
    weights = {f"language_model.{n}": w.numpy() for n, w in model.state_dict().items() if n != "lm_head.weight"}
    (tmp_path / "whole").mkdir()
    config = {"model_type": "gemma3", "text_config": model.config.to_dict()}
    (tmp_path / "whole/config.json").write_text(json.dumps(config, default=str))
    write_safetensors(tmp_path / "whole/model.safetensors", weights | {"vision_tower.x": np.zeros(3, np.float32)})
    write_tokenizer(tmp_path / "whole", 200)
    found = []
    for name in ("text", "whole"):
        convert_llm(tmp_path / name, tmp_path / "made", LlmOptions(quant_bit=32))
        found.append((tmp_path / "made/llm.mnn.weight").read_bytes())
    assert found[0] == found[1]
