"""Made-up inputs keep to what the model declares and to what names mean; files are checked before use."""

from __future__ import annotations

import numpy as np
import pytest

from mnnconvert.errors import ConversionError
from mnnconvert.verify.engines import TensorInfo
from mnnconvert.verify.inputs import generate, ladder, load_npz


def info(name: str, dtype: str, *shape: int | str | None) -> TensorInfo:
    return TensorInfo(name, np.dtype(dtype), shape)


def shapes(*inputs: TensorInfo, **options) -> list[tuple[int, ...]]:
    return [array.shape for array in generate(inputs, 0, **options).values()]


def value(name: str, dtype: str, *shape: int | str | None, others: tuple[TensorInfo, ...] = ()) -> np.ndarray:
    return generate([info(name, dtype, *shape), *others], 0)[name]


def test_fixed_sizes_and_types_are_kept():
    feeds = generate([info("a", "float16", 2, 0, 3), info("b", "uint8", 5), info("c", "bool"), info("d", "float64")], 0)
    assert [(a.shape, str(a.dtype)) for a in feeds.values()] == [
        ((2, 0, 3), "float16"), ((5,), "uint8"), ((), "bool"), ((), "float64"),
    ]  # fmt: skip


def test_the_seed_decides_and_inputs_do_not_disturb_each_other():
    x, y = info("x", "float32", 8), info("y", "float32", 8)
    alone, pair = generate([x], 3)["x"], generate([y, x], 3)
    np.testing.assert_array_equal(alone, pair["x"])
    assert not np.array_equal(pair["x"], pair["y"])
    assert not np.array_equal(alone, generate([x], 4)["x"])


def test_symbols_are_the_same_everywhere():
    a, b = shapes(info("ids", "int64", "batch", "sequence"), info("mask", "int64", "batch", "sequence"))
    assert a == b == (1, 16)
    assert shapes(info("h", "float32", 2, "batch", 64), info("x", "float32", "batch", 5), variant=1) == [
        (2, 2, 64),
        (2, 5),
    ]


@pytest.mark.parametrize(
    "shape, first, second",
    [
        (("n", 3, "h", "w"), (1, 3, 64, 96), (2, 3, 96, 64)),
        ((None, "?", "?", 3), (1, 64, 96, 3), (2, 96, 64, 3)),
        ((None, None, None, None), (1, 3, 64, 96), (2, 3, 96, 64)),
        (("batch", "seq"), (1, 16), (2, 24)),
        (("seq", "batch", 4), (16, 1, 4), (24, 2, 4)),
        ((-1, 80, "frames"), (1, 80, 64), (2, 80, 96)),
        (("batch", "samples"), (1, 16000), (2, 24000)),
    ],
)
def test_guessed_sizes(shape, first, second):
    assert shapes(info("x", "float32", *shape)) == [first]
    assert shapes(info("x", "float32", *shape), variant=1) == [second]


def test_given_sizes_win():
    assert shapes(info("x", "float32", "n", 3, "h", "w"), sizes={"h": 32, "n": 4}) == [(4, 3, 32, 96)]


def test_a_size_that_no_input_has_is_an_error():
    with pytest.raises(ConversionError, match=r"bad-input: No input has a size named hight\.\n.*n, h"):
        generate([info("x", "float32", "n", 3, "h", 8)], 0, {"hight": 32})


@pytest.mark.parametrize("named", ["past_len + 1", "(past_len+1)"])
def test_sums_of_symbols_are_evaluated(named):
    past, mask = info("past", "float32", 1, 4, "past_len", 8), info("mask", "int64", 1, named)
    (_, _, length, _), (_, total) = shapes(past, mask)
    assert total == length + 1


def test_a_model_with_a_sampling_rate_gets_a_window_of_sound():
    feeds = generate([info("input", "float32", "batch", "sequence"), info("sr", "int64")], 0)
    assert feeds["input"].shape == (1, 512) and feeds["sr"] == 16000


def test_the_batch_of_a_state_is_that_of_the_input():
    for size in (None, "state.1"):
        state = info("state", "float32", 2, size, 128)
        assert shapes(info("input", "float32", None, None), state, info("sr", "int64")) == [(1, 512), (2, 1, 128), ()]


def test_bounds_of_a_pitch_are_in_order():
    assert value("fmin", "float32") < value("fmax", "float32")


def test_masks_are_ones_with_some_padding():
    mask = value("attention_mask", "int64", 2, 16)
    assert set(np.unique(mask)) == {0, 1} and mask.mean() > 0.8
    assert value("mask", "bool", 3).all()


def test_lengths_are_those_of_the_sequence():
    x = info("features", "float32", 2, 30, 80)
    assert value("feature_lens", "int64", 2, others=(x,)).tolist() == [30, 30]


