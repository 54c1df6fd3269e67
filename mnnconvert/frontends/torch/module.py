"""A torch module in memory, converted by way of the exported program that is made of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mnnconvert.errors import UsageError
from mnnconvert.frontends.torch.export import export
from mnnconvert.frontends.torch.files import require_torch


def convert_module(
    module: Any,
    target: Any,
    example_inputs: Sequence[Any] | None,
    dynamic_shapes: Any,
    convert: Callable[..., Any],
    keywords: Mapping[str, Any],
) -> Any:
    """Trace `module` (a nn.Module, or an ExportedProgram) in evaluation mode and `convert` the file that it gives."""
    require_torch()
    import torch

    program = module
    if isinstance(module, torch.nn.Module):
        program = _traced(module, example_inputs, dynamic_shapes)
    elif not isinstance(module, torch.export.ExportedProgram):
        raise UsageError.of("bad-input", f"a {type(module).__name__} is no model: give a file or a torch.nn.Module")
    with TemporaryDirectory() as folder:
        if any(type(t) not in (torch.Tensor, torch.nn.Parameter) for t in program.state_dict.values()):
            program = program.run_decompositions({})  # a weight of torchao becomes its codes and scales
        path = Path(folder) / f"{type(module).__name__}.pt2"
        torch.export.save(program, str(path))
        report = convert(path, target, framework="TORCH", **keywords)
    report.source = type(module).__name__
    return report


def _traced(module: Any, example_inputs: Sequence[Any] | None, dynamic_shapes: Any) -> Any:
    if example_inputs is None:
        raise UsageError.of(
            "missing-option",
            "a torch module is traced with inputs",
            hint="example_inputs=(torch.ones(1, 3, 8, 8),)",
        )
    training = module.training
    module.eval()
    try:
        return export(module, tuple(example_inputs), None, dynamic_shapes)
    finally:
        module.train(training)
