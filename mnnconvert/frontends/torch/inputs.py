"""What is known of the inputs of a Torch model: sizes, element types, numbers that they are bound to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mnnconvert.errors import ConversionError, Diagnostic, UsageError
from mnnconvert.frontends.common.signature import check_names
from mnnconvert.frontends.torch.script import input_names
from mnnconvert.ir import Graph, Shape

DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
BOUND = "bound/"  # begins the metadata that tell which number an input is bound to
OPEN_BATCH, OPEN_SIZE = 2, 32  # what a size that stays open is while the model is traced


@dataclass(frozen=True)
class InputOptions:
    """What the user says of inputs, by name: sizes (0 stays open), element types, and numbers to bind inputs to."""

    shapes: Mapping[str, Shape] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)
    batch: int = 0


def input_options(shapes: Mapping[str, Shape], types: Iterable[str], values: Iterable[str], batch: int) -> InputOptions:
    """Options from texts: `types` such as "ids:int64", `values` such as "rate:16000"."""
    numbers: dict[str, float] = {}
    for name, text in (_pair(each, "--input-value", "rate:16000") for each in values):
        try:
            numbers[name] = int(text) if text.lstrip("+-").isdigit() else float(text)
        except ValueError:
            raise UsageError.of("bad-option-value", f"--input-value takes NAME:NUMBER, not '{name}:{text}'.") from None
    return InputOptions(shapes, dict(_pair(each, "--input-type", "ids:int64") for each in types), numbers, batch)


def said_by(graph: Graph) -> InputOptions:
    """What a converted graph tells of the inputs of its script: a conversion with this says the same of them."""
    shapes = {v.name: tuple(d if isinstance(d, int) else 0 for d in v.shape) for v in graph.inputs if v.shape}
    types = {v.name: graph.source_types.get(v.name, str(v.dtype)) for v in graph.inputs}
    values = [f"{name[len(BOUND) :]}:{text}" for name, text in graph.metadata.items() if name.startswith(BOUND)]
    return input_options(shapes, [f"{name}:{kind}" for name, kind in types.items()], values, 0)


def _pair(text: str, flag: str, example: str) -> tuple[str, str]:
    name, colon, value = text.rpartition(":")
    if not (name and colon and value):
        raise UsageError.of("bad-option-value", f"{flag} takes a pair such as {example}, not {text!r}.")
    return name, value


@dataclass(frozen=True)
class ScriptInput:
    """One input of a script: `shape` is None where it is not known; a number has no axes.

    `bound` is a list of the one value that it has in the converted model, and empty for a real input.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] | None
    is_number: bool = False
    bound: tuple[Any, ...] = ()
    type_is_known: bool = True


def script_inputs(scripted: Any, options: InputOptions) -> list[ScriptInput]:
    """The inputs of forward as the file and the options have them; names that do not exist are refused."""
    values = list(scripted.inlined_graph.inputs())[1:]
    names = input_names(scripted)
    check_names((*options.shapes, *options.types, *options.values), names)
    for name, dtype in options.types.items():
        if dtype not in DTYPES:
            raise ConversionError.of(
                "unsupported-type", f"the input '{name}' cannot be {dtype}", hint=f"one of {', '.join(DTYPES)}"
            )
    formals = list(scripted._c._get_method("forward").schema.arguments)[1:]
    return [_input(n, v, f, options) for n, v, f in zip(names, values, formals, strict=True)]


def _input(name: str, value: Any, formal: Any, options: InputOptions) -> ScriptInput:
    kind = value.type()
    default = (formal.default_value,) if formal.has_default_value() else ()
    optional = kind.kind() == "OptionalType"
    if optional:
        kind, default = kind.getElementType(), default or (None,)
    if name in options.values:
        number = options.values[name]
        whole = kind.kind() in ("IntType", "BoolType") and number == int(number)
        return ScriptInput(name, "int64", (), True, (int(number) if whole else number,))
    number_type = _NUMBERS.get(kind.kind())
    if number_type:
        return ScriptInput(name, number_type, (), True, default)
    if kind.kind() != "TensorType":
        if default:
            return ScriptInput(name, "", (), False, default)
        raise ConversionError.of(
            "unsupported-type", f"the input '{name}' is a {kind.annotation_str}, and MNN has tensors", input=name
        )
    given = options.shapes.get(name)
    kept = tuple(kind.sizes()) if kind.sizes() is not None else None
    shape = kept if given is None else tuple(int(d) for d in given if isinstance(d, int))
    if given is None and kept is None and default:
        return ScriptInput(name, "", (), False, default)
    kept_type = str(kind.dtype()).removeprefix("torch.") if kind.dtype() is not None else "float32"
    known = name in options.types or kind.dtype() is not None
    return ScriptInput(name, options.types.get(name, kept_type), shape, type_is_known=known)


_NUMBERS = {"IntType": "int64", "FloatType": "float32", "BoolType": "bool", "NumberType": "float32"}


def example_of(each: ScriptInput, options: InputOptions) -> Any:
    """A tensor to trace with; ones, as values do not matter."""
    import torch

    sizes = traced_sizes(each, options)
    return torch.ones(sizes, dtype=getattr(torch, each.dtype))


def traced_sizes(each: ScriptInput, options: InputOptions) -> tuple[int, ...]:
    """The sizes of an example: something for those that stay open."""
    shape = each.shape or ()
    if options.batch and shape and shape[0] == 0:
        shape = (options.batch, *shape[1:])
    return tuple(d or (OPEN_BATCH if axis == 0 else OPEN_SIZE) for axis, d in enumerate(shape))


def open_axes(each: ScriptInput, options: InputOptions) -> list[int]:
    """The axes of an input whose size stays open."""
    return [i for i, d in enumerate(each.shape or ()) if d == 0 and not (i == 0 and options.batch)]


def require_shapes(inputs: list[ScriptInput]) -> None:
    """Refuse inputs of unknown sizes, all at once."""
    problems = [
        Diagnostic(
            "open-size",
            f"the file does not tell the sizes of the input '{each.name}', and tracing needs them",
            {"input": each.name},
            f"--input-shape {each.name}:1x3x224x224 or the like (0 for a size that stays open), and --input-type "
            f"{each.name}:int64 where it is not float32",
        )
        for each in inputs if not each.bound and each.shape is None
    ]  # fmt: skip
    if problems:
        raise ConversionError(problems)
