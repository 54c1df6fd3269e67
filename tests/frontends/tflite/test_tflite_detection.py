"""The tail of detectors, and spectra, against LiteRT."""

import numpy as np
import pytest
from flatbuffers import flexbuffers
from tflite_cases import G, Op, T, build, check, const, one, refusal

CLASSES, ANCHORS = 3, 24


def options(**changes) -> bytes:
    given = {
        "max_detections": 8, "max_classes_per_detection": 1, "detections_per_class": 100, "use_regular_nms": False,
        "nms_score_threshold": 0.3, "nms_iou_threshold": 0.5, "num_classes": CLASSES, "y_scale": 10.0,
        "x_scale": 10.0, "h_scale": 5.0, "w_scale": 5.0,
    }  # fmt: skip
    return bytes(flexbuffers.Dumps(given | changes))


def detector(**changes) -> bytes:
    random = np.random.default_rng(2)
    anchors = np.concatenate([random.uniform(0.2, 0.8, (ANCHORS, 2)), np.full((ANCHORS, 2), 0.3)], 1)
    tensors = [T((1, ANCHORS, 4)), T((1, ANCHORS, CLASSES + 1)), const(anchors)]
    return one("TFLite_Detection_PostProcess", tensors, [T()] * 4, custom=options(**changes))


def test_boxes_of_a_detector(tmp_path):
    random = np.random.default_rng(7)
    codes = random.normal(0, 2, (1, ANCHORS, 4)).astype(np.float32)
    scores = random.permutation(ANCHORS * (CLASSES + 1)).reshape(1, ANCHORS, CLASSES + 1) / 96
    for low in (1.0, 0.2):  # many detections, and fewer than there are places for
        check(detector(), tmp_path, {"t0": codes, "t1": (scores * low).astype(np.float32)}, rtol=1e-5)


def test_other_kinds_of_suppression_are_refused():
    for changes in ({"use_regular_nms": True}, {"max_classes_per_detection": 2}):
        (problem,) = refusal(detector(**changes))
        assert "TFLite_Detection_PostProcess" in problem.message


def test_options_that_are_no_map_are_refused():
    content = one("TFLite_Detection_PostProcess", [T((1, 2, 4))] * 3, [T()] * 4, custom=b"\x01")
    (problem,) = refusal(content)
    assert problem.reference == "bad-tflite-file"


@pytest.mark.parametrize("lengths", [(4, 8), (8, 16), (4, 4)])
@pytest.mark.parametrize("part", ["REAL", "IMAG", "COMPLEX_ABS"])
def test_spectra(part, lengths, tmp_path):
    tensors = [T((2, 4, 8)), const(list(lengths)), T((), "complex64"), T()]
    ops = [Op("RFFT2D", [0, 1], [2], "Rfft2dOptions"), Op(part, [2], [3])]
    check(build(G(tensors, ops, [0], [3])), tmp_path, atol=2e-5)


def test_complex_numbers_elsewhere_are_refused():
    tensors = [T((2, 4, 8)), const([4, 8]), T((), "complex64"), T((), "complex64")]
    ops = [Op("RFFT2D", [0, 1], [2], "Rfft2dOptions"), Op("NEG", [2], [3])]
    (problem,) = refusal(build(G(tensors, ops, [0], [3])))
    assert problem.reference == "unsupported-type" and "NEG" in problem.message
