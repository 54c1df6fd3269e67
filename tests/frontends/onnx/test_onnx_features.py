"""n-grams, thresholds, columns, deformable convolutions."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator
from onnx_cases import check, model, refusal

ML = ("ai.onnx.ml",)
POOL = "ngram_counts=[0, 3], ngram_indexes=[1, 0, 2, 4, 3, 5], pool_int64s=[2, 3, 5, 5, 4, 5, 6, 7, 8]"
WEIGHTS = "weights=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]"


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize(("least", "most", "skips"), [(1, 2, 0), (2, 2, 5), (1, 1, 3)])
def test_n_grams(mode, least, most, skips):
    x = np.array([[1, 1, 3, 3, 3, 7], [8, 6, 7, 5, 6, 8], [5, 4, 5, 4, 5, 4]], np.int32)
    text = f"""(int32[3,6] x) => (float[3,6] y) {{ y = TfIdfVectorizer <max_gram_length={most}, max_skip_count={skips},
               min_gram_length={least}, mode="{mode}", {POOL}, {WEIGHTS}> (x) }}"""
    check(text, {"x": x}, rtol=0)
    check(text.replace("3,6", "6"), {"x": x[1]}, rtol=0)


def test_n_grams_longer_than_the_row_are_not_found():
    text = f"""(int32[1] x) => (float[6] y) {{ y = TfIdfVectorizer <max_gram_length=2, max_skip_count=0,
               min_gram_length=2, mode="TF", {POOL}> (x) }}"""
    check(text, {"x": np.array([5], np.int32)}, rtol=0, want={"y": np.zeros(6, np.float32)})


def test_binarizer_and_array_feature_extractor(rng):
    x = rng.standard_normal((3, 4)).astype("f")
    check(
        "(float[3,4] x) => (float[3,4] y) { y = ai.onnx.ml.Binarizer <threshold=0.5> (x) }",
        {"x": x},
        domains=ML,
        rtol=0,
    )
    text = "(float[3,4] x, int64[2] i) => (float[3,2] y) { y = ai.onnx.ml.ArrayFeatureExtractor (x, i) }"
    check(text, {"x": x, "i": np.array([3, 0])}, domains=ML, rtol=0)


@pytest.mark.parametrize(("groups", "offset_groups"), [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("window", ["", "strides=[2, 1], pads=[1, 0, 0, 2], dilations=[1, 2],"])
@pytest.mark.parametrize("masked", [False, True])
def test_deformable_convolution(groups, offset_groups, window, masked, rng):
    out = (3, 6) if window else (4, 5)
    offsets, mask = (f"float[2,{n * offset_groups},{out[0]},{out[1]}]" for n in (8, 4))
    text = f"""(float[2,4,5,6] x, float[6,{4 // groups},2,2] w, {offsets} o, float[6] b
               {f", {mask} m" if masked else ""}) => (float[2,6,h,k] y)
               {{ y = DeformConv <{window} kernel_shape=[2, 2], group={groups}, offset_group={offset_groups}>
               (x, w, o, b{", m" if masked else ""}) }}"""
    shapes = {"x": (2, 4, 5, 6), "w": (6, 4 // groups, 2, 2), "o": (2, 8 * offset_groups, *out), "b": (6,)}
    shapes |= {"m": (2, 4 * offset_groups, *out)} if masked else {}
    arrays = {name: rng.standard_normal(shape).astype("f") for name, shape in shapes.items()}
    proto, feeds = model(text, arrays, 19)
    want = {"y": ReferenceEvaluator(proto).run(None, feeds)[0].astype("f")}
    check(text, arrays, opset=19, rtol=1e-5, want=want)


def test_deformable_convolution_of_unknown_size_is_refused():
    text = (
        """(float[1,2,h,w] x, float[3,2,1,1] k, float[1,2,h,w] o) => (float[1,3,h,w] y) { y = DeformConv (x, k, o) }"""
    )
    (problem,) = refusal(text, opset=19)
    assert "sizes" in problem.message
