"""The process in which OpenCV runs a Caffe net: on some nets it ends with a signal, or writes where it must not.

Started by `opencv_engine.py` with the two files, the names of the inputs, and for each output the layer that it is of
and its place among that layer's results, as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import numpy as np

from mnnconvert.verify.mnn_child import serve


class Net:
    """A net of OpenCV's dnn module, without its fusion of layers."""

    def __init__(self, prototxt: str, weights: str, inputs: Sequence[str], outputs: Sequence[tuple[str, int]]):
        import cv2

        self.inputs, self.outputs = list(inputs), list(outputs)
        self._net = cv2.dnn.readNetFromCaffe(prototxt, weights)
        self._net.enableFusion(False)

    def run(self, feeds: Sequence[np.ndarray]) -> list[np.ndarray]:
        """All outputs; a scalar has one axis."""
        for name, array in zip(self.inputs, feeds, strict=True):
            self._net.setInput(np.ascontiguousarray(array, np.float32), name)
        found = self._net.forwardAndRetrieve([layer for layer, _ in self.outputs])
        return [np.array(blobs[place]) for (_, place), blobs in zip(self.outputs, found, strict=True)]


if __name__ == "__main__":
    serve(lambda: Net(sys.argv[1], sys.argv[2], *json.loads(sys.argv[3])))
