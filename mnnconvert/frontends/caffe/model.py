"""A Caffe net as plain records: the layers that run when the net is tested, in today's form whatever they are
written in, with the trained weights of each.

There are three forms: `layer` with a type in quotes, `layers` with a type in capitals (V1), and `layers` around a
`layer` whose settings stand side by side (V0).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from mnnconvert.errors import ConversionError, unreadable
from mnnconvert.frontends.caffe.text import BAD, Message, integer, parse
from mnnconvert.frontends.caffe.weights import Blob, is_text, read_weights

V1_TYPES = {
    "ABSVAL": "AbsVal", "ARGMAX": "ArgMax", "BNLL": "BNLL", "CONTRASTIVE_LOSS": "ContrastiveLoss",
    "DUMMY_DATA": "DummyData", "EUCLIDEAN_LOSS": "EuclideanLoss", "HDF5_DATA": "HDF5Data", "HDF5_OUTPUT": "HDF5Output",
    "HINGE_LOSS": "HingeLoss", "IM2COL": "Im2col", "IMAGE_DATA": "ImageData", "INFOGAIN_LOSS": "InfogainLoss",
    "INNER_PRODUCT": "InnerProduct", "LRN": "LRN", "MEMORY_DATA": "MemoryData",
    "MULTINOMIAL_LOGISTIC_LOSS": "MultinomialLogisticLoss", "MVN": "MVN", "PRELU": "PReLU", "RELU": "ReLU",
    "SIGMOID_CROSS_ENTROPY_LOSS": "SigmoidCrossEntropyLoss", "SOFTMAX_LOSS": "SoftmaxWithLoss", "TANH": "TanH",
    "WINDOW_DATA": "WindowData", "ELU": "ELU",
}  # fmt: skip
"""Types of V1 that are spelled otherwise today; in all others only the case changes."""

V0_TYPES = {
    "bnll": "BNLL", "conv": "Convolution", "euclidean_loss": "EuclideanLoss", "hdf5_data": "HDF5Data",
    "hdf5_output": "HDF5Output", "images": "ImageData", "infogain_loss": "InfogainLoss", "innerproduct": "InnerProduct",
    "lrn": "LRN", "multinomial_logistic_loss": "MultinomialLogisticLoss", "pool": "Pooling", "relu": "ReLU",
    "softmax_loss": "SoftmaxWithLoss", "tanh": "TanH", "window_data": "WindowData",
}  # fmt: skip
V0_PARAMS = {
    "Convolution": "convolution_param", "InnerProduct": "inner_product_param", "Pooling": "pooling_param",
    "LRN": "lrn_param", "Concat": "concat_param", "Dropout": "dropout_param", "Im2col": "convolution_param",
}  # fmt: skip
V0_FIELDS = {"biasterm": "bias_term", "kernelsize": "kernel_size"}
V0_SETTINGS = (
    "num_output", "biasterm", "kernelsize", "group", "stride", "pad", "pool", "dropout_ratio", "local_size", "alpha",
    "beta", "k", "concat_dim",
)  # fmt: skip


@dataclass
class SourceLayer:
    """One layer: the names of what it reads and makes, its settings, and its trained blobs."""

    name: str
    type: str
    bottoms: list[str]
    tops: list[str]
    settings: Message
    blobs: list[Blob] = field(default_factory=list)


class SourceOutput(NamedTuple):
    """An output of a net: the layer that makes it, and its blob."""

    layer: SourceLayer
    blob: str

    @property
    def place(self) -> int:
        """Its place among the results of the layer."""
        return self.layer.tops.index(self.blob)


@dataclass
class SourceNet:
    """The inputs of a net with their declared sizes (none where nothing is said), and its layers in order."""

    name: str
    inputs: dict[str, tuple[int, ...]]
    layers: list[SourceLayer]

    def outputs(self) -> dict[str, SourceOutput]:
        """What is made and read by no later layer, in the order of names as Caffe has it.

        An output has the name of its blob, or of its layer where that works in place of an input.
        """
        free: dict[str, SourceLayer] = {}
        for layer in self.layers:
            for bottom in layer.bottoms:
                free.pop(bottom, None)
            free.update(dict.fromkeys(layer.tops, layer))
        named = (
            (layer.name if blob in self.inputs else blob, SourceOutput(layer, blob)) for blob, layer in free.items()
        )
        return dict(sorted(named))


def load(prototxt: Path, weights: Path | None = None) -> SourceNet:
    """The net of a pair of files. Raises `bad-caffe-file` and what reading a file may raise."""
    net = parse_net(_text_of(prototxt))
    if weights is not None:
        attach(net, read_weights(weights))
    return net


def attach(net: SourceNet, blobs: dict[str, list[Blob]]) -> None:
    """Give the layers the weights that are stored under their names."""
    for layer in net.layers:
        layer.blobs = blobs.get(layer.name, [])


def _text_of(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error
    try:
        if is_text(content[:4096]):
            return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        pass
    raise ConversionError.of(
        BAD, f"'{path}' is no text, so it does not describe a net",
        hint="--prototxt takes the .prototxt and --modelFile the .caffemodel", file=path,
    )  # fmt: skip


def parse_net(text: str) -> SourceNet:
    """The net that a text describes."""
    root = parse(text)
    layers = [_layer(m) for m in root.messages("layer")]
    layers += _without_padding([_old_layer(m) for m in root.messages("layers")])
    if not layers:
        raise ConversionError.of(
            BAD, "the prototxt has no layers", hint="--prototxt takes the description of a net, not that of a solver"
        )
    state = root.message("state")
    kept = [layer for layer in layers if _included(layer, state)]
    net = SourceNet(root.text("name"), _declared_inputs(root), [x for x in kept if x.type != "Input"])
    for layer in kept:
        if layer.type == "Input":
            net.inputs.update(_input_layer(layer))
    return net


def sizes(shape: Message) -> tuple[int, ...]:
    """The sizes of a BlobShape."""
    return tuple(integer(text, "a dim") for text in shape.texts("dim"))


def _declared_inputs(root: Message) -> dict[str, tuple[int, ...]]:
    """Inputs in the old form: names, then a shape or four sizes for each."""
    names = root.texts("input")
    shapes = [sizes(shape) for shape in root.messages("input_shape")]
    flat = [integer(text, "input_dim") for text in root.texts("input_dim")]
    if not shapes and flat:
        if len(flat) != 4 * len(names):
            raise ConversionError.of(BAD, f"there are {len(flat)} input_dim for {len(names)} inputs, which need 4 each")
        shapes = [tuple(flat[i : i + 4]) for i in range(0, len(flat), 4)]
    if shapes and len(shapes) != len(names):
        raise ConversionError.of(BAD, f"there are {len(shapes)} input_shape for {len(names)} inputs")
    return dict(zip(names, shapes or [()] * len(names), strict=True))


def _input_layer(layer: SourceLayer) -> dict[str, tuple[int, ...]]:
    shapes = [sizes(shape) for shape in layer.settings.message("input_param").messages("shape")]
    if len(shapes) not in (0, 1, len(layer.tops)):
        raise ConversionError.of(
            BAD, f"the layer '{layer.name}' has {len(shapes)} shapes for {len(layer.tops)} inputs", node=layer.name
        )
    every = shapes if len(shapes) == len(layer.tops) else (shapes or [()]) * len(layer.tops)
    return dict(zip(layer.tops, every, strict=True))


def _layer(message: Message, type: str | None = None) -> SourceLayer:
    kind = message.text("type") if type is None else type
    return SourceLayer(message.text("name"), kind, message.texts("bottom"), message.texts("top"), message)


def _old_layer(message: Message) -> SourceLayer:
    if "layer" in message:
        return _oldest_layer(message)
    word = message.text("type", "NONE")
    return _layer(message, V1_TYPES.get(word, _camel(word) if word.isupper() else word))


def _oldest_layer(message: Message) -> SourceLayer:
    """A layer of the first format, its settings gathered as in today's."""
    inner = message.message("layer")
    word = inner.text("type")
    kind = V0_TYPES.get(word, _camel(word))
    settings, own = Message(inner.line), Message(inner.line)
    for name in V0_SETTINGS:
        for text in inner.texts(name):
            own.add(V0_FIELDS.get(name, name), text)
    settings.add(V0_PARAMS.get(kind, "param"), own)
    return SourceLayer(inner.text("name"), kind, message.texts("bottom"), message.texts("top"), settings)


