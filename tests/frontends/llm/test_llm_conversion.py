"""From a checkpoint to a folder: what stands in it, memory, and what is left behind when something goes wrong."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import ml_dtypes
import numpy as np
import pytest
from llm_cases import CONFIG, fed_to_mnn, llama_weights, write_folder, write_safetensors
from peak_memory import PEAK, counted

from mnnconvert import llm_session
from mnnconvert.errors import ConversionError, GateError, UsageError
from mnnconvert.ir import CodedTensor, FileTensor
from mnnconvert.llm import LlmOptions, convert_llm
from mnnconvert.llm_session import LlmSession
from mnnconvert.quantizers import hqq, lsq
from mnnconvert.schema.reader import read_model
from mnnconvert.verify.mnn_engine import MnnEngine

FILES = ["config.json", "llm.mnn", "llm.mnn.weight", "llm_config.json", "tokenizer.json", "tokenizer.txt"]
IDS = [5, 9, 33, 7, 8, 12, 60, 2]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("source") / "model")


def matrices(folder):
    """The weights of a written file by name."""
    nodes = read_model(folder / "llm.mnn").nodes
    return {n.name: n.inputs[1].tensor for n in nodes if n.op.kind == "Convolution"}


def config_of(folder):
    return json.loads((folder / "llm_config.json").read_text())


@pytest.mark.parametrize(("bits", "block"), [(4, 32), (8, 0), (3, 16)])
def test_weights_are_coded_as_the_quantizer_codes_them(tmp_path, source, bits, block):
    report = convert_llm(source, tmp_path / "made", LlmOptions(quant_bit=bits, quant_block=block, hqq=True))
    assert (report.quantized, report.kept, report.floats) == (15, 0, 0)
    weights = llama_weights(CONFIG)
    for name, tensor in matrices(tmp_path / "made").items():
        assert isinstance(tensor, CodedTensor)
        floats = weights[f"{name}.weight".replace("lm_head", "model.embed_tokens")]
        expected = hqq.quantize(floats, bits, block, False, False)
        np.testing.assert_array_equal(tensor.coded.codes, expected.codes)
        np.testing.assert_array_equal(tensor.coded.scale, expected.scale)


@pytest.mark.parametrize("sym", [False, True])
def test_inputs_that_a_norm_makes_large_count_more(tmp_path, source, sym):
    convert_llm(source, tmp_path / "made", LlmOptions(quant_bit=3, quant_block=32, sym=sym))
    weights, found = llama_weights(CONFIG), matrices(tmp_path / "made")
    for name, norm in (("self_attn.q_proj", "input_layernorm"), ("mlp.up_proj", "post_attention_layernorm")):
        key = f"model.layers.1.{name}"
        floats, gain = weights[f"{key}.weight"], weights[f"model.layers.1.{norm}.weight"]
        plain = lsq.quantize(floats, 3, 32, sym, False).decode()
        ours = found[key].numpy().reshape(floats.shape)
        assert (((ours - floats) * gain) ** 2).sum() < (((plain - floats) * gain) ** 2).sum()


def test_the_folder_is_complete(tmp_path, source):
    report = convert_llm(source, tmp_path / "made", LlmOptions(quant_block=32))
    assert sorted(p.name for p in (tmp_path / "made").iterdir()) == FILES == report.files
    described = config_of(tmp_path / "made")
    assert (described["hidden_size"], described["layer_nums"], described["attention_type"]) == (64, 2, "full")
    assert described["key_value_shape"] == [2, 1, 0, 2, 16]
    assert described["tie_embeddings"][3:] == [4, 32]
    assert report.parameters == sum(w.size for w in llama_weights(CONFIG).values())
    assert report.target_bytes == sum(p.stat().st_size for p in (tmp_path / "made").iterdir())


@pytest.mark.mnn
@pytest.mark.skipif(not MnnEngine.available(), reason="needs MNN")
@pytest.mark.parametrize(
    "options",
    [
        {"quant_block": 32}, {"quant_block": 32, "sym": True}, {"quant_block": 0}, {"quant_bit": 8},
        {"quant_block": 32, "seperate_embed": True}, {"quant_bit": 16}, {"quant_bit": 4, "lm_quant_bit": 8},
        {"quant_bit": 4, "lm_quant_bit": 16}, {"quant_bit": 5, "quant_block": 32}, {"quant_bit": 2, "quant_block": 16},
    ],
    ids=str,
)  # fmt: skip
def test_the_runtime_computes_what_we_compute(tmp_path, source, options):
    convert_llm(source, tmp_path / "made", LlmOptions(**options))
    ours = LlmSession(tmp_path / "made", threads=1)
    steps = [IDS[:5], *([i] for i in IDS[5:])]
    expected = np.stack([ours.logits(step)[-1] for step in steps])
    tolerance = 1e-4 * np.abs(expected).max()
    np.testing.assert_allclose(np.stack(fed_to_mnn(tmp_path / "made", steps)), expected, atol=tolerance)
    bits = options.get("lm_quant_bit", options.get("quant_bit", 4))
    embedded = options.get("seperate_embed", False) or bits not in (4, 8)
    assert (tmp_path / "made/embeddings_bf16.bin").exists() == embedded


def test_a_head_of_its_own_has_embeddings_beside(tmp_path):
    weights = llama_weights(CONFIG)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"][::-1].copy()
    source = write_folder(tmp_path / "source", weights, tie_word_embeddings=False)
    convert_llm(source, tmp_path / "made", LlmOptions(quant_bit=32))
    table = np.fromfile(tmp_path / "made/embeddings_bf16.bin", ml_dtypes.bfloat16).reshape(64, 64)
    np.testing.assert_array_equal(table.astype(np.float32), weights["model.embed_tokens.weight"])
    np.testing.assert_array_equal(matrices(tmp_path / "made")["lm_head"].numpy()[:, :, 0, 0], weights["lm_head.weight"])


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_halves_of_the_source_are_read(tmp_path, source, kind):
    weights = {n: w.astype(getattr(ml_dtypes, kind, kind)) for n, w in llama_weights(CONFIG).items()}
    half = write_folder(tmp_path / "half", weights)
    wide = write_folder(tmp_path / "wide", {n: w.astype(np.float32) for n, w in weights.items()})
    found = []
    for folder in (half, wide):
        convert_llm(folder, tmp_path / "made", LlmOptions(quant_block=32))
        found.append((tmp_path / "made/llm.mnn.weight").read_bytes())
    assert found[0] == found[1]
    convert_llm(half, tmp_path / "made", LlmOptions(quant_bit=16))
    name = "model.layers.0.mlp.up_proj"
    stored = matrices(tmp_path / "made")[name].numpy()[:, :, 0, 0]
    np.testing.assert_array_equal(stored, weights[f"{name}.weight"].astype(np.float16).astype(np.float32))


def test_options_that_contradict_each_other_or_do_not_fit_are_refused(tmp_path, source):
    for wrong in (
        {"quant_bit": 9},
        {"quant_bit": 1},
        {"lm_quant_bit": 0},
        {"quant_block": -1},
        {"hqq": True, "sym": True},
    ):
        with pytest.raises(UsageError):
            LlmOptions(**wrong)
    odd = write_folder(tmp_path / "odd", llama_weights({**CONFIG, "intermediate_size": 97}), intermediate_size=97)
    with pytest.raises(ConversionError) as caught:
        convert_llm(odd, tmp_path / "made", LlmOptions(quant_block=32))
    assert caught.value.diagnostics[0].reference == "llm-block"


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "mamba"}, {"model_type": None}, {"hidden_act": "relu"}, {"rope_scaling": {"type": "dynamic"}},
        {"num_hidden_layers": 0}, {"num_attention_heads": 5, "num_key_value_heads": 3}, {"hidden_size": "many"},
        {"rope_scaling": {"type": "linear"}}, {"rope_scaling": 3}, {"num_key_value_heads": -1},
        {"layer_types": 7, "sliding_window": 3}, {"vocab_size": 63},
    ],
    ids=str,
)  # fmt: skip
def test_configurations_that_cannot_be_used_are_refused(tmp_path, changes):
    source = write_folder(tmp_path / "source", llama_weights(CONFIG))
    (source / "config.json").write_text(json.dumps(CONFIG | changes))
    with pytest.raises(ConversionError) as caught:
        convert_llm(source, tmp_path / "made", LlmOptions(quant_block=32))
    assert caught.value.diagnostics[0].reference in ("llm-unsupported", "bad-checkpoint")
    assert os.listdir(tmp_path) == ["source"]


def test_a_conversion_is_proved_before_it_gets_its_name(tmp_path, source, monkeypatch):
    assert convert_llm(source, tmp_path / "made", LlmOptions(quant_bit=32)).error < 1e-6
    assert 1e-4 < convert_llm(source, tmp_path / "made", LlmOptions(quant_bit=8)).error < 0.05
    assert convert_llm(source, tmp_path / "made", LlmOptions(quant_bit=32, verify="never")).error is None
    monkeypatch.setattr("mnnconvert.llm.VERIFIED", 1000)
    report = convert_llm(source, tmp_path / "made", LlmOptions(quant_bit=32))
    assert report.error is None and [d.reference for d in report.diagnostics] == ["not-verified"]
    assert convert_llm(source, tmp_path / "made", LlmOptions(quant_bit=32, verify="always")).error < 1e-6


def test_a_folder_that_computes_something_else_gets_no_name(tmp_path, source, monkeypatch):
    honest = llm_session.LlmSession.logits
    monkeypatch.setattr(llm_session.LlmSession, "logits", lambda self, *a, **k: honest(self, *a, **k) + next(shift))
    shift = iter((0, 0.01))
    with pytest.raises(GateError) as caught:
        convert_llm(source, tmp_path / "made", LlmOptions(quant_bit=32))
    assert caught.value.diagnostics[0].reference == "verification-missed"
    assert os.listdir(tmp_path) == []


def test_what_is_no_folder_of_ours_is_not_replaced(tmp_path, source):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years of work")
    with pytest.raises(ConversionError, match="something else is there"):
        convert_llm(source, tmp_path / "mine")
    assert (tmp_path / "mine/thesis.txt").read_text() == "years of work"
    for _ in range(2):
        convert_llm(source, tmp_path / "made", LlmOptions(quant_block=32))
    assert sorted(os.listdir(tmp_path)) == ["made", "mine"]


def test_a_failure_while_writing_leaves_nothing(tmp_path):
    weights = llama_weights(CONFIG)
    weights["model.layers.1.mlp.down_proj.weight"][3, 5] = np.nan
    source = write_folder(tmp_path / "source", weights)
    with pytest.raises(ConversionError) as caught:
        convert_llm(source, tmp_path / "made", LlmOptions(quant_block=32))
    assert caught.value.diagnostics[0].reference == "non-finite-weight"
    assert os.listdir(tmp_path) == ["source"]


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A model of about 200 MB in float16."""
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "num_key_value_heads": 16,
             "num_hidden_layers": 6, "vocab_size": 64}  # fmt: skip
    weights = {n: w.astype(np.float16) for n, w in llama_weights({**CONFIG, **sizes}).items()}
    return write_folder(tmp_path_factory.mktemp("large") / "model", weights, **sizes)


