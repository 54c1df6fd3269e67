"""Caffe net -> graph: walks the layers, applies the import rules, reports everything that stands in the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mnnconvert.errors import ConversionError, Diagnostic, MnnConvertError
from mnnconvert.frontends.caffe import rules  # noqa: F401  (registers the rules)
from mnnconvert.frontends.caffe.model import SourceLayer, SourceNet
from mnnconvert.frontends.caffe.node import CaffeNode
from mnnconvert.frontends.caffe.registry import RULES
from mnnconvert.frontends.caffe.text import BAD
from mnnconvert.frontends.common.signature import check_names, input_shape, open_sizes
from mnnconvert.ir import F32, Builder, Graph, Shape, Value

NODES_NAMED = 3  # layers named per unsupported type
MOST_ELEMENTS = 1 << 40
TRAINING = {
    "Accuracy", "ContrastiveLoss", "Data", "EuclideanLoss", "HDF5Data", "HDF5Output", "HingeLoss", "ImageData",
    "InfogainLoss", "MemoryData", "MultinomialLogisticLoss", "MultiBoxLoss", "SigmoidCrossEntropyLoss", "SmoothL1Loss",
    "SoftmaxWithLoss", "WindowData", "AnnotatedData", "DetectionEvaluate",
}  # fmt: skip
"""Layers that train or test a net on data, and have no place in one that is put to use."""
PRIVATE = {"CuDNNLstmForward", "Im2seq", "Lstm", "OCRLSTM", "OCRLSTMQ", "Resize", "Seq2out"}
"""Layers of forks that MNN's converter names, and whose definition is not public."""


class Importer:
    """Translates one net. `shapes` replaces the sizes of inputs by name, `batch` a first size that is open."""

    def __init__(self, net: SourceNet, shapes: Mapping[str, Shape] | None = None, batch: int = 0):
        self.net = net
        self.shapes = dict(shapes or {})
        self.batch = batch
        self.builder = Builder(Graph(name=net.name or "main", source="CAFFE"))
        self.values: dict[str, Value] = {}
        self.poisoned: set[str] = set()
        self.problems: list[Diagnostic] = []

    def run(self) -> Graph:
        """The graph; ConversionError with all problems when there are any."""
        self._check_types()
        self._inputs()
        for layer in self.net.layers:
            self._attempt(layer)
        if self.problems:
            raise ConversionError(self.problems)
        outputs = self.net.outputs()
        if not outputs:
            raise ConversionError.of(BAD, "the net has no outputs: all that its layers make is read by others")
        for name, output in outputs.items():
            self.builder.output(self.values[output.blob], name)
        return self.builder.graph

    def value(self, blob: str) -> Value:
        """What a blob holds at this point of the net."""
        if blob not in self.values:
            raise ConversionError.of(BAD, f"'{blob}' is read before a layer has made it")
        return self.values[blob]

    def _check_types(self) -> None:
        missing: dict[str, list[str]] = {}
        for layer in self.net.layers:
            if layer.type not in RULES:
                missing.setdefault(layer.type, []).append(layer.name)
        if missing:
            raise ConversionError(_unsupported(*item) for item in missing.items())

    def _inputs(self) -> None:
        check_names(self.shapes, self.net.inputs)
        for name, declared in self.net.inputs.items():
            self.values[name] = self.builder.input(name, F32, self._shape(name, declared))

    def _shape(self, name: str, declared: tuple[int, ...]) -> Shape:
        if name not in self.shapes and not declared:
            raise ConversionError.of(
                "open-size", f"the prototxt does not say what sizes the input '{name}' has",
                hint=f"give them with --input-shape {name}:1x3x224x224",
            )  # fmt: skip
        open_declared = open_sizes(name, declared, least=1) if declared else None
        shape = input_shape(name, open_declared, self.shapes, self.batch, fixed=False) or ()
        elements = 1
        for size in shape:
            elements *= size if isinstance(size, int) else 1
        if elements > MOST_ELEMENTS or len(shape) > 16:
            raise ConversionError.of("too-large", f"the input '{name}' has {elements} elements in {len(shape)} axes")
        return shape

    def _attempt(self, layer: SourceLayer) -> None:
        """Apply the rule of a layer. A refused one poisons what depends on it, so that all problems show."""
        if any(bottom in self.poisoned for bottom in layer.bottoms):
            self.poisoned.update(layer.tops)
            return
        try:
            self._translate(layer)
            self.poisoned.difference_update(layer.tops)
        except MnnConvertError as error:
            self.problems.extend(_located(d, layer) for d in error.diagnostics)
            self.poisoned.update(layer.tops)

    def _translate(self, layer: SourceLayer) -> None:
        node = CaffeNode(self, layer)
        with self.builder.at(node.name):
            before = len(self.builder.graph.nodes)
            try:
                results = RULES[layer.type].function(self.builder, node)
            except (ValueError, IndexError, OverflowError, ZeroDivisionError) as error:
                raise node.refuse(
                    f"the operands or settings of {node.op} do not fit each other: {error}", reference=BAD
                ) from error
            node.check_read()
        results = results if isinstance(results, tuple | list) else (results,)
        if len(results) < len(layer.tops):
            raise node.refuse(f"{node.op} makes {len(layer.tops)} blobs, where {len(results)} are meant", reference=BAD)
        self._bind(layer, results, before)

    def _bind(self, layer: SourceLayer, results: Sequence[Value], before: int) -> None:
        """Bind results to the names of their blobs; what was made since the graph had `before` nodes is called so.

        A layer that works in place gives its own name to what it makes of a blob.
        """
        made = {v for n in self.builder.graph.nodes[before:] for v in n.outputs}
        for blob, value in zip(layer.tops, results, strict=False):
            if value in made:
                made.discard(value)
                self.builder.names.discard(value.name)
                taken = blob in self.builder.names
                value.name = self.builder.unique((layer.name or blob) if taken else blob)
                if value.producer is not None and value.producer.output is value:
                    value.producer.name = value.name
            self.values[blob] = value


def _located(diagnostic: Diagnostic, layer: SourceLayer) -> Diagnostic:
    context = {"node": layer.name, "op": layer.type, **diagnostic.context}
    return Diagnostic(diagnostic.reference, diagnostic.message, context, diagnostic.hint)


def _unsupported(kind: str, layers: Sequence[str]) -> Diagnostic:
    shown = ", ".join(layers[:NODES_NAMED]) + (", ..." if len(layers) > NODES_NAMED else "")
    context = {"op": kind, "uses": str(len(layers)), "nodes": shown}
    hint = "`mnnconvert ops --framework CAFFE` lists what is supported"
    if kind in PRIVATE:
        hint = "its definition is not public; export the model to ONNX with the framework that it was trained in"
    if kind in TRAINING:
        hint = "convert the net that is put to use (often deploy.prototxt), not the one that is trained and tested"
    return Diagnostic("unsupported-op", f"there is no import rule for the layer '{kind}'", context, hint)
