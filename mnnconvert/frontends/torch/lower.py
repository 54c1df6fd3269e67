"""ExportedProgram -> ONNX model: torch's own translation, with ours for what it lacks or gets wrong.

This is the one place that calls the exporter below its public function: that one always runs a version converter, which
does not know control flow inside control flow, and it names only the first of the operators that stand in the way.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from mnnconvert.errors import ConversionError, Diagnostic
from mnnconvert.frontends.torch.decompositions import overload_of, table
from mnnconvert.frontends.torch.export import known_cause, quiet, short
from mnnconvert.frontends.torch.ports import Computed, input_ports, output_ports
from mnnconvert.frontends.torch.quantized import dequantized_rows, gather_scales
from mnnconvert.frontends.torch.translations import TRANSLATIONS, coded
from mnnconvert.ir import ArrayTensor, Tensor

INT4 = 22  # TensorProto.INT4; here the codes lie in int8
FOREIGN = (
    "torchvision::nms",
    "torchvision::roi_align",
    "torchao::dequantize_affine",
    "mnnconvert::layer_of_lengths",
)  # that may come later
OPSET = 18  # the one that all translations of the exporter are written in


def lower(program: Any) -> tuple[Any, dict[str, Tensor]]:
    """The ModelProto, whose initializers have no content, and their content by name, which shares torch's memory.

    `program` is a prepared one.
    """
    _refuse_complex(program)
    model = _translated(program)
    _fold(model)
    for value, (name, _) in zip(model.graph.inputs, input_ports(program), strict=True):
        value.name = name  # the exporter renames one that an operator gives back as it is
    _name_outputs(model, output_ports(program))
    _drop_unused(model)
    return _split(model)


def prepared(program: Any) -> Any:
    """The program without writing in place, in operators that have a translation where there is a way to those."""
    import torch
    from torch.onnx._internal.exporter import _fx_passes

    sizes_may_be_one = torch.fx.experimental._config.patch(backed_size_oblivious=True)
    with quiet(), sizes_may_be_one:
        try:
            program = program.run_decompositions(dict(_decompositions(_registry())))
            _fx_passes.insert_type_promotion_nodes(program.graph_module)
            _fx_passes.remove_assertion_nodes(program.graph_module)
            gather_scales(program.graph_module.graph)
            _drop_constant_results(program.graph_module.graph)
        except Exception as error:
            ours = known_cause(error)
            if ours is not None:
                raise ours from error
            raise ConversionError.of(
                "torch-export-failed", f"torch cannot take the model apart: {short(_root(error))}"
            ) from error
    return program


def _drop_constant_results(graph: Any) -> None:
    """The exporter knows no results that are plain numbers; they are added in the end."""
    import torch

    (node,) = graph.find_nodes(op="output")
    node.args = (tuple(x if isinstance(x, torch.fx.Node) else None for x in node.args[0]),)


def _refuse_complex(program: Any) -> None:
    """Complex numbers inside are pairs; at the borders nobody could tell them from other tensors."""
    nodes = program.graph_module.graph.nodes
    values = {n.name: n.meta.get("val") for n in nodes}
    ports = [*dict(input_ports(program)), *(p.node for p in output_ports(program).values() if isinstance(p, Computed))]
    complex_ones = [name for name in ports if getattr(getattr(values.get(name), "dtype", None), "is_complex", False)]
    if complex_ones:
        raise ConversionError.of(
            "unsupported-type",
            f"the input or output '{complex_ones[0]}' holds complex numbers, which MNN does not have",
            hint="use torch.view_as_real and torch.view_as_complex at the borders of the model",
        )


def _translated(program: Any) -> Any:
    """The model in the exporter's own form."""
    from torch.onnx._internal.exporter import _core

    registry = _registry()
    missing = _missing(program, registry) | _misread(program)
    if missing:
        raise ConversionError(_unsupported(name, places) for name, places in missing.items())
    with quiet():
        try:
            return _core._exported_program_to_onnx_program(program, registry=registry).model
        except Exception as error:
            raise ConversionError.of(
                "torch-export-failed", f"torch cannot translate the model: {short(_root(error))}"
            ) from error


def _registry() -> Any:
    """The translations of all operators that torch knows by now."""
    return _registry_of(tuple(overload_of(name) is not None for name in FOREIGN))


@cache
def _registry_of(_: tuple[bool, ...]) -> Any:
    from torch.onnx._internal.exporter import _registration

    with quiet():
        registry = _registration.ONNXRegistry.from_torchlib(opset_version=OPSET)
    for name, translation in TRANSLATIONS.items():
        target = overload_of(name)
        if target is not None:
            registry.register_op(target, translation, is_complex=False)
    registry.register_op(dequantized_rows, lambda codes, scale: coded(codes, scale, None, codes.shape[1]))
    return registry


