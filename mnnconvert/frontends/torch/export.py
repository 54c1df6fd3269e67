"""Torch models as exported programs: read from a file, traced from a script or from a module in memory."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_tb
from typing import Any

from mnnconvert.errors import ConversionError, MnnConvertError
from mnnconvert.frontends.torch.files import kind_of_file, load_program, load_script, refuse_pickle, require_torch
from mnnconvert.frontends.torch.inputs import (
    InputOptions,
    ScriptInput,
    example_of,
    open_axes,
    require_shapes,
    script_inputs,
)
from mnnconvert.frontends.torch.script import Script

PACKED = "packed sequences are followed in traces only: save torch.jit.trace(module, inputs), and convert that file"


@dataclass(frozen=True)
class Source:
    """A Torch file: its ScriptModule and what is known of its inputs, or its ExportedProgram."""

    path: Path
    options: InputOptions
    scripted: Any = None
    inputs: tuple[ScriptInput, ...] = ()
    program: Any = None


def open_file(path: Path, options: InputOptions) -> Source:
    """Load a file. Raises `bad-torch-file`, `weights-without-network`, `pickled-object`, `missing-extra` and others."""
    kind = kind_of_file(path)
    require_torch()
    if kind == "program":
        if options.types or options.values:
            raise ConversionError.of(
                "option-without-effect", "an exported program tells the types of its inputs and has no open numbers"
            )
        return Source(path, options, program=load_program(path))
    if kind == "script":
        scripted = load_script(path)
        return Source(path, options, scripted, tuple(script_inputs(scripted, options)))
    if kind == "pickle":
        raise refuse_pickle(path)
    raise ConversionError.of(
        "bad-torch-file", f"'{path.name}' is neither a TorchScript file nor an exported program", file=path
    )


def program_of(source: Source) -> Any:
    """The ExportedProgram of a file; a script is traced with inputs of the sizes that are known."""
    if source.program is not None:
        return source.program
    import torch

    inputs = list(source.inputs)
    require_shapes(inputs)
    script = Script(source.scripted, {each.name: each.bound[0] for each in inputs if each.bound})
    free = [each for each in inputs if not each.bound]
    examples = tuple(example_of(each, source.options) for each in free)
    axes = {each.name: dict.fromkeys(open_axes(each, source.options), torch.export.Dim.DYNAMIC) for each in free}
    numbers = [each.name for each in free if each.is_number]
    hint = f"--input-value {numbers[0]}:NUMBER makes a constant of that input" if numbers else ""
    return export(script.module, examples, None, axes, hint)


def export(
    module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None, dynamic_shapes: Any, hint: str = ""
) -> Any:
    """torch.export of a module; raises `torch-export-failed` with what torch says, and `hint` where there is one."""
    import torch

    try:
        with torch.no_grad(), quiet():
            return torch.export.export(module, args, dict(kwargs or {}), dynamic_shapes=dynamic_shapes)
    except MnnConvertError:
        raise
    except Exception as error:
        known = known_cause(error)
        if known is not None:
            raise known from error
        raise ConversionError.of(
            "torch-export-failed",
            f"torch.export cannot trace the model: {short(error)}",
            hint=hint or (PACKED if _packs(error) else "mnnconvert explain torch-export-failed says what it needs"),
        ) from error


def _packs(error: BaseException) -> bool:
    """Whether a recurrent layer that was given packed sequences is where it ends."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    layers = [f for f in frames if f.f_code.co_filename.endswith("rnn.py") and f.f_code.co_name == "forward"]
    return any(frame.f_locals.get("batch_sizes") is not None for frame in layers)


def known_cause(error: BaseException | None) -> MnnConvertError | None:
    """A diagnostic of ours that torch has wrapped into its own error."""
    while error is not None:
        if isinstance(error, MnnConvertError):
            return error
        error = error.__cause__ or error.__context__
    return None


def short(error: BaseException) -> str:
    """The first lines of a message of torch, on one line of bearable length."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines[:4]) or type(error).__name__
    return text if len(text) <= 400 else text[:397] + "..."


@contextmanager
def quiet() -> Iterator[None]:
    """Without what torch and onnxscript log, warn and print about their own insides."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
