"""Operators of torch with the sample inputs of its own operator tests, and what our conversion makes of each sample."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from torch_cases import torch

pytest.importorskip("expecttest", reason="torch's operator tests need it")

from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from mnnconvert.errors import MnnConvertError
from mnnconvert.frontends.torch.decompositions import overload_of
from mnnconvert.frontends.torch.export import export
from mnnconvert.frontends.torch.inputs import InputOptions
from mnnconvert.frontends.torch.ports import flat_outputs, input_ports
from mnnconvert.frontends.torch.reader import graph_of
from mnnconvert.passes.pipeline import run_pipeline
from mnnconvert.runtime_ref.session import Session

LARGEST = 20_000  # numbers in an operand
TOLERANCE = 1e-3  # of the largest value of a result
NOISE = 1e-5
NARROW = {torch.bfloat16: 2**-7}  # types that results are not rounded to

SETTLED = ("aten::dropout", "aten::scaled_dot_product_attention")
"""Draw nothing unless they are asked to."""
TIES = (torch.int64, "topk")
"""Any place may be given among equal numbers."""


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


@dataclass
class Case:
    """A function with one of its samples; `in_place` where it writes into its first operand."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    in_place: bool = False


class Calls(torch.nn.Module):
    """Runs some cases; their tensors are the inputs."""

    def __init__(self, cases: list[Case]):
        super().__init__()
        self.cases = cases
        leaves, self.spec = pytree.tree_flatten([(case.args, case.kwargs) for case in cases])
        self.places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        self.tensors = [leaves[i] for i in self.places]
        self.leaves = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]

    def forward(self, *tensors: Any) -> Any:
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        results = []
        for case, (args, kwargs) in zip(self.cases, pytree.tree_unflatten(leaves, self.spec), strict=True):
            if case.in_place:
                args = (args[0].clone(), *args[1:])
            results.append(case.function(*args, **kwargs))
        return results


def operators() -> Iterator[tuple[str, Any]]:
    """Name and OpInfo of every operator."""
    for info in op_db:
        yield info.name + (f".{info.variant_test_name}" if info.variant_test_name else ""), info


def cases_of(info: Any, most: int) -> list[Case]:
    """Up to `most` samples in float32 (where the operator takes it), some in int64, one that writes in place."""
    kinds = [k for k in (torch.float32, torch.int64) if k in info.dtypes and (k, info.name) != TIES] or [
        k for k in (torch.bool,) if k in info.dtypes
    ]
    found: list[Case] = []
    for i, kind in enumerate(kinds):
        torch.manual_seed(0)
        np.random.seed(0)
        every = [s for s in info.sample_inputs("cpu", kind, requires_grad=False) if _is_small(s)]
        count = min(len(every), most if i == 0 else max(1, most // 2))
        picked = [every[j * len(every) // count] for j in range(count)]
        found += [Case(info.op, (s.input, *s.args), dict(s.kwargs)) for s in picked]
        if info.inplace_variant is not None and i == 0:
            fits = [s for s in every if not s.broadcasts_input]
            found += [Case(info.inplace_variant, (s.input, *s.args), dict(s.kwargs), True) for s in fits[-1:]]
    return found


def _is_small(sample: Any) -> bool:
    leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    return all(leaf.numel() <= LARGEST for leaf in leaves if isinstance(leaf, torch.Tensor))


def measure(name: str, info: Any, most: int) -> Row | None:
    """The row of an operator; None for one that gives other results each time or takes no tensor."""
    row = Row(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = [case for case in cases_of(info, most) if _is_settled(case)]
        if not cases:
            return None
        outcome, text, seen = attempt(cases)
        if outcome == "right" or len(cases) == 1:
            row.add(outcome, text, len(cases), seen)
        else:
            for case in cases:
                outcome, text, seen = attempt([case])
                row.add(outcome, text, 1, seen)
    return row if row.right or row.refused or row.wrong else None


def _is_settled(case: Case) -> bool:
    """Whether torch runs a case, with the same result twice, and dense tensors."""
    calls = Calls([case])
    try:
        first = pytree.tree_leaves(calls(*[t.clone() for t in calls.tensors]))
        torch.manual_seed(2)
        second = pytree.tree_leaves(calls(*[t.clone() for t in calls.tensors]))
    except (RuntimeError, ValueError, TypeError, NotImplementedError, IndexError, AssertionError):
        return False
    tensors = [(a, b) for a, b in zip(first, second, strict=True) if isinstance(a, torch.Tensor)]
    if any(t.layout != torch.strided or t.dtype == torch.complex32 for t in (*calls.tensors, *(a for a, _ in tensors))):
        return False
    same = all(torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) for a, b in tensors)
    return bool(tensors) and bool(calls.tensors) and same


def attempt(cases: list[Case]) -> tuple[str, str, set[str]]:
    """Outcome ("right", "refused", "wrong", "random"), what to say of it, and the overloads that were called."""
    calls = Calls(cases)
    expected = flat_outputs(calls(*[t.clone() for t in calls.tensors]), set())
    try:
        program = export(calls, tuple(calls.tensors), None, None)
        seen = overloads(program)
        if any(_is_random(name) for name in seen):
            return "random", "", set()
        graph = graph_of(program, None, InputOptions())
        run_pipeline(graph, target="mnn-3.6.1")
        names = [name for name, _ in input_ports(program)]
        feeds = {n: t.numpy() for n, t in zip(names, calls.tensors, strict=True)}
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
    """Whether an operator draws numbers, or leaves them as they lie in memory."""
    if "empty" in name:
        return True
    target = overload_of(name)
    return target is not None and torch.Tag.nondeterministic_seeded in target.tags and name not in SETTLED


def _said(error: MnnConvertError) -> str:
    first = error.diagnostics[0] if error.diagnostics else None
    return f"{first.reference}: {first.message}" if first else str(error)


def difference(got: dict[str, np.ndarray], expected: dict[str, Any]) -> str:
    """What is not equal: shapes, integers, floats beyond the tolerance; an empty text where all is."""
    if set(got) != set(expected):
        return f"outputs {sorted(got)} instead of {sorted(expected)}"
    for name, value in expected.items():
        want = _array(value)
        problem = _unlike(got[name], want, NARROW.get(getattr(value, "dtype", None), TOLERANCE))
        if problem:
            return f"{name}: {problem}"
    return ""


def _array(value: Any) -> np.ndarray:
    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    return (value.float() if value.dtype.is_floating_point else value).detach().numpy()


def _unlike(got: np.ndarray, want: np.ndarray, tolerance: float) -> str:
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
    bound = NOISE + tolerance * float(np.abs(want[finite]).max(initial=0))
    worst = float(np.abs(got[finite] - want[finite]).max(initial=0))
    return "" if worst <= bound else f"off by {worst:.3g}, allowed {bound:.3g}"
