"""OpenCV's dnn module, which runs Caffe nets, as an engine: the source of truth for them.

Where it is known to compute something else than Caffe does, `departure` says what: such a net is not proved by it.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from mnnconvert.errors import ConversionError, MnnConvertError, UsageError
from mnnconvert.frontends.caffe.model import SourceLayer, SourceNet, SourceOutput, load
from mnnconvert.verify.child import Child, ChildGoneError
from mnnconvert.verify.engines import Feeds, Outputs, TensorInfo
from mnnconvert.verify.layers import SourceLayer as Layer

F32 = np.dtype("float32")
TIMEOUT = 600.0  # seconds, for opening a net and for each run


@dataclass(frozen=True)
class Departure:
    """Where OpenCV does not do what Caffe does: under some settings of a layer, or where these are missing.

    `given` tells with each setting the values that make no difference, in lower case.
    """

    settings: str
    how: str
    given: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    missing: tuple[str, ...] = ()

    def of(self, layer: SourceLayer) -> bool:
        found = layer.settings.message(self.settings)
        if any(name not in found for name in self.missing):
            return True
        return any(text.lower() not in same for name, same in self.given.items() for text in found.texts(name))


NO = ("false", "0", "f")
COUNTS = tuple(map(str, range(1, 10_000)))
DEPARTURES = {
    "Concat": Departure("concat_param", "it ignores concat_dim", {"concat_dim": ("1",)}),
    "Deconvolution": Departure("convolution_param", "it ignores dilation", {"dilation": ("1",)}),
    "DetectionOutput": Departure(
        "detection_output_param",
        "it has no defaults",
        missing=("share_location", "background_label_id", "keep_top_k"),
        given={"keep_top_k": COUNTS},  # with -1 it writes beyond its memory
    ),
    "InnerProduct": Departure("inner_product_param", "it ignores transpose", {"transpose": NO}),
    "LRN": Departure(
        "lrn_param", "it ignores k, and takes another alpha where none is given", {"k": ("1", "1.0", "1.")}, ("alpha",)
    ),
    "Log": Departure("log_param", "it ignores base, scale and shift", {"base": (), "scale": (), "shift": ()}),
    "MVN": Departure("mvn_param", "it adds eps to the variance", {"eps": ()}),
    "PriorBox": Departure("prior_box_param", "it clips boxes unless it is told not to", missing=("clip", "variance")),
    "Proposal": Departure("proposal_param", "it keeps the smallest boxes", {"min_size": ("0",)}, ("min_size",)),
}
"""By type of layer."""


class OpenCvEngine:
    """Runs the net of a prototxt with the weights of a caffemodel on the CPU, in a process of its own.

    Inputs and outputs have the names of blobs, as in the graph that is made of the files; inputs may have other sizes
    than those that the prototxt declares. Detections are put in the order that Caffe has, without rows that only fill.
    """

    name = "OpenCV"
    exact_kinds = True
    notes: Sequence[str] = ()

    def __init__(self, weights: str | Path, prototxt: str | Path | None = None, **_: Any):
        require_opencv()
        if prototxt is None:
            raise UsageError.of("missing-option", f"'{weights}' needs its net", hint="give it with --prototxt FILE")
        self.path, self._prototxt = Path(weights), Path(prototxt)
        self._net = load(self._prototxt)
        different = departure(self._net)
        if different:
            raise self._failed(f"would not compute what Caffe does: {different}")
        self._outputs = self._net.outputs()
        self._child: Child | None = None
        self._converse(None)
        self.inputs = [TensorInfo(name, F32, (None,) * len(sizes) or None) for name, sizes in self._net.inputs.items()]
        self.outputs = [TensorInfo(name, F32, None) for name in self._outputs]

    @staticmethod
    def available() -> bool:
        """Whether an OpenCV is installed that reads Caffe nets: version 5 does not any more."""
        if find_spec("cv2") is None:
            return False
        import cv2

        return hasattr(cv2.dnn, "readNetFromCaffe")

    def run(self, feeds: Feeds) -> Outputs:
        results = self._converse([np.asarray(feeds[info.name], F32) for info in self.inputs])
        return {
            name: as_caffe(output.layer, array)
            for (name, output), array in zip(self._outputs.items(), results, strict=True)
        }

    def layers(self) -> Sequence[Layer]:
        """See `IntermediateEngine`."""
        now = {name: name for name in self._net.inputs}  # the value that each blob holds at this point of the net
        layers = []
        for layer in self._net.layers:
            inputs = tuple(now.get(bottom, "") for bottom in layer.bottoms)
            now |= self._names_of(layer, now)
            layers.append(Layer(layer.name, layer.type, inputs, tuple(now[top] for top in layer.tops)))
        return layers

    def run_values(self, feeds: Feeds, names: Sequence[str]) -> Outputs:
        """See `IntermediateEngine`: another process is asked for these values."""
        found = {name: np.asarray(feeds[name]) for name in names if name in feeds}
        places = {
            name: SourceOutput(source, blob)
            for source, layer in zip(self._net.layers, self.layers(), strict=True)
            for blob, name in zip(source.tops, layer.outputs, strict=True)
        } | self._outputs
        asked = copy.copy(self)
        asked._child, asked._outputs = None, {n: places[n] for n in names if n in places and n not in found}
        return found | asked.run(feeds) if asked._outputs else found

    @staticmethod
    def _names_of(layer: SourceLayer, now: Mapping[str, str]) -> dict[str, str]:
        """Values are called as the importer does: like their blob, or like the layer that works in place of it."""
        return {top: layer.name if top in now else top for top in layer.tops}

    def _converse(self, request: list[np.ndarray] | None) -> list[np.ndarray]:
        """Send a request (None: only open the net) to a living process and wait for its answer."""
        try:
            reply: dict[str, Any] = {}
            if self._child is None:
                self._child = Child(["-m", "mnnconvert.verify.opencv_child", *self._arguments()])
                reply = self._child.receive(TIMEOUT)
            if request is not None and "problem" not in reply:
                self._child.send(request)
                reply = self._child.receive(TIMEOUT)
        except ChildGoneError as gone:
            self._child = None
            raise self._failed(f"could not run the net: {gone}") from None
        if "problem" in reply:
            self._child.stop()
            self._child = None
            raise self._failed(f"could not run the net: {' '.join(reply['problem'].split())[:400]}")
        return list(reply.get("results", ()))

    def _arguments(self) -> list[str]:
        return [str(self._prototxt), str(self.path), json.dumps(ports(self._net, self._outputs))]

    def _failed(self, what: str) -> MnnConvertError:
        return ConversionError.of(
            "source-engine-failed", f"OpenCV {what}", engine=self.name, file=self.path,
            hint="convert with --verify never where the model is right",
        )  # fmt: skip


def ports(net: SourceNet, outputs: Mapping[str, SourceOutput]) -> tuple[list[str], list[tuple[str, int]]]:
    """The names of the inputs, and for each output its layer and place, as `opencv_child.Net` takes them."""
    return list(net.inputs), [(o.layer.name, o.place) for o in outputs.values()]


def as_caffe(layer: SourceLayer, array: np.ndarray) -> np.ndarray:
    """A result as Caffe gives it: detections class by class, at least one row, and no others behind the last."""
    if layer.type != "DetectionOutput":
        return array
    rows = array.reshape(-1, 7)
    rows = rows[rows[:, 1:].any(1)]
    if not len(rows):
        rows = np.array([[0, -1, -1, -1, -1, -1, -1]], F32)
    return rows[np.lexsort((-rows[:, 2], rows[:, 1], rows[:, 0]))].reshape(1, 1, -1, 7)


def departure(net: SourceNet) -> str:
    """What OpenCV does otherwise than Caffe in a net; empty where nothing is known of it."""
    for layer in net.layers:
        known = DEPARTURES.get(layer.type)
        if known is not None and known.of(layer):
            return f"{known.how} ({layer.type} '{layer.name}')"
    return ""


def require_opencv() -> None:
    """Refuse with the extra to install where no OpenCV is there that reads Caffe nets."""
    if not OpenCvEngine.available():
        raise ConversionError.of(
            "source-engine-missing", "no OpenCV that reads Caffe nets is installed, so the source model cannot be run",
            hint="pip install 'mnnconvert[caffe]', or convert with --verify never",
        )  # fmt: skip
