"""Operators of torchvision by their schema, which is registered here with a plain definition of each."""

from __future__ import annotations

import numpy as np
import pytest
from torch_cases import torch

import mnnconvert
from mnnconvert.verify.mnn_engine import MnnEngine

nn = torch.nn
ROI = (
    "(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, int sampling_ratio, "
    "bool aligned) -> Tensor"
)


def nms(boxes, scores, threshold):
    """Boxes by falling score, without those that overlap one that stays by more than the threshold."""
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    kept: list[int] = []
    for i in scores.argsort(descending=True).tolist():
        low, high = torch.maximum(boxes[kept, :2], boxes[i, :2]), torch.minimum(boxes[kept, 2:], boxes[i, 2:])
        common = (high - low).clamp(min=0).prod(1)
        if not (common / (area[kept] + area[i] - common) > threshold).any():
            kept.append(i)
    return torch.tensor(kept)


def roi_align(x, rois, scale, height, width, ratio, aligned):
    """Means of bilinear samples, `ratio` x `ratio` of them in each cell of a region."""
    result = x.new_zeros(len(rois), x.shape[1], height, width)
    for r, (batch, *corners) in enumerate(rois.tolist()):
        x1, y1, x2, y2 = (c * scale - (0.5 if aligned else 0) for c in corners)
        h, w = y2 - y1, x2 - x1
        if not aligned:
            h, w = max(h, 1.0), max(w, 1.0)
        for i, j in np.ndindex(height, width):
            points = [
                (y1 + (i + (a + 0.5) / ratio) * h / height, x1 + (j + (b + 0.5) / ratio) * w / width)
                for a, b in np.ndindex(ratio, ratio)
            ]
            result[r, :, i, j] = torch.stack([_sample(x[int(batch)], *p) for p in points]).mean(0)
    return result


def _sample(x, y, z):
    rows, columns = x.shape[1:]
    if not (-1 <= y <= rows and -1 <= z <= columns):
        return x.new_zeros(x.shape[0])
    y, z = min(max(y, 0), rows - 1), min(max(z, 0), columns - 1)
    a, b = int(y), int(z)
    c, d = min(a + 1, rows - 1), min(b + 1, columns - 1)
    p, q = y - a, z - b
    return (x[:, a, b] * (1 - q) + x[:, a, d] * q) * (1 - p) + (x[:, c, b] * (1 - q) + x[:, c, d] * q) * p


@pytest.fixture(scope="module", autouse=True)
def _torchvision():
    library = torch.library.Library("torchvision", "FRAGMENT")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define(f"roi_align{ROI}")
    library.impl("nms", nms, "CPU")
    library.impl("roi_align", roi_align, "CPU")
    torch.library.register_fake("torchvision::nms", lambda d, s, t: _some(d), lib=library)
    torch.library.register_fake(
        "torchvision::roi_align", lambda x, r, s, h, w, n, a: x.new_empty(r.shape[0], x.shape[1], h, w), lib=library
    )
    yield
    library._destroy()


def _some(boxes):
    return boxes.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.int64)


class Detector(nn.Module):
    def forward(self, boxes, scores):
        kept = torch.ops.torchvision.nms(boxes, scores, 0.4)
        return kept, boxes[kept], scores[kept]


class Regions(nn.Module):
    def __init__(self, aligned):
        super().__init__()
        self.aligned = aligned

    def forward(self, x, rois):
        return torch.ops.torchvision.roi_align(x, rois, 0.5, 3, 4, 2, self.aligned)


def both_agree(module, inputs, folder):
    target = folder / "m.mnn"
    mnnconvert.convert(module, target, example_inputs=inputs, verify="never")
    want = module(*inputs)
    want = want if isinstance(want, tuple) else (want,)
    names = [i.name for i in mnnconvert.load(target).inputs]
    feeds = {name: t.numpy() for name, t in zip(names, inputs, strict=True)}
    engines = [mnnconvert.load(target), *([MnnEngine(target)] if MnnEngine.available() else [])]
    for engine in engines:
        got = list(engine.run(feeds).values())
        for g, w in zip(got, want, strict=True):
            np.testing.assert_allclose(g, w.numpy(), atol=1e-3 * max(1, float(w.abs().max())))


def test_suppression_of_boxes(tmp_path):
    torch.manual_seed(0)
    corners = torch.rand(12, 2) * 6
    boxes = torch.cat([corners, corners + 1 + torch.rand(12, 2) * 4], 1)
    both_agree(Detector(), (boxes, torch.rand(12)), tmp_path)


@pytest.mark.parametrize("aligned", [True, False])
def test_regions_of_a_picture(aligned, tmp_path):
    torch.manual_seed(0)
    rois = torch.tensor([[0, 1.0, 2.0, 13.0, 15.0], [1, 4.0, 0.0, 9.0, 7.0], [0, 3.0, 3.0, 3.5, 3.5]])
    both_agree(Regions(aligned), (torch.rand(2, 3, 8, 9), rois), tmp_path)