def _camel(word: str) -> str:
    return "".join(part.capitalize() for part in word.split("_"))


def _without_padding(layers: list[SourceLayer]) -> list[SourceLayer]:
    """Layers of the first format that only pad become the padding of the layer behind them."""
    pads: dict[str, tuple[str, str]] = {}
    kept = []
    for layer in layers:
        own = layer.settings.message("param") if "param" in layer.settings else Message()
        if layer.type == "Padding" and len(layer.bottoms) == len(layer.tops) == 1:
            pads[layer.tops[0]] = layer.bottoms[0], own.text("pad", "0")
            continue
        for i, bottom in enumerate(layer.bottoms):
            if bottom in pads:
                layer.bottoms[i], pad = pads[bottom]
                layer.settings.messages(V0_PARAMS.get(layer.type, "param"))[0].add("pad", pad)
        kept.append(layer)
    return kept


def _included(layer: SourceLayer, state: Message) -> bool:
    """Whether a layer is there when the net is tested."""
    include, exclude = layer.settings.messages("include"), layer.settings.messages("exclude")
    if include and exclude:
        raise ConversionError.of(BAD, f"the layer '{layer.name}' has rules to include and to exclude it")
    if include:
        return any(_meets(rule, state) for rule in include)
    return not any(_meets(rule, state) for rule in exclude)


def _meets(rule: Message, state: Message) -> bool:
    """Whether the state of the net fulfils a rule; its phase is TEST."""
    level = integer(state.text("level", "0"), "level")
    stages = set(state.texts("stage"))
    return (
        rule.text("phase", "TEST") in ("TEST", "1")
        and integer(rule.text("min_level", str(level)), "min_level") <= level
        and level <= integer(rule.text("max_level", str(level)), "max_level")
        and stages >= set(rule.texts("stage"))
        and not stages & set(rule.texts("not_stage"))
    )
