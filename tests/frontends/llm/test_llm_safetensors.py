"""safetensors files and folders of them, whole and damaged."""

import json
import random

import ml_dtypes
import numpy as np
import pytest
from llm_cases import write_safetensors

from mnnconvert.errors import ConversionError
from mnnconvert.frontends.llm.safetensors import INDEX, read_folder, read_safetensors

TENSORS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.arange(4, dtype=np.float16),
    "c": np.arange(5).astype(ml_dtypes.bfloat16),
    "d": np.arange(7, dtype=np.int32),
    "empty": np.empty((0, 3), np.float32),
}


def test_every_tensor_reads_as_it_was_written(tmp_path):
    write_safetensors(tmp_path / "m.safetensors", TENSORS)
    found = read_safetensors(tmp_path / "m.safetensors")
    assert list(found) == list(TENSORS)
    for name, array in TENSORS.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        np.testing.assert_array_equal(found[name].numpy().astype(np.float64), array.astype(np.float64))


def test_files_of_the_published_package_are_read(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    plain = {n: a for n, a in TENSORS.items() if a.dtype != ml_dtypes.bfloat16}
    safetensors.save_file(plain, tmp_path / "m.safetensors", {"format": "pt"})
    found = read_safetensors(tmp_path / "m.safetensors")
    assert set(found) == set(plain)
    for name, array in plain.items():
        np.testing.assert_array_equal(found[name].numpy(), array)


def test_an_index_says_which_file_holds_what(tmp_path):
    write_safetensors(tmp_path / "one.safetensors", {"a": TENSORS["a"], "unused": TENSORS["b"]})
    write_safetensors(tmp_path / "two.safetensors", {"d": TENSORS["d"]})
    places = {"a": "one.safetensors", "d": "two.safetensors"}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": places}))
    assert sorted(read_folder(tmp_path)) == ["a", "d"]
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": places | {"x": "two.safetensors"}}))
    refused(read_folder, tmp_path)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "../one.safetensors"}}))
    refused(read_folder, tmp_path)


def refused(read, path):
    with pytest.raises(ConversionError) as caught:
        read(path)
    assert caught.value.diagnostics[0].reference in ("bad-checkpoint", "missing-file")


def test_a_folder_without_files_is_refused(tmp_path):
    refused(read_folder, tmp_path)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 20]},
        {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 2400]},
        {"dtype": "F32", "shape": [-2, -3], "data_offsets": [0, 24]},
        {"dtype": "F32", "shape": [2, 3], "data_offsets": [24, 0]},
        {"dtype": "F7", "shape": [2, 3], "data_offsets": [0, 24]},
        {"dtype": "F32", "shape": 6, "data_offsets": [0, 24]},
        {"dtype": "F32", "shape": [6]},
        ["F32"],
        None,
    ],
)
def test_entries_that_do_not_fit_are_refused(tmp_path, entry):
    text = json.dumps({"a": entry}).encode()
    (tmp_path / "m.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(24))
    refused(read_safetensors, tmp_path / "m.safetensors")


def test_damaged_files_are_refused_or_read(tmp_path):
    write_safetensors(tmp_path / "m.safetensors", TENSORS)
    data = (tmp_path / "m.safetensors").read_bytes()
    random.seed(0)
    for _ in range(300):
        broken = bytearray(data[: random.randrange(len(data))] if random.random() < 0.3 else data)
        for _ in range(random.randint(0, 3)):
            if broken:
                broken[random.randrange(min(len(broken), 400))] = random.randrange(256)
        (tmp_path / "b.safetensors").write_bytes(broken)
        try:
            for tensor in read_safetensors(tmp_path / "b.safetensors").values():
                tensor.numpy()
        except ConversionError as error:
            assert error.diagnostics[0].reference == "bad-checkpoint"