@cache
def _decompositions(registry: Any) -> dict[Any, Any]:
    """What to take apart: all that has no translation, and what we take apart ourselves."""
    from torch.onnx._internal.exporter import _decomp

    known = set(_decomp.get_onnx_implemented_overloads(registry))
    return {**_decomp.create_onnx_friendly_decomposition_table(known), **table()}


def _root(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _missing(program: Any, registry: Any) -> dict[str, list[str]]:
    """Operators without a translation and the names of (some) nodes that call them."""
    import torch

    found: dict[str, list[str]] = {}
    for module in program.graph_module.modules():
        for node in getattr(module, "graph", torch.fx.Graph()).nodes:
            if node.op == "call_function" and not _is_known(node.target, registry):
                found.setdefault(_label(node.target), []).append(node.name)
    return found


def _is_known(target: Any, registry: Any) -> bool:
    if getattr(target, "__name__", "") == "getitem":
        return True
    return bool(registry.get_decomps(target))


def _misread(program: Any) -> dict[str, list[str]]:
    """Results that the exporter gives and torch does not: the statistics of a batch norm that takes none."""
    import torch

    norms = program.graph_module.graph.find_nodes(
        op="call_function", target=torch.ops.aten._native_batch_norm_legit_no_training.default
    )
    read = [user.name for norm in norms for user in norm.users if user.args[1] > 0 and user.users]
    return {"aten::native_batch_norm.default with its empty statistics": read} if read else {}


def _label(target: Any) -> str:
    return str(target).replace(".", "::", 1) if "." in str(target) else getattr(target, "__name__", str(target))


def _unsupported(name: str, places: list[str]) -> Diagnostic:
    return Diagnostic(
        "unsupported-op",
        f"there is no translation of the operator {name}",
        {"op": name, "nodes": ", ".join(places[:3])},
        "mnnconvert ops --framework TORCH lists what is translated",
    )


def _name_outputs(model: Any, ports: dict[str, Any]) -> None:
    """Give the results of the graph their names, through an Identity each: one value may be several results."""
    import onnx_ir as ir

    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        for value in node.outputs:
            if value.name in ports:
                value.name = f"{value.name}__"
    computed = iter(list(model.graph.outputs))
    model.graph.outputs.clear()
    for name, port in ports.items():
        result = next(computed) if isinstance(port, Computed) else _constant(model, name, port)
        node = ir.node("Identity", [result])
        named = node.outputs[0]
        named.name, named.type, named.shape = name, result.type, result.shape
        model.graph.append(node)
        model.graph.outputs.append(named)


def _fold(model: Any) -> None:
    """Compute sizes and bounds of slices now, with the 64 bits that they are written in."""
    from onnxscript import optimizer

    with quiet():
        optimizer.fold_constants(model, onnx_shape_inference=False)


def _drop_unused(model: Any) -> None:
    """Leave out places of maxima that nobody reads: with open sizes they could not be written."""
    import onnx_ir as ir

    results = set(model.graph.outputs)
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        for value in node.outputs[1:] if node.op_type == "MaxPool" else ():
            if not value.uses() and value not in results:
                value.name = ""


def _constant(model: Any, name: str, number: Any) -> Any:
    import numpy as np
    import onnx_ir as ir

    array = np.asarray(number, np.float32 if isinstance(number, float) else None)
    node = ir.node("Constant", [], attributes={"value": ir.tensor(array)})
    value = node.outputs[0]
    value.name, value.type, value.shape = f"{name}__", ir.TensorType(ir.DataType.from_numpy(array.dtype)), ir.Shape([])
    model.graph.append(node)
    return value


def _split(model: Any) -> tuple[Any, dict[str, Tensor]]:
    """Structure and content apart, so that no weight is copied into the structure."""
    import onnx_ir as ir

    tensors: dict[str, Tensor] = {}
    headers = []
    for name, value in list(model.graph.initializers.items()):
        if value.const_value is None:
            continue
        if value.uses():
            tensors[name] = ArrayTensor(value.const_value.numpy())
            data_type = INT4 if value.metadata_props.get("bits") == "4" else int(value.const_value.dtype)
            headers.append((name, data_type, list(value.const_value.shape.numpy())))
        del model.graph.initializers[name]
    proto = ir.serde.serialize_model(model)
    for name, data_type, dims in headers:
        proto.graph.initializer.add(name=name, data_type=data_type, dims=dims)
    return proto, tensors
