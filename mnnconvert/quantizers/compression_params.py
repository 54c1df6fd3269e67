"""The files of MNN's `--compressionParamsFile`: bits, block and mode of each layer, as JSON or as binary protobuf.

The messages are those of the package MNN.Compression (proto2) as far as weights go; JSON has their names in camel case.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mnnconvert.errors import ConversionError, Diagnostic, unreadable
from mnnconvert.ir import CodedTensor
from mnnconvert.quantizers.plan import LayerPlan
from mnnconvert.quantizers.recipe import Rule

VERSION = "3.6.1"

# Message -> fields as (name, number, kind); a kind that is a message is nested, a trailing "*" means repeated.
_MESSAGES: dict[str, tuple[tuple[str, int, str], ...]] = {
    "Pipeline": (("version", 1, "string"), ("algo", 2, "Algorithm*"), ("mnn_uuid", 3, "string"),
                 ("for_guide", 4, "bool")),
    "Algorithm": (("type", 1, "Type"), ("quant_params", 2, "Quantization")),
    "Quantization": (("round_mode", 1, "RoundMode"), ("layer", 4, "Layer*")),
    "Layer": (("input", 1, "Activation*"), ("weight", 2, "Weight*"), ("output", 3, "Activation*"),
              ("method", 4, "Method"), ("op_name", 6, "string"), ("subgraph_name", 7, "string"),
              ("conv", 8, "ConvolutionInfo")),
    "Activation": (("name", 1, "string"), ("bits", 2, "int32"), ("scales", 3, "float*"), ("zero_point", 4, "int32"),
                   ("clamp_min", 5, "int32"), ("clamp_max", 6, "int32")),
    "Weight": (("name", 1, "string"), ("bits", 2, "int32"), ("scales", 3, "float*"), ("clamp_min", 4, "int32"),
               ("clamp_max", 5, "int32"), ("asymmetric", 6, "bool"), ("block_size", 7, "int32")),
    "ConvolutionInfo": (("input_channel", 1, "int32"), ("output_channel", 2, "int32"), ("kernel_size", 3, "int32*")),
}  # fmt: skip
_ENUMS = {
    "Type": ("QUANTIZE", "PRUNE"),
    "RoundMode": ("ROUND_TOWARDS_ZERO", "ROUND_AWAY_FROM_ZERO", "ROUND_HALF_TO_EVEN"),
    "Method": ("QAT", "OverflowAware", "WinogradAware"),
}
_DEFAULTS = {
    ("Weight", "bits"): "8",
    ("Activation", "bits"): "8",
    ("Quantization", "round_mode"): "ROUND_AWAY_FROM_ZERO",
}
_PACKAGE = "mnnconvert.compression"


def _pipeline() -> Any:
    """An empty Pipeline message, of a class made from the tables above."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    file = descriptor_pb2.FileDescriptorProto(name=f"{_PACKAGE}.proto", package=_PACKAGE, syntax="proto2")
    for name, values in _ENUMS.items():
        enum = file.enum_type.add(name=name)
        for number, value in enumerate(values):
            enum.value.add(name=value, number=number)
    for name, columns in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for column in columns:
            _add_field(message, *column)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Pipeline"))()


def _add_field(message: Any, name: str, number: int, kind: str) -> None:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Proto

    base = kind.removesuffix("*")
    made = message.field.add(name=name, number=number, label=Proto.LABEL_REPEATED if base != kind else
                             Proto.LABEL_OPTIONAL)  # fmt: skip
    if base in _MESSAGES or base in _ENUMS:
        made.type = Proto.TYPE_MESSAGE if base in _MESSAGES else Proto.TYPE_ENUM
        made.type_name = f".{_PACKAGE}.{base}"
    else:
        made.type = getattr(Proto, f"TYPE_{base.upper()}")
    default = _DEFAULTS.get((message.name, name))
    if default is not None:
        made.default_value = default


def is_json(path: Path) -> bool:
    """MNN's own rule: JSON when the name ends in "json", binary otherwise."""
    return path.name.endswith("json")


def read_params(path: Path) -> list[Rule]:
    """The layers of a file as rules, one per layer by its exact name; layers that it does not list have no rule.

    Bits 0 leave a layer as it is, blocks of 0 or -1 have one scale per output channel. A file with the wrong ending is
    recognised by its content: the released converter writes JSON under every name. Raises `missing-file`,
    `unreadable-file`, and `bad-compression-params` for what does not parse, has values out of range, prunes, or carries
    steps of activations or weights, which weight coding does not use.
    """
    pipeline = _parsed(path)
    problems = [p for algo in pipeline.algo for p in _refusals(algo, path)]
    if problems:
        raise ConversionError(problems)
    return [_rule(layer) for algo in pipeline.algo for layer in algo.quant_params.layer]


