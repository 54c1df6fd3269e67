"""Torch as an engine: the source of truth for TorchScript files and exported programs."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from mnnconvert.errors import ConversionError, MnnConvertError
from mnnconvert.frontends.torch.export import open_file, program_of
from mnnconvert.frontends.torch.inputs import InputOptions, ScriptInput
from mnnconvert.frontends.torch.ports import flat_outputs, input_ports
from mnnconvert.verify.engines import Feeds, Outputs, TensorInfo
from mnnconvert.verify.layers import SourceLayer
from mnnconvert.verify.torch_values import Inside, leaves


class TorchEngine:
    """Runs a Torch file on the CPU, every time from the state that the file holds.

    Inputs have the names of the parameters of forward; outputs are called as in the converted graph (docs/torch.md).
    Inputs of a script that are bound to a number, or left to their default, are none.
    """

    name = "Torch"
    exact_kinds = True
    notes: Sequence[str] = ()

    def __init__(
        self, path: str | Path, inputs: InputOptions | None = None, *, threads: int = 1, optimize: bool = False
    ):
        require_torch_engine()
        self.path = Path(path)
        self._threads = threads
        self._source = open_file(self.path, inputs or InputOptions())
        program = self._source.program
        self.inputs = (
            [_of_script(i) for i in self._source.inputs if not i.bound] if program is None else _ports(program)
        )
        self.outputs: Sequence[TensorInfo] = []

    @staticmethod
    def available() -> bool:
        return find_spec("torch") is not None

    def run(self, feeds: Feeds) -> Outputs:
        import torch

        with torch.no_grad(), _threads(self._threads):
            try:
                result = self._call({name: _tensor(array) for name, array in feeds.items()})
            except Exception as problem:
                raise self._failed(problem) from problem
        return {name: _array(value) for name, value in flat_outputs(result, set(feeds)).items()}

    def layers(self) -> Sequence[SourceLayer]:
        """See `IntermediateEngine`: the nodes of the program, which `torch.export` makes of a script."""
        return list(self._inside.layers())

    def run_values(self, feeds: Feeds, names: Sequence[str]) -> Outputs:
        """See `IntermediateEngine`: the program is run, and only these values are kept."""
        found = {name: np.asarray(feeds[name]) for name in names if name in feeds}
        found |= {name: array for name, array in self.run(feeds).items() if name in names and name not in found}
        rest = [name for name in names if name not in found]
        return found | {name: _array(value) for name, value in self._values(feeds, rest).items()}

    def _values(self, feeds: Feeds, names: Sequence[str]) -> dict[str, Any]:
        import torch

        with torch.no_grad(), _threads(self._threads):
            try:
                return self._inside.values({name: _tensor(array) for name, array in feeds.items()}, names)
            except MnnConvertError:
                raise
            except Exception as problem:
                raise self._failed(problem) from problem

    @cached_property
    def _inside(self) -> Inside:
        return Inside(program_of(self._source))

    def _call(self, feeds: dict[str, Any]) -> Any:
        source = self._source
        if source.program is not None:
            return _call_program(source.program, feeds)
        values = [i.bound[0] if i.bound else _as_declared(feeds[i.name], i) for i in source.inputs]
        return copy.deepcopy(source.scripted)(*values)

    def _failed(self, problem: Exception) -> MnnConvertError:
        text = " ".join(str(problem).split())
        return ConversionError.of(
            "source-engine-failed",
            f"Torch could not run the model: {text[:400]}",
            engine=self.name,
            file=self.path,
            hint="Check that the source model runs by itself; --inputs gives it inputs that it accepts.",
        )


def _call_program(program: Any, feeds: dict[str, Any]) -> Any:
    from torch.utils import _pytree as pytree

    args, kwargs = pytree.tree_unflatten(leaves(program, feeds), program.call_spec.in_spec)
    return program.module()(*args, **kwargs)


def _of_script(each: ScriptInput) -> TensorInfo:
    shape = None if each.shape is None else tuple(d or None for d in each.shape)
    known = each.is_number or each.type_is_known
    return TensorInfo(each.name, _dtype(each.dtype) if known else None, shape)


def _ports(program: Any) -> list[TensorInfo]:
    return [_info(name, value) for name, value in input_ports(program)]


def _info(name: str, value: Any) -> TensorInfo:
    import torch

    if not isinstance(value, torch.Tensor):
        return TensorInfo(name, np.dtype("float32" if isinstance(value, float | torch.SymFloat) else "int64"), ())
    sizes = tuple(d if isinstance(d, int) else str(d) for d in value.shape)
    return TensorInfo(name, _dtype(str(value.dtype).removeprefix("torch.")), sizes)


def _dtype(name: str) -> np.dtype:
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name, name))


def _tensor(array: np.ndarray) -> Any:
    """A copy of an array, which the model may write into."""
    import torch

    array = np.array(array, order="C")
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _array(value: Any) -> np.ndarray:
    import torch

    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    return (value.float() if value.dtype == torch.bfloat16 else value).detach().resolve_conj().numpy()


def _as_declared(tensor: Any, each: ScriptInput) -> Any:
    """A number for an input that is one; a tensor of the element type that was said."""
    import torch

    return tensor.item() if each.is_number else tensor.to(getattr(torch, each.dtype)) if each.type_is_known else tensor


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def require_torch_engine() -> None:
    """Refuse with the extra to install where torch is not there."""
    if not TorchEngine.available():
        raise ConversionError.of(
            "source-engine-missing",
            "Torch is not installed, so the source model cannot be run.",
            hint="pip install 'mnnconvert[torch]', or convert with --verify never.",
        )
