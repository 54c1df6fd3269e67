"""OpenCV's dnn module, which runs Caffe nets, as an engine: the source of truth for them.

Where it is known to compute something else than Caffe does, `departure` says what: such a net is not proved by it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from mnnconvert.errors import ConversionError, MnnConvertError, UsageError
from mnnconvert.frontends.caffe.model import SourceLayer, SourceNet, load
from mnnconvert.verify.engines import Feeds, Outputs, TensorInfo

F32 = np.dtype("float32")


def _lrn(layer: SourceLayer) -> bool:
    settings = layer.settings.message("lrn_param")
    return "alpha" not in settings or float(settings.text("k", "1")) != 1


def _prior_box(layer: SourceLayer) -> bool:
    settings = layer.settings.message("prior_box_param")
    return "clip" not in settings or "variance" not in settings


DEPARTURES: dict[str, tuple[Callable[[SourceLayer], bool], str]] = {
    "LRN": (_lrn, "it ignores k, and takes another alpha where none is given"),
    "PriorBox": (_prior_box, "it clips boxes unless it is told not to, and has no default of variances"),
}
"""By type of layer: whether OpenCV departs from Caffe there, and how."""


class OpenCvEngine:
    """Runs the net of a prototxt with the weights of a caffemodel on the CPU.

    Inputs and outputs have the names of blobs, as in the graph that is made of the files; inputs may have other sizes
    than those that the prototxt declares.
    """

    name = "OpenCV"
    exact_kinds = True
    notes: Sequence[str] = ()

    def __init__(self, weights: str | Path, prototxt: str | Path | None = None, **_: Any):
        cv2 = _require_opencv()
        if prototxt is None:
            raise UsageError.of(
                "missing-option", f"'{weights}' needs the net that it belongs to", hint="--prototxt FILE"
            )
        self.path = Path(weights)
        net = load(Path(prototxt))
        different = departure(net)
        if different:
            raise self._failed(f"would not compute what Caffe does: {different}")
        try:
            self._net = cv2.dnn.readNetFromCaffe(str(prototxt), str(weights))
        except cv2.error as problem:
            raise self._failed(f"could not open the model: {_short(problem)}") from problem
        self._net.enableFusion(False)
        self.inputs = [TensorInfo(name, F32, (None,) * len(sizes) or None) for name, sizes in net.inputs.items()]
        self._outputs = net.outputs()
        self.outputs = [TensorInfo(name, F32, None) for name in self._outputs]

    @staticmethod
    def available() -> bool:
        """Whether an OpenCV is installed that reads Caffe nets: version 5 does not any more."""
        if find_spec("cv2") is None:
            return False
        import cv2

        return hasattr(cv2.dnn, "readNetFromCaffe")

    def run(self, feeds: Feeds) -> Outputs:
        import cv2

        try:
            for info in self.inputs:
                self._net.setInput(np.ascontiguousarray(feeds[info.name], F32), info.name)
            found = self._net.forwardAndRetrieve([layer.name for layer in self._outputs.values()])
        except cv2.error as problem:
            raise self._failed(f"could not run the model: {_short(problem)}") from problem
        return {
            name: np.array(blobs[layer.tops.index(name)])
            for (name, layer), blobs in zip(self._outputs.items(), found, strict=True)
        }

    def _failed(self, what: str) -> MnnConvertError:
        return ConversionError.of(
            "source-engine-failed", f"OpenCV {what}", engine=self.name, file=self.path,
            hint="convert with --verify never where the model is right",
        )  # fmt: skip


def departure(net: SourceNet) -> str:
    """What OpenCV does otherwise than Caffe in a net; empty where nothing is known of it."""
    for layer in net.layers:
        differs, how = DEPARTURES.get(layer.type, (None, ""))
        if differs is not None and differs(layer):
            return f"{how} ({layer.type} '{layer.name}')"
    return ""


def _short(problem: Exception) -> str:
    return " ".join(str(problem).split())[:400]


def _require_opencv() -> Any:
    if not OpenCvEngine.available():
        raise ConversionError.of(
            "source-engine-missing", "no OpenCV that reads Caffe nets is installed, so the source model cannot be run",
            hint="pip install 'mnnconvert[caffe]', or convert with --verify never",
        )  # fmt: skip
    import cv2

    return cv2