def _parsed(path: Path) -> Any:
    from google.protobuf import json_format
    from google.protobuf.message import DecodeError

    try:
        data = path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error
    pipeline = _pipeline()
    try:
        if is_json(path) or data[:1] == b"{":
            json_format.Parse(data, pipeline)
        else:
            pipeline.ParseFromString(data)
    except (json_format.ParseError, DecodeError, UnicodeDecodeError, RecursionError) as error:
        form = "JSON" if is_json(path) or data[:1] == b"{" else "binary protobuf"
        raise ConversionError.of(
            "bad-compression-params", f"'{path}' is no compression file in its {form} form: {error}", file=path
        ) from error
    return pipeline


def _refusals(algo: Any, path: Path) -> list[Diagnostic]:
    def refuse(message: str, hint: str, layer: str = "") -> Diagnostic:
        return Diagnostic(
            "bad-compression-params", message, {"file": str(path)} | ({"layer": layer} if layer else {}), hint
        )

    if algo.type != 0:
        return [refuse("pruning is not supported", "prune the model where it was trained")]
    found = []
    for layer in algo.quant_params.layer:
        name = layer.op_name or (layer.weight[0].name if layer.weight else "")
        weight = layer.weight[0] if layer.weight else None
        if not name:
            found.append(refuse("a layer has no name", "give it an opName"))
        elif layer.input or layer.output:
            found.append(refuse("steps of activations do not go with weight coding", "see mnnconvert quantize", name))
        elif weight is None or len(layer.weight) > 1:
            found.append(refuse("a layer has one weight", "list it once", name))
        elif weight.scales:
            found.append(refuse("scales of weights are computed, not read", "take the scales out", name))
        elif weight.bits not in (0, *range(2, 9)) or weight.block_size < -1:
            found.append(refuse(f"{weight.bits} bits in blocks of {weight.block_size} are impossible", "2 to 8 bits, "
                                "blocks of 0 (none) or more channels", name))  # fmt: skip
    return found


def _rule(layer: Any) -> Rule:
    weight = layer.weight[0]
    pattern = glob.escape(layer.op_name or weight.name)
    if not weight.bits:
        return Rule(name=pattern, skip=True)
    changes = {"bits": weight.bits, "symmetric": not weight.asymmetric, "block": max(0, weight.block_size)}
    return Rule(name=pattern, changes=changes)


def params_of(layers: Iterable[LayerPlan], path: Path) -> bytes:
    """The file for a plan: one entry per convolution, with 0 bits where the weight stays as it is."""
    from google.protobuf import json_format

    pipeline = _pipeline()
    pipeline.version, pipeline.for_guide = VERSION, True
    algo = pipeline.algo.add(type=0)
    for layer in layers:
        if layer.is_convolution:
            _add_layer(algo.quant_params, layer)
    if is_json(path):
        return f"{json_format.MessageToJson(pipeline, indent=1)}\n".encode()
    data: bytes = pipeline.SerializeToString(deterministic=True)
    return data


def _add_layer(params: Any, layer: LayerPlan) -> None:
    made = params.layer.add(op_name=layer.name)
    weight = made.weight.add(name=layer.name, bits=layer.setting.bits if layer.changed else 0)
    tensor = layer.weight.tensor
    if layer.changed:
        weight.asymmetric, weight.block_size = not layer.setting.symmetric, layer.block_channels
    elif isinstance(tensor, CodedTensor):  # left with the codes of the source, which the same request keeps again
        weight.bits, weight.asymmetric = tensor.coded.bits, tensor.coded.minimum is not None
        weight.block_size = tensor.shape[1] // tensor.coded.blocks if tensor.coded.blocks > 1 else 0
    shape = [d if isinstance(d, int) else 0 for d in layer.weight.shape or ()]
    group = getattr(layer.node.op, "group", 1)
    transposed = "Deconvolution" in layer.op
    outputs, inputs = (shape[1], shape[0]) if transposed else (shape[0], shape[1])
    made.conv.input_channel, made.conv.output_channel = (
        (inputs, outputs * group) if transposed else (inputs * group, outputs)
    )
    made.conv.kernel_size.extend(shape[2:])
