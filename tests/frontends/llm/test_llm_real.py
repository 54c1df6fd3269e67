"""SmolLM2-135M-Instruct: what its files say, against transformers. Needs the models of `make quality`."""

import sys
from pathlib import Path

import numpy as np
import pytest
from llm_cases import fed_to_mnn

from mnnconvert.frontends.llm.gguf import read_gguf
from mnnconvert.ir import CodedTensor
from mnnconvert.llm import LlmOptions, convert_llm
from mnnconvert.llm_session import LlmSession
from mnnconvert.perplexity import encode, measure
from mnnconvert.schema.reader import read_model

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))
import quality_files as files

pytestmark = [
    pytest.mark.slow,
    pytest.mark.models,
    pytest.mark.skipif(not files.SMOLLM.is_file(), reason="needs `make quality`"),
]
HEADS = {"attn_q": 9, "attn_k": 3}
PROMPT = "<|im_start|>user\nWhat is the history of the city of Paris?<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("smollm")
    convert_llm(files.SMOLLM, folder / "gguf")
    return folder


@pytest.fixture(scope="module")
def reference(made):
    """The model in transformers, from weights that the published package decodes, and its float16 folder."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    gguf = pytest.importorskip("gguf")
    torch.set_num_threads(1)
    reader = gguf.GGUFReader(str(files.SMOLLM))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 30)
    config = transformers.LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=8192, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e5}, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    stored = {t.name: gguf.dequantize(t.data, t.tensor_type).reshape(t.shape[::-1]) for t in reader.tensors}
    weights = {}
    for name in model.state_dict():
        if name != "lm_head.weight":
            key = names.get_name(name, try_suffixes=(".weight",))
            heads = HEADS.get(key.split(".")[-2])
            weight = stored[key]
            if heads:
                weight = weight.reshape(heads, -1, 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)
            weights[name] = torch.tensor(np.ascontiguousarray(weight))
    model.load_state_dict(weights, strict=False)
    model.tie_weights()
    half = made / "half"
    model.half().save_pretrained(half)
    (half / "tokenizer.json").write_bytes((made / "gguf/tokenizer.json").read_bytes())
    return transformers.AutoModelForCausalLM.from_pretrained(half, dtype=torch.float32).eval()


def test_every_code_of_the_gguf_file_is_kept(made):
    source, found = read_gguf(files.SMOLLM), 0
    for node in read_model(made / "gguf/llm.mnn").nodes:
        name = node.name.split(".")
        if node.op.kind != "Convolution" or len(name) < 5:
            continue
        kind = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output"}.get(name[-1])
        expected = source.tensor(f"blk.{name[2]}.{kind or 'ffn_' + name[-1][:-5]}.weight").numpy()
        heads = HEADS.get(kind)
        if heads:
            expected = expected.reshape(heads, -1, 2, expected.shape[1]).swapaxes(1, 2).reshape(expected.shape)
        tensor = node.inputs[1].tensor
        assert isinstance(tensor, CodedTensor) and tensor.coded.bits == 4
        np.testing.assert_array_equal(tensor.coded.decode().view(np.uint32), expected.view(np.uint32))
        found += 1
    assert found == 210


def test_64_tokens_are_those_of_transformers(made, reference):
    import torch

    prompt, _ = encode(made / "gguf", PROMPT)
    with torch.no_grad():
        answer = reference.generate(torch.tensor([prompt]), max_new_tokens=64, min_new_tokens=64, do_sample=False)
    expected = answer[0, len(prompt) :].tolist()
    assert list(LlmSession(made / "gguf", threads=1).generate(prompt, 64)) == expected
    steps = [prompt, *([t] for t in expected[:-1])]
    assert [int(scores.argmax()) for scores in fed_to_mnn(made / "gguf", steps)] == expected


def test_perplexity_is_that_of_transformers(made, reference):
    import torch

    convert_llm(made / "half", made / "half16", LlmOptions(quant_bit=16))
    tokens, first = encode(made / "half16", files.prose()[:12_000])
    surprises = []
    with torch.no_grad():
        for start in range(0, len(tokens) - 511, 512):
            window = torch.tensor([tokens[start : start + 512]])
            found = torch.log_softmax(reference(window).logits[0].double(), -1)
            surprises.append(-found[256:511].gather(1, window[0, 257:, None])[:, 0])
    expected = float(torch.cat(surprises).mean().exp())
    ours = measure(LlmSession(made / "half16", threads=1), tokens, 512, first=first)
    assert ours.perplexity == pytest.approx(expected, rel=0.005)
