"""Layers of detectors against OpenCV, or their definitions in numpy."""

from __future__ import annotations

import numpy as np
import pytest
from caffe_cases import check, feeds_for, one, opencv_outputs, refusal

from mnnconvert.frontends.caffe.model import parse_net
from mnnconvert.frontends.caffe.priors import anchors
from mnnconvert.ops.search import overlaps
from mnnconvert.verify.opencv_engine import departure

PRIORS = {
    "one size": "min_size: 30 variance: 0.1",
    "two sizes": "min_size: 30 min_size: 60 max_size: 50 max_size: 80 aspect_ratio: 2 aspect_ratio: 3 variance: 0.1",
    "no flip": "min_size: 30 max_size: 60 aspect_ratio: 2 flip: false variance: 0.1",
    "steps": "min_size: 30 aspect_ratio: 2 step: 12 offset: 0.25 variance: [0.1, 0.1, 0.2, 0.2]",
    "sides": "min_size: 30 aspect_ratio: 1 aspect_ratio: 2 aspect_ratio: 0.5 step_h: 9 step_w: 11 variance: 0.3",
}
PLANES = {"x": (1, 2, 3, 5), "image": (1, 3, 60, 80)}


@pytest.mark.parametrize("clip", ["true", "false"])
@pytest.mark.parametrize("case", PRIORS)
def test_prior_boxes(case, clip, tmp_path):
    text = one("PriorBox", f"prior_box_param {{ {PRIORS[case]} clip: {clip} }}", **PLANES)
    check(text, None, tmp_path, peer=False)  # it runs no constants


def test_prior_boxes_where_opencv_departs_from_caffe(tmp_path):
    """What is not clipped by name is not clipped; variances have a default."""
    text = one("PriorBox", "prior_box_param { min_size: 30 clip: false variance: 0.1 }", **PLANES)
    want = opencv_outputs(text, None, feeds_for(text), tmp_path)
    bare = one("PriorBox", "prior_box_param { min_size: 30 }", **PLANES)
    check(bare, None, tmp_path, want=want, peer=False)
    assert "PriorBox 'y'" in departure(parse_net(bare))


def test_prior_boxes_of_an_image_of_given_size(tmp_path):
    settings = "min_size: 30 clip: false variance: 0.3"
    large = one("PriorBox", f"prior_box_param {{ {settings} }}", x=(1, 2, 3, 5), image=(1, 3, 90, 70))
    want = opencv_outputs(large, None, feeds_for(large), tmp_path)
    check(
        one("PriorBox", f"prior_box_param {{ {settings} img_h: 90 img_w: 70 }}", **PLANES),
        None,
        tmp_path,
        want=want,
        peer=False,
    )


def ssd(settings, classes=4, shared=True, count=60):
    groups = 1 if shared else classes
    return one(
        "DetectionOutput", f"detection_output_param {{ num_classes: {classes} {settings} }}",
        loc=(1, count * 4 * groups), conf=(1, count * classes), prior=(1, 2, count * 4),
    )  # fmt: skip


def ssd_feeds(rng, classes=4, shared=True, count=60):
    low = rng.uniform(0, 0.7, (count, 2))
    boxes = np.concatenate([low, low + rng.uniform(0.1, 0.3, (count, 2))], 1)
    prior = np.stack([boxes.reshape(-1), np.tile([0.1, 0.1, 0.2, 0.2], count)])[None]
    logits = rng.standard_normal((count, classes)) * 2
    conf = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    loc = rng.standard_normal((1, count * 4 * (1 if shared else classes)))
    feeds = {"loc": loc, "conf": conf.reshape(1, -1), "prior": prior}
    return {k: v.astype(np.float32) for k, v in feeds.items()}


CENTRE = "code_type: CENTER_SIZE"
DETECTIONS = {
    "usual": f"{CENTRE} nms_param {{ nms_threshold: 0.45 top_k: 40 }} keep_top_k: 20 confidence_threshold: 0.05",
    "all": f"{CENTRE} nms_param {{ nms_threshold: 0.3 }} keep_top_k: 500 confidence_threshold: 0.3",
    "few": f"{CENTRE} nms_param {{ nms_threshold: 0.6 top_k: 7 }} keep_top_k: 3 confidence_threshold: 0.01",
    "corners": "code_type: CORNER nms_param { nms_threshold: 0.45 top_k: 40 } keep_top_k: 20 confidence_threshold: 0.2",
    "background": f"{CENTRE} background_label_id: 2 nms_param {{ nms_threshold: 0.45 }} keep_top_k: 20"
    " confidence_threshold: 0.2",
}