def test_segments_positions_and_vocabulary():
    assert set(np.unique(value("token_type_ids", "int64", 4, 50))) == {0, 1}
    assert value("position_ids", "int64", 2, 4).tolist() == [[0, 1, 2, 3]] * 2
    ids = value("input_ids", "int64", 4, 50)
    assert ids.min() >= 0 and ids.max() < 16 and len(np.unique(ids)) > 4


def test_resize_targets_follow_the_picture():
    picture = info("x", "float32", 1, 3, 10, 20)
    assert value("sizes", "int64", 4, others=(picture,)).tolist() == [1, 3, 20, 40]
    assert value("new_shape", "int64", 4, others=(picture,)).tolist() == [1, 3, 10, 20]


def test_regions_have_their_corners_in_order():
    rois = value("rois", "float32", 50, 4)
    assert (rois[:, 2:] - rois[:, :2] >= 2).all() and rois.min() >= 0
    assert value("boxes", "float32", 3, 7).shape == (3, 7)  # not corners


def test_bytes_fill_their_range():
    image = value("image", "uint8", 1, 64, 64, 3)
    assert image.min() == 0 and image.max() == 255


def test_text_cannot_be_made_up():
    with pytest.raises(ConversionError, match="bad-input: No values can be made up for input 't'"):
        generate([info("t", "object", 1)], 0)


def test_the_ladder_starts_with_generate_and_never_repeats_itself():
    inputs = [info("x", "float32", "n", 3, "h", "w")]
    steps = [feeds["x"].shape for feeds in ladder(inputs, 0, variant=1)]
    assert steps[0] == (2, 3, 96, 64) and len(steps) == len(set(steps)) >= 5
    assert len(list(ladder([info("x", "float32", 2)], 0))) == 1


def test_the_ladder_shrinks_the_vocabulary():
    tops = [feeds["ids"].max() for feeds in ladder([info("ids", "int64", 1, 40)], 0)]
    assert tops[0] > 1 and tops[-1] == 0


def test_the_ladder_has_a_step_without_zeros():
    assert any(feeds["b"].min() > 0 for feeds in ladder([info("b", "int32", 40)], 0))


INPUTS = [info("x", "float32", "n", 2), info("i", "int64", "n")]


def saved(path, **arrays):
    np.savez(path / "in.npz", **arrays)
    return path / "in.npz"


def test_a_right_file_is_converted_without_loss(tmp_path):
    path = saved(tmp_path, x=np.ones((3, 2), np.float64), i=np.array([1.0, 2.0, 3.0]))
    feeds = load_npz(path, INPUTS)
    assert feeds["x"].dtype == np.float32 and feeds["i"].dtype == np.int64 and feeds["i"].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    "arrays, text",
    [
        ({"x": np.ones((1, 2))}, "The input 'i' is missing"),
        ({"x": np.ones((1, 2)), "i": np.ones(1), "z": 1}, "The model has no input 'z'"),
        ({"x": np.ones(2), "i": np.ones(1)}, "'x' has rank 1, not 2"),
        ({"x": np.ones((1, 3)), "i": np.ones(1)}, "'x' has size 3 on axis 1, not 2"),
        ({"x": np.ones((1, 2)), "i": np.ones(2)}, "'i' has size 2 on axis 0, not 1"),
        ({"x": np.full((1, 2), 0.1), "i": np.ones(1)}, "'x' holds float64 values that float32 cannot"),
        ({"x": np.ones((1, 2)), "i": np.array([0.5])}, "'i' holds float64 values that int64 cannot"),
        ({"x": np.array([["a", "b"]]), "i": np.ones(1)}, "'x' holds <U1, not float32"),
    ],
)
def test_wrong_arrays_are_named(tmp_path, arrays, text):
    with pytest.raises(ConversionError) as caught:
        load_npz(saved(tmp_path, **arrays), INPUTS)
    (problem,) = caught.value.diagnostics
    assert problem.reference == "bad-input" and text in problem.message and "x float32[n,2]" in problem.hint


def test_all_problems_are_reported_at_once(tmp_path):
    with pytest.raises(ConversionError) as caught:
        load_npz(saved(tmp_path, x=np.ones((1, 3)), q=np.ones(1)), INPUTS)
    assert len(caught.value.diagnostics) == 3


@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04 broken", b"text"])
def test_unreadable_files_are_diagnostics(tmp_path, content):
    path = tmp_path / "in.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConversionError, match=r"bad-input: The inputs cannot be read.*in\.npz"):
        load_npz(path, INPUTS)


def test_a_single_array_is_not_an_archive(tmp_path):
    np.save(tmp_path / "in.npy", np.ones(2))
    with pytest.raises(ConversionError, match="single array"):
        load_npz(tmp_path / "in.npy", INPUTS)
