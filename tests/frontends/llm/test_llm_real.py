"""SmolLM2-135M-Instruct: what its files say, against transformers. Needs the models of `make quality`."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from llm_cases import fed_to_mnn

from mnnconvert.cli.main import main
from mnnconvert.frontends.llm.gguf import read_gguf
from mnnconvert.ir import CodedTensor
from mnnconvert.llm import convert_llm
from mnnconvert.llm_session import LlmSession
from mnnconvert.perplexity import encode
from mnnconvert.schema.reader import read_model

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))
import novels
import quality_files as files
import smollm

pytestmark = [
    pytest.mark.slow,
    pytest.mark.models,
    pytest.mark.skipif(not files.SMOLLM.is_file(), reason="needs `make quality`"),
]
CHARACTERS = 6000
PROMPT = "<|im_start|>user\nWhat is the history of the city of Paris?<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("smollm")
    convert_llm(files.SMOLLM, folder / "gguf")
    return folder


@pytest.fixture(scope="module")
def reference(made):
    """The model in transformers, from its float16 folder, which it writes."""
    torch = pytest.importorskip("torch")
    for package in ("transformers", "gguf"):
        pytest.importorskip(package)
    torch.set_num_threads(1)
    smollm.write_half(made / "half", made / "gguf/tokenizer.json")
    return smollm.in_transformers(made / "half")


@pytest.fixture(scope="module")
def novel(made):
    """Pride and Prejudice."""
    try:
        novels.fetch()
    except novels.NovelsError as reason:
        pytest.skip(str(reason))
    path = made / "novel.txt"
    path.write_text(novels.novel(), encoding="utf-8")
    return path


def test_every_code_of_the_gguf_file_is_kept(made):
    source, found = read_gguf(files.SMOLLM), 0
    for node in read_model(made / "gguf/llm.mnn").nodes:
        name = node.name.split(".")
        if node.op.kind != "Convolution" or len(name) < 5:
            continue
        kind = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output"}.get(name[-1])
        expected = source.tensor(f"blk.{name[2]}.{kind or 'ffn_' + name[-1][:-5]}.weight").numpy()
        heads = smollm.HEADS.get(kind)
        if heads:
            expected = smollm.apart(expected, heads)
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


@pytest.mark.parametrize(("window", "stride"), [(512, 0), (1024, 512)], ids=["llama.cpp", "Hugging Face"])
def test_perplexity_is_that_of_transformers(made, reference, novel, capsys, window, stride):
    """By the command, on the beginning of the novel; `make perplexity` measures 50,000 characters of it."""
    if not (made / "half16").is_dir():
        assert main(["llm", str(made / "half"), str(made / "half16"), "--quant_bit", "16"]) == 0
    capsys.readouterr()
    words = ["perplexity", str(made / "half16"), "--text", str(novel), "--characters", str(CHARACTERS), "--json"]
    words += ["--window", str(window), *(["--stride", str(stride)] if stride else [])]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    tokens, first = encode(made / "half16", novel.read_text(encoding="utf-8")[:CHARACTERS])
    assert found["tokens"] == len(tokens)
    assert found["perplexity"] == pytest.approx(smollm.perplexity(reference, tokens, window, stride, first), rel=0.005)