@pytest.mark.parametrize("case", DETECTIONS)
@pytest.mark.parametrize("shared", [True, False])
def test_detections(case, shared, tmp_path, rng):
    background = "" if case == "background" else "background_label_id: 0"
    text = ssd(f"{DETECTIONS[case]} {background} share_location: {str(shared).lower()}", shared=shared)
    check(text, None, tmp_path, feeds=ssd_feeds(rng, shared=shared))


def test_detections_with_variances_in_the_target(tmp_path, rng):
    settings = f"{CENTRE} share_location: true background_label_id: 0 keep_top_k: 20 confidence_threshold: 0.2"
    settings += " nms_param { nms_threshold: 0.45 }"
    feeds = ssd_feeds(rng)
    ones = {**feeds, "prior": np.stack([feeds["prior"][0, 0], np.ones(240, np.float32)])[None]}
    want = opencv_outputs(ssd(settings), None, ones, tmp_path)
    check(ssd(f"{settings} variance_encoded_in_target: true"), None, tmp_path, feeds=feeds, want=want)


def test_detections_by_the_size_of_priors(tmp_path, rng):
    """The third code, without suppression, in numpy."""
    text = ssd("code_type: CORNER_SIZE nms_param { nms_threshold: 2 } confidence_threshold: 0", classes=2)
    feeds = ssd_feeds(rng, classes=2)
    boxes, variances = feeds["prior"].reshape(2, -1, 4)
    size = np.tile(boxes[:, 2:] - boxes[:, :2], 2)
    score = feeds["conf"].reshape(-1, 2)[:, 1]
    order = np.argsort(-score, kind="stable")
    corners = boxes + feeds["loc"].reshape(-1, 4) * variances * size
    rows = np.concatenate([np.tile([[0, 1]], (60, 1)), score[:, None], corners], 1)[order]
    check(text, None, tmp_path, feeds=feeds, want={"y": rows[None, None].astype(np.float32)})


@pytest.mark.parametrize("keep", [-1, 20])
def test_a_row_where_nothing_is_found(keep, tmp_path, rng):
    text = ssd(f"{CENTRE} keep_top_k: {keep} confidence_threshold: 1.5")
    want = np.array([[[[0, -1, -1, -1, -1, -1, -1]]]], np.float32)
    check(text, None, tmp_path, feeds=ssd_feeds(rng), want={"y": want})


def test_roi_pooling(tmp_path, rng):
    text = one(
        "ROIPooling", "roi_pooling_param { pooled_h: 3 pooled_w: 4 spatial_scale: 0.5 }", x=(1, 6, 14, 15), r=(7, 5)
    )
    corners = rng.uniform(0, 28, (7, 2, 2))
    rois = np.concatenate([np.zeros((7, 1)), corners.min(1), corners.max(1)], 1).astype(np.float32)
    check(text, None, tmp_path, feeds={**feeds_for(text), "r": rois})


@pytest.mark.parametrize("scale", [0.5, 0.0625])
def test_position_sensitive_pooling(scale, tmp_path, rng):
    settings = f"psroi_pooling_param {{ output_dim: 3 group_size: 4 spatial_scale: {scale} }}"
    text = one("PSROIPooling", settings, x=(1, 48, 14, 15), r=(7, 5))
    corners = rng.uniform(0, 14 / scale, (7, 2, 2))
    rois = np.concatenate([np.zeros((7, 1)), corners.min(1), corners.max(1)], 1).astype(np.float32)
    check(text, None, tmp_path, feeds={**feeds_for(text), "r": rois})


def test_anchors_are_those_of_the_paper():
    """The list that the authors give in a remark of their code."""
    want = [[-83, -39, 100, 56], [-175, -87, 192, 104], [-359, -183, 376, 200], [-55, -55, 72, 72]]
    want += [
        [-119, -119, 136, 136],
        [-247, -247, 264, 264],
        [-35, -79, 52, 96],
        [-79, -167, 96, 184],
        [-167, -343, 184, 360],
    ]
    np.testing.assert_array_equal(anchors(16, (0.5, 1, 2), (8, 16, 32)) + 1, want)


