"""What a Torch file is: a script, an exported program, or only a pickle, which is recognised and never executed."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from mnnconvert.errors import ConversionError, unreadable

Kind = Literal["script", "program", "pickle", "other"]

WAY_OUT = (
    "build the network in Python, load the weights into it, and call "
    "mnnconvert.convert(module, target, example_inputs=(...,)), or save it with torch.jit.save or torch.export.save"
)


def require_torch() -> None:
    """Refuse with the extra to install where torch or its exporter is not there."""
    for package in ("torch", "onnxscript"):
        if find_spec(package) is None:
            raise ConversionError.of(
                "missing-extra",
                f"Torch models are read by the package {package}, which is not installed",
                hint="pip install 'mnnconvert[torch]'",
            )


def kind_of_file(path: Path) -> Kind:
    """What the names inside the archive say; raises `missing-file`, `unreadable-file`."""
    try:
        with path.open("rb") as file:
            head = file.read(2)
        if head != b"PK":
            return "pickle" if head[:1] == b"\x80" else "other"
        with zipfile.ZipFile(path) as archive:
            names = {name.partition("/")[2] or name for name in archive.namelist()}
    except OSError as error:
        raise unreadable(path, error) from error
    except zipfile.BadZipFile as error:
        raise _damaged(path, error) from error
    if "serialized_exported_program.json" in names or any(n.startswith("models/") for n in names):
        return "program"
    if "constants.pkl" in names or any(n.startswith("code/") for n in names):
        return "script"
    return "pickle" if "data.pkl" in names else "other"


def load_script(path: Path) -> Any:
    """The ScriptModule of a file, in evaluation mode and on the CPU, with the input sizes that a trace kept."""
    import torch

    _import_definers(path)
    try:
        module = torch.jit.load(str(path), map_location="cpu", _restore_shapes=_keeps_inputs(path))
    except (RuntimeError, ValueError, OSError) as error:
        missing = _unknown_operator(str(error))
        if missing:
            raise _unregistered(missing) from error
        raise _damaged(path, error) from error
    module.eval()
    return module


DEFINERS = ("torchvision", "torchao")
"""Packages that define operators of their own, which torch knows once they are imported."""


def _import_definers(path: Path) -> None:
    from importlib import import_module

    with zipfile.ZipFile(path) as archive:
        members = [name for name in archive.namelist() if name.endswith((".py", ".json"))]
        texts = [archive.read(name) for name in members]
    for package in DEFINERS:
        named = any(f"{package}{mark}".encode() in text for text in texts for mark in (".", "::"))
        if named and find_spec(package) is not None:
            import_module(package)


def _keeps_inputs(path: Path) -> bool:
    """Whether a trace has stored the inputs that it was made with."""
    with zipfile.ZipFile(path) as archive:
        return any("traced_inputs" in name for name in archive.namelist())


def load_program(path: Path) -> Any:
    """The ExportedProgram of a file."""
    import torch

    _import_definers(path)
    try:
        with _no_pickled_code():
            return torch.export.load(str(path))
    except Exception as error:
        text = _chain(error)
        missing = _unknown_operator(text)
        if missing:
            raise _unregistered(missing) from error
        if "weights_only" in text or "Unsupported global" in text:
            raise pickled(path) from error
        raise _damaged(path, error) from error


@contextmanager
def _no_pickled_code() -> Iterator[None]:
    """torch.export.load unpickles some members of the archive; with this only tensors and plain values."""
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def refuse_pickle(path: Path) -> ConversionError:
    """The error for a file of torch.save, which says whether it holds weights without their network; raise it."""
    import pickle

    import torch

    try:
        content = torch.load(str(path), map_location="meta", weights_only=True)
    except pickle.UnpicklingError:
        return pickled(path)
    except (RuntimeError, ValueError, EOFError, OSError, KeyError, AttributeError) as error:
        return _damaged(path, error)
    tensors = _tensors_in(content)
    return ConversionError.of(
        "weights-without-network",
        f"'{path.name}' holds {tensors} tensors by name (a state dict), and no network that uses them",
        hint=WAY_OUT,
        file=path,
    )


def pickled(path: Path) -> ConversionError:
    """The error for a file whose content is Python code to run."""
    return ConversionError.of(
        "pickled-object",
        f"'{path.name}' is a pickled Python object: to load it is to run code from the file, which is not done",
        hint=WAY_OUT,
        file=path,
    )


def _tensors_in(content: Any) -> int:
    import torch

    if isinstance(content, torch.Tensor):
        return 1
    values = content.values() if isinstance(content, dict) else content if isinstance(content, list | tuple) else ()
    return sum(_tensors_in(value) for value in values)


def _chain(error: BaseException | None) -> str:
    texts = []
    while error is not None:
        texts.append(f"{type(error).__name__}: {error}")
        error = error.__cause__ or error.__context__
    return "\n".join(texts)


def _unknown_operator(text: str) -> str:
    """The name of the operator that torch says it does not know, or nothing."""
    import re

    for pattern in (
        r"Unknown builtin op: ([\w:.]+)",
        r"_OpNamespace' '(\w+)' object has no attribute '(\w+)'",
        r"does not exist:? ([\w:.]+)",
        r"torch\.ops\.([\w.]+)",
    ):
        found = re.search(pattern, text)
        if found:
            return "::".join(found.groups()).rstrip(".")
    return ""


def _unregistered(name: str) -> ConversionError:
    return ConversionError.of(
        "unsupported-op",
        f"the model calls the operator {name}, which torch does not know here",
        op=name,
        hint="import the package that defines it and call mnnconvert.convert from Python, or export without it",
    )


def _damaged(path: Path, error: Exception) -> ConversionError:
    text = " ".join(str(error).split())
    return ConversionError.of("bad-torch-file", f"torch cannot read '{path.name}': {text[:300]}", file=path)
