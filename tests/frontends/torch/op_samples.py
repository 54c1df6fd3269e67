"""Operators of torch with the sample inputs of its own operator tests, and what our conversion makes of each sample."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="torch's operator tests need it")

from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

from mnnconvert.errors import MnnConvertError  # noqa: E402
from mnnconvert.frontends.torch.decompositions import overload_of  # noqa: E402
from mnnconvert.frontends.torch.export import export  # noqa: E402
from mnnconvert.frontends.torch.inputs import InputOptions  # noqa: E402
from mnnconvert.frontends.torch.ports import flat_outputs, input_ports  # noqa: E402
from mnnconvert.frontends.torch.reader import graph_of  # noqa: E402
from mnnconvert.passes.pipeline import run_pipeline  # noqa: E402
from mnnconvert.runtime_ref.session import Session  # noqa: E402

LARGEST = 20_000  # numbers in an operand
TOLERANCE = 1e-3  # of the largest value of a result
NOISE = 1e-5
Sample = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass
class Row:
    """What became of the samples of one operator; `seen` are the overloads that the right ones call."""

    name: str
    right: int = 0
    refused: int = 0
    wrong: int = 0
    seen: set[str] = field(default_factory=set)
    refusals: set[str] = field(default_factory=set)
    mistakes: list[str] = field(default_factory=list)

    def add(self, outcome: str, text: str, count: int, seen: set[str]) -> None:
        if outcome == "right":
            self.right += count
            self.seen |= seen
        elif outcome == "refused":
            self.refused += count
            self.refusals.add(text)
        elif outcome == "wrong":
            self.wrong += count
            self.mistakes.append(text)


class Call(torch.nn.Module):
    """Calls a function with each of some samples; their tensors are the inputs."""

    def __init__(self, function: Any, samples: list[Sample], clone: bool):
        super().__init__()
        leaves, self.spec = pytree.tree_flatten(samples)
        self.places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        self.tensors = [leaves[i] for i in self.places]
        self.leaves = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self.function, self.clone = function, clone

    def forward(self, *tensors: Any) -> Any:
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor.clone() if self.clone else tensor
        return [self.function(*args, **kwargs) for args, kwargs in pytree.tree_unflatten(leaves, self.spec)]


def operators() -> Iterator[tuple[str, Any, bool]]:
    """Name, OpInfo and whether it is the form that writes into its first operand."""
    for info in op_db:
        name = info.name + (f".{info.variant_test_name}" if info.variant_test_name else "")
        yield name, info, False
        if info.inplace_variant is not None:
            yield f"{name} (in place)", info, True


def samples_of(info: Any, in_place: bool, most: int) -> list[Sample]:
    """Up to `most` samples in float32 (where the operator takes it) and a few in int64, spread over all there are."""
    kinds = [torch.float32] if torch.float32 in info.dtypes else []
    kinds += [torch.int64] if torch.int64 in info.dtypes and not in_place else []
    kinds = kinds or [k for k in (torch.int64, torch.bool) if k in info.dtypes]
    found: list[Sample] = []
    for i, kind in enumerate(kinds):
        torch.manual_seed(0)
        torch.testing._internal.common_utils.random.seed(0)
        np.random.seed(0)  # noqa: NPY002  (what torch's samples draw from)
        every = [s for s in info.sample_inputs("cpu", kind, requires_grad=False) if _is_small(s)]
        if in_place:
            every = [s for s in every if not s.broadcasts_input]
        count = min(len(every), most if i == 0 else max(1, most // 3))
        picked = [every[j * len(every) // count] for j in range(count)]
        found += [((s.input, *s.args), dict(s.kwargs)) for s in picked]
    return found


def _is_small(sample: Any) -> bool:
    leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    return all(leaf.numel() <= LARGEST for leaf in leaves if isinstance(leaf, torch.Tensor))


def measure(name: str, info: Any, in_place: bool, most: int) -> Row | None:
    """The row of an operator; None for one that gives other results each time or takes no tensor."""
    row = Row(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        function = info.inplace_variant if in_place else info.op
        samples = samples_of(info, in_place, most)
        runnable = [s for s in samples if _is_settled(function, s, in_place)]
        if not runnable:
            return None
        outcome, text, seen = attempt(function, runnable, in_place)
        if outcome == "right" or len(runnable) == 1:
            row.add(outcome, text, len(runnable), seen)
            return row
        for sample in runnable:
            outcome, text, seen = attempt(function, [sample], in_place)
            row.add(outcome, text, 1, seen)
    return row if row.right or row.refused or row.wrong else None


def _is_settled(function: Any, sample: Sample, in_place: bool) -> bool:
    """Whether torch runs a sample, with the same result twice."""
    call = Call(function, [sample], in_place)
    if not call.tensors:
        return False
    try:
        torch.manual_seed(1)
        first = pytree.tree_leaves(call(*call.tensors))
        torch.manual_seed(2)
        second = pytree.tree_leaves(call(*call.tensors))
    except (RuntimeError, ValueError, TypeError, NotImplementedError, IndexError):
        return False
    tensors = [(a, b) for a, b in zip(first, second, strict=True) if isinstance(a, torch.Tensor)]
    if any(t.layout != torch.strided for t in (*call.tensors, *(a for a, _ in tensors))):
        return False
    return bool(tensors) and all(torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) for a, b in tensors)


def attempt(function: Any, samples: list[Sample], in_place: bool) -> tuple[str, str, set[str]]:
    """Outcome ("right", "refused", "wrong"), what to say of it, and the overloads that were called."""
    call = Call(function, samples, in_place)
    expected = flat_outputs(call(*[t.clone() for t in call.tensors]), set())
    try:
        program = export(call, tuple(call.tensors), None, None)
        seen = overloads(program)
        if any(_is_random(name) for name in seen):
            return "random", "", set()
        graph = graph_of(program, None, InputOptions())
        run_pipeline(graph, target="mnn-3.6.1")
        names = [name for name, _ in input_ports(program)]
        feeds = {n: t.numpy() for n, t in zip(names, call.tensors, strict=True)}
        got = Session(graph, "reference").run(feeds)
    except MnnConvertError as error:
        return "refused", _said(error), set()
    except Exception as error:  # noqa: BLE001  (a crash is a mistake to be listed)
        return "wrong", f"{type(error).__name__}: {str(error)[:200]}", set()
    problem = difference(got, expected)
    return ("wrong", problem, set()) if problem else ("right", "", seen)


def overloads(program: Any) -> set[str]:
    """The overloads that a program calls, as "aten::add.Tensor"."""
    return {
        str(node.target).replace(".", "::", 1).removesuffix(".default")
        for module in program.graph_module.modules()
        for node in getattr(module, "graph", torch.fx.Graph()).nodes
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload)
    }


def _is_random(name: str) -> bool:
    target = overload_of(name)
    return target is not None and torch.Tag.nondeterministic_seeded in target.tags and "dropout" not in name


def _said(error: MnnConvertError) -> str:
    first = error.diagnostics[0] if error.diagnostics else None
    return f"{first.reference}: {first.message}" if first else str(error)


def difference(got: dict[str, np.ndarray], expected: dict[str, Any]) -> str:
    """What is not equal: shapes, integers, floats beyond the tolerance; an empty text where all is."""
    if set(got) != set(expected):
        return f"outputs {sorted(got)} instead of {sorted(expected)}"
    for name, value in expected.items():
        want = value.detach().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
        problem = _unlike(got[name], want)
        if problem:
            return f"{name}: {problem}"
    return ""


def _unlike(got: np.ndarray, want: np.ndarray) -> str:
    if got.shape != want.shape:
        return f"shape {got.shape} instead of {want.shape}"
    if want.dtype.kind in "biu":
        same = np.array_equal(got.astype(np.int64), want.astype(np.int64))
        return "" if same else f"{got.reshape(-1)[:4]} instead of {want.reshape(-1)[:4]}"
    got, want = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(want)
    if not np.array_equal(np.isnan(got), np.isnan(want)) or not np.array_equal(
        got[~finite], want[~finite], equal_nan=True
    ):
        return "NaN or infinity at other places"
    bound = NOISE + TOLERANCE * float(np.abs(want[finite]).max(initial=0))
    worst = float(np.abs(got[finite] - want[finite]).max(initial=0))
    return "" if worst <= bound else f"off by {worst:.3g}, allowed {bound:.3g}"