def proposed(feeds, smallest, candidates, most, overlap):
    """The definition of the proposal layer, step by step."""
    base = anchors(16, (0.5, 1, 2), (8, 16, 32))
    _, _, height, width = feeds["score"].shape
    shifts = np.stack(np.meshgrid(np.arange(width), np.arange(height)), -1).reshape(-1, 1, 2) * 16
    every = (np.tile(shifts, 2) + base).reshape(-1, 4)
    scores = feeds["score"][0, 9:].transpose(1, 2, 0).reshape(-1)
    codes = feeds["deltas"][0].transpose(1, 2, 0).reshape(-1, 4)
    sizes = every[:, 2:] - every[:, :2] + 1
    centres, wanted = codes[:, :2] * sizes + every[:, :2] + sizes / 2, np.exp(codes[:, 2:]) * sizes
    tall, wide, scale = feeds["info"][0]
    boxes = np.concatenate([centres - wanted / 2, centres + wanted / 2], 1)
    boxes = np.clip(boxes, 0, [wide - 1, tall - 1, wide - 1, tall - 1])
    large = ((boxes[:, 2:] - boxes[:, :2] + 1) >= smallest * scale).all(1)
    boxes, scores = boxes[large], scores[large]
    left, kept = list(np.argsort(-scores, kind="stable")[:candidates]), []
    while left and len(kept) < most:
        best, *left = left
        kept.append(best)
        grown = boxes + np.array([0, 0, 1, 1])
        left = [i for i in left if overlaps(grown[best], grown[[i]])[0] <= overlap]
    return np.concatenate([np.zeros((len(kept), 1)), boxes[kept]], 1).astype(np.float32)


def rpn_feeds(rng):
    feeds = {
        "score": rng.uniform(0, 1, (1, 18, 6, 8)), "deltas": rng.standard_normal((1, 36, 6, 8)) * 0.3,
        "info": np.array([[96, 128, 1.6]]),
    }  # fmt: skip
    return {k: v.astype(np.float32) for k, v in feeds.items()}


SHAPES = {"score": (1, 18, 6, 8), "deltas": (1, 36, 6, 8), "info": (1, 3)}


def test_proposals(tmp_path, rng):
    settings = "proposal_param { feat_stride: 16 min_size: 16 pre_nms_topn: 100 post_nms_topn: 10 nms_thresh: 0.6 }"
    feeds = rpn_feeds(rng)
    want = proposed(feeds, 16, 100, 10, 0.6)
    assert len(want) == 10
    check(one("Proposal", settings, **SHAPES), None, tmp_path, feeds=feeds, want={"y": want}, atol=1e-4)


def test_proposals_are_opencvs(tmp_path, rng):
    settings = "feat_stride: 16 min_size: 0 pre_nms_topn: 100 post_nms_topn: 10 ratio: [0.5, 1, 2] scale: [8, 16, 32]"
    text = one("Proposal", f"proposal_param {{ {settings} }}", **SHAPES)
    check(text, None, tmp_path, feeds=rpn_feeds(rng))
    assert not departure(parse_net(text))
    assert "Proposal" in departure(parse_net(text.replace("min_size: 0", "")))


def test_proposals_of_python_code(tmp_path, rng):
    settings = """python_param { module: 'rpn.proposal_layer' layer: 'ProposalLayer' param_str: "'feat_stride': 16" }"""
    feeds = rpn_feeds(rng)
    check(
        one("Python", settings, **SHAPES), None, tmp_path, feeds=feeds, want={"y": proposed(feeds, 16, 6000, 300, 0.7)}
    )


def test_refusals():
    (found,) = refusal(one("Python", "python_param { module: 'm' layer: 'L' }", x=(1, 3)))
    assert found.reference == "unsupported-attribute"
    assert "m.L" in found.message
    (found,) = refusal(ssd(f"{CENTRE} nms_param {{ eta: 0.5 }}"))
    assert "eta" in found.message
    (found,) = refusal(one("PriorBox", "prior_box_param { max_size: 3 }", x=(1, 2, 3, 5), image=(1, 3, 60, 80)))
    assert "sizes" in found.message
