"""GGUF files: every kind of block as the published package decodes it, whole models, and damaged files."""

import random
import struct

import numpy as np
import pytest
from llm_cases import CONFIG, llama_weights, write_folder
from llm_gguf import write_gguf

from mnnconvert.errors import ConversionError
from mnnconvert.frontends.llm.gguf import read_gguf
from mnnconvert.frontends.llm.gguf_blocks import BLOCKS, coded
from mnnconvert.ir import ArrayTensor, CodedTensor
from mnnconvert.llm import LlmOptions, convert_llm
from mnnconvert.llm_session import LlmSession
from mnnconvert.schema.reader import read_model

gguf = pytest.importorskip("gguf")


@pytest.mark.parametrize("number", BLOCKS, ids=[b.name for b in BLOCKS.values()])
def test_blocks_decode_to_the_bits_of_the_published_package(number, rng):
    block = BLOCKS[number]
    raw = rng.integers(0, 256, (6, 3 * block.nbytes), np.uint8)
    records = raw.reshape(-1).view(block.layout)
    for name in {"d", "m"} & set(records.dtype.names):
        records[name] = rng.standard_normal(len(records)).astype(np.float16)
    tensor = coded(ArrayTensor(raw), block, (6, 3 * block.size))
    expected = gguf.dequantize(raw, gguf.GGMLQuantizationType(number)).reshape(tensor.shape)
    np.testing.assert_array_equal(tensor.numpy().view(np.uint32), expected.view(np.uint32))
    assert tensor.make().form == tensor.form


@pytest.mark.parametrize("kind", [None, "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_a_file_is_converted_without_quantizing_it_again(tmp_path, kind):
    kind = None if kind is None else gguf.GGMLQuantizationType[kind]
    weights = llama_weights(CONFIG)
    write_gguf(tmp_path / "m.gguf", weights, kind)
    report = convert_llm(tmp_path / "m.gguf", tmp_path / "made", LlmOptions(quant_bit=32))
    assert (report.kept, report.floats) == ((0, 15) if kind is None else (15, 0))
    if kind is not None:
        weights = {n: gguf.dequantize(gguf.quantize(w, kind), kind) if w.ndim == 2 else w for n, w in weights.items()}
        assert_same_weights(tmp_path / "made", weights)
    write_folder(tmp_path / "floats", weights)
    convert_llm(tmp_path / "floats", tmp_path / "expected", LlmOptions(quant_bit=32))
    ids = [5, 9, 33, 7, 8, 12, 60, 2]
    ours, expected = (LlmSession(tmp_path / n, threads=1).logits(ids, rows=0) for n in ("made", "expected"))
    # the table is bfloat16 beside a float head
    np.testing.assert_allclose(ours, expected, atol=1e-5 if kind is None else 0.05)


def assert_same_weights(folder, weights):
    """Every matrix of the written file, bit by bit; the head up to the rounding of an offset that the runtime wants."""
    found = {n.name: n.inputs[1].tensor for n in read_model(folder / "llm.mnn").nodes if n.op.kind == "Convolution"}
    assert len(found) == 15
    for name, tensor in found.items():
        assert isinstance(tensor, CodedTensor)
        expected = weights[f"{name}.weight".replace("lm_head", "model.embed_tokens")]
        ours = tensor.numpy().reshape(expected.shape)
        if name == "lm_head":
            np.testing.assert_allclose(ours, expected, atol=1e-6)
        else:
            np.testing.assert_array_equal(ours.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("size", [0, 3, 8, 23, 24, 60, 300, 3000])
def test_a_file_that_ends_early_is_refused(tmp_path, size):
    data = write_gguf(tmp_path / "m.gguf", llama_weights(CONFIG)).read_bytes()
    (tmp_path / "short.gguf").write_bytes(data[:size])
    with pytest.raises(ConversionError) as caught:
        convert_llm(tmp_path / "short.gguf", tmp_path / "made")
    assert caught.value.diagnostics[0].reference == "bad-checkpoint"
    assert not (tmp_path / "made").exists()


def test_damaged_heads_are_refused_or_read(tmp_path):
    data = write_gguf(tmp_path / "m.gguf", llama_weights(CONFIG)).read_bytes()
    random.seed(0)
    for _ in range(300):
        broken = bytearray(data[: 1 << 15])
        for _ in range(random.randint(1, 4)):
            broken[random.randrange(3000)] = random.randrange(256)
        (tmp_path / "broken.gguf").write_bytes(broken)
        try:
            read_gguf(tmp_path / "broken.gguf")
        except ConversionError as error:
            assert error.diagnostics[0].reference == "bad-checkpoint"


def test_other_architectures_and_types_are_refused_by_name(tmp_path):
    writer = gguf.GGUFWriter(str(tmp_path / "m.gguf"), "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ConversionError, match="the architecture 'mamba' is not known"):
        convert_llm(tmp_path / "m.gguf", tmp_path / "made")


def bytes_of(tensors):
    """A file of version 3 with one number and these (name, sizes, type, bytes)."""
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), 1)
    head += struct.pack("<Q1sII", 1, b"k", 4, 7)
    body = b""
    for name, sizes, kind, data in tensors:
        head += struct.pack(f"<Q{len(name)}sI{len(sizes)}QIQ", len(name), name, len(sizes), *sizes, kind, len(body))
        body += data + bytes(-len(data) % 32)
    return head + bytes(-len(head) % 32) + body


def test_a_file_made_by_hand_is_read(tmp_path):
    codes = np.arange(32) % 16
    q4 = struct.pack("<ee", 0.5, -2) + (codes[:16] | codes[16:] << 4).astype(np.uint8).tobytes()
    q8 = struct.pack("<e", 0.25) + np.arange(-16, 16, dtype=np.int8).tobytes()
    floats = np.arange(6, dtype="<f4")
    tensors = [(b"a", (32, 1), 3, q4), (b"b", (32, 1), 8, q8), (b"c", (3, 2), 0, floats.tobytes())]
    (tmp_path / "m.gguf").write_bytes(bytes_of(tensors))
    file = read_gguf(tmp_path / "m.gguf")
    assert file.metadata == {"k": 7}
    np.testing.assert_array_equal(file.tensor("a").numpy(), [codes * 0.5 - 2])
    np.testing.assert_array_equal(file.tensor("b").numpy()[0], np.arange(-16, 16) / 4)
    np.testing.assert_array_equal(file.tensor("c").numpy(), floats.reshape(2, 3))
