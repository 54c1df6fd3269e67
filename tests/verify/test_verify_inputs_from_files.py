"""Inputs in all forms that verification reads, and made-up ones at given sizes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import mnnconvert
from mnnconvert.errors import ConversionError
from mnnconvert.feeding import made_up, read_feeds
from mnnconvert.verify.engines import TensorInfo

X = TensorInfo("x", np.dtype("float32"), ("n", 3))
IMAGE = TensorInfo("image", np.dtype("float32"), (1, 3, 4, 6))


def array(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random((2, 3), np.float32)


def test_one_file(tmp_path):
    np.save(tmp_path / "a.npy", array(0))
    np.savez(tmp_path / "b.npz", x=array(1))
    for number, name in enumerate(("a.npy", "b.npz")):
        (feeds,) = read_feeds(tmp_path / name, [X])
        assert (feeds["x"] == array(number)).all()


def test_a_folder_of_files_in_the_order_of_their_names(tmp_path):
    for number in (2, 0, 1):
        np.savez(tmp_path / f"{number}.npz", x=array(number))
    (tmp_path / "readme.txt").write_text("not an input")
    assert [(feeds["x"] == array(i)).all() for i, feeds in enumerate(read_feeds(tmp_path, [X]))] == [True] * 3


def recorded(folder: Path, numbers: np.ndarray) -> None:
    folder.mkdir(exist_ok=True)
    facts = {"inputs": [{"name": "x", "shape": list(numbers.shape)}], "outputs": ["y"]}
    (folder / "input.json").write_text(json.dumps(facts))
    (folder / "x.txt").write_text(" ".join(map(str, numbers.ravel().tolist())))


def test_recorded_cases_alone_and_in_a_folder(tmp_path):
    recorded(tmp_path / "a", array(0))
    recorded(tmp_path / "b", array(1))
    assert len(read_feeds(tmp_path, [X])) == 2
    (feeds,) = read_feeds(tmp_path / "b", [X])
    assert np.allclose(feeds["x"], array(1)) and feeds["x"].dtype == np.float32


@pytest.mark.parametrize(("mean", "normal"), [(0.0, 1.0), (127.5, 0.5)])
def test_images_become_inputs_as_the_configuration_says(tmp_path, mean, normal):
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 3), np.uint8)
    (tmp_path / "images").mkdir()
    Image.fromarray(pixels).save(tmp_path / "images" / "a.png")
    config = {"path": "images", "format": "BGR", "mean": [mean], "normal": [normal]}
    (tmp_path / "c.json").write_text(json.dumps(config))
    (feeds,) = read_feeds(tmp_path / "c.json", [IMAGE])
    assert np.allclose(feeds["image"][0].transpose(1, 2, 0), (pixels[..., ::-1] - mean) * normal)


def test_images_alone_say_that_they_need_a_configuration(tmp_path):
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(ConversionError, match="holds no inputs") as error:
        read_feeds(tmp_path, [IMAGE])
    assert "mean" in error.value.diagnostics[0].hint


@pytest.mark.parametrize("path", ["none", "none.npz"])
def test_what_does_not_exist_is_named(tmp_path, path):
    with pytest.raises(ConversionError) as error:
        read_feeds(tmp_path / path, [X])
    assert "none" in str(error.value)


def shapes_of(choices) -> list[tuple[int, ...]]:
    return [next(iter(choice))["x"].shape for choice in choices]


def test_sizes_can_be_given():
    assert shapes_of(made_up([X], 0, {"x": (5, 3)})) == [(5, 3)]


def test_a_given_size_counts_for_all_inputs_that_share_it():
    other = TensorInfo("z", np.dtype("float32"), ("n", 2))
    (choice,) = made_up([X, other], 0, {"x": (5, 3)})
    assert next(iter(choice))["z"].shape == (5, 2)


def test_runs_alternate_between_sizes_and_never_repeat_values():
    choices = made_up([X], 0, {}, runs=4)
    feeds = [next(iter(choice))["x"] for choice in choices]
    assert [f.shape[0] for f in feeds] == [feeds[0].shape[0], feeds[1].shape[0]] * 2
    assert feeds[0].shape != feeds[1].shape and not np.array_equal(feeds[0], feeds[2])


@pytest.mark.parametrize("shapes", [{"z": (1,)}, {"x": (2, 4)}, {"x": (2,)}])
def test_sizes_that_an_input_cannot_have_are_refused(shapes):
    with pytest.raises(ConversionError) as error:
        made_up([X], 0, shapes)
    assert error.value.diagnostics[0].reference == "unknown-input"


def test_every_file_of_a_folder_is_a_run(onnx_file, tmp_path):
    source, mnn, folder = (
        onnx_file("(float[n,3] x) => (float[n,3] y) { y = Exp(x) }"),
        tmp_path / "m.mnn",
        tmp_path / "d",
    )
    mnnconvert.convert(source, mnn, verify="never")
    folder.mkdir()
    for number in range(3):
        np.savez(folder / f"{number}.npz", x=array(number))
    result = mnnconvert.verify(source, mnn, inputs=folder)
    assert result.passed and len(result.runs) == 3