@pytest.mark.parametrize("moment", [0.0, 0.5])
def test_a_killed_conversion_leaves_nothing_and_the_next_one_clears_up(tmp_path, large, moment):
    code = "import sys\nfrom mnnconvert.llm import convert_llm\nconvert_llm(*sys.argv[1:])"
    child = subprocess.Popen([sys.executable, "-c", code, str(large), str(tmp_path / "made")])
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".made.*.tmp/made/*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(moment)
    child.send_signal(signal.SIGKILL)
    if child.wait() == 0:
        pytest.skip("it was faster than the signal")
    assert not (tmp_path / "made").exists()
    assert list(tmp_path.glob(".made.*.tmp"))
    convert_llm(write_folder(tmp_path / "small"), tmp_path / "made")
    assert sorted(os.listdir(tmp_path)) == ["made", "small"]


def test_a_conversion_that_is_running_is_left_alone(tmp_path, source):
    from mnnconvert.schema.files import staged_folder

    with staged_folder(tmp_path / "made", "llm_config.json") as folder:
        (folder / "llm_config.json").write_text("{}")
        convert_llm(source, tmp_path / "made", LlmOptions(quant_block=32))
        assert folder.exists()
    assert os.listdir(tmp_path / "made") == ["llm_config.json"]


@counted
def test_one_weight_is_in_memory_at_a_time(tmp_path, large):
    code = (
        f"{PEAK}\nimport sys\nfrom mnnconvert.llm import LlmOptions, convert_llm\n"
        "convert_llm(*sys.argv[1:3])\nbefore = peak()\n"
        "convert_llm(*sys.argv[3:], LlmOptions(verify='never'))\n"
        "print(peak() - before)"
    )
    small = write_folder(tmp_path / "small")
    words = [str(p) for p in (small, tmp_path / "one", large, tmp_path / "two")]
    said = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True, timeout=120)
    size = (large / "model.safetensors").stat().st_size
    assert size > 180e6
    assert int(said.stdout) * 1024 < size / 2  # 70 MB, however many layers: floats of one matrix, codes, the next one


def test_files_of_the_source_that_change_meanwhile_are_noticed(tmp_path):
    tensor = FileTensor(tmp_path / "x", 0, np.dtype("f4"), (2, 2))
    write_safetensors(tmp_path / "x", {"a": np.zeros((2, 2), np.float32)})
    with pytest.raises(ConversionError, match="was changed"):
        tensor.numpy()


ODD = (None, 0, -1, 3.5, 1e300, "x", "", [], {}, [1], ["a"], {"a": 1}, True, 10**30)


def changed_somewhere(value):
    """A JSON value with something odd in a random place, or without what stands there."""
    if isinstance(value, dict | list) and value and random.random() < 0.9:
        key = random.choice(list(value) if isinstance(value, dict) else range(len(value)))
        if random.random() < 0.3:
            value.pop(key)
        else:
            value[key] = changed_somewhere(value[key])
        return value
    return json.loads(json.dumps(random.choice(ODD)))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_damaged_descriptions_are_refused_or_read(tmp_path, name):
    source = write_folder(tmp_path / "source")
    scaling = {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32}
    text = json.dumps(json.loads((source / name).read_text()) | {"rope_scaling": scaling, "sliding_window": 5})
    random.seed(0)
    for _ in range(60):
        (source / name).write_text(json.dumps(changed_somewhere(json.loads(text))))
        try:
            convert_llm(source, tmp_path / "made", LlmOptions(quant_bit=32, verify="never"))
        except ConversionError as error:
            assert error.diagnostics[0].reference in ("bad-checkpoint", "llm-unsupported")
