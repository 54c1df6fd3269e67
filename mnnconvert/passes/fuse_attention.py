"""Attention comes as two products around a softmax; MNN has one op, which never makes the scores of all keys at once.

What such pieces look like is in `ops/attention_form.py`, what is made of them in `attention_parts.py`. An attention
that the op, or the runtime that runs it, cannot compute stays in pieces, and the report says why.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mnnconvert.ir import Builder, Graph, Node, Value
from mnnconvert.ops.attention_form import AttentionForm, Unknown, UnlikeError, attention_form
from mnnconvert.ops.matmul import MatMul
from mnnconvert.ops.normalization import Softmax
from mnnconvert.passes.attention_parts import Plan, plan
from mnnconvert.passes.base import GraphPass, Notes
from mnnconvert.passes.edit import replace_nodes
from mnnconvert.passes.keep_keys import Kept, kept_keys
from mnnconvert.passes.reshapes import VIEWS

REACH = 10  # ops between a product and its softmax that are looked through
BETWEEN = {"Binary", "Unary", "Select", "Cast", "Concat", "Identity", "ReLU", "ReLU6", *VIEWS}


@dataclass(frozen=True)
class FuseAttention(GraphPass):
    """Two products around a softmax, with scale, masks and shared heads, become one Attention that the target runs."""

    target: str = "mnn-3.6.1"

    name = "fuse-attention"
    after = ("sink-permutes", "share-expressions")

    def change(self, graph: Graph, notes: Notes) -> int:
        forms, runtime = _forms(graph, notes), self.target != "none"
        kept, plans = _kept(graph, forms, runtime, notes)
        for form in forms:
            if form.last not in plans:
                try:
                    plans[form.last] = plan(form, runtime)
                except UnlikeError as reason:
                    notes.misses.append(f"attention at '{form.first.name}': {reason}")
        if not plans:
            return 0
        found = [plans[n] for n in graph.nodes if n in plans]
        for each, layer in zip(found, itertools.accumulate((p.ops for p in found), initial=0), strict=False):
            each.layer = layer

        def replace(b: Builder, node: Node) -> Sequence[Value] | None:
            if kept is not None and node in kept.sizes:
                return [kept.size(b, node)]
            return [plans[node].build(b)] if node in plans else None

        replace_nodes(graph, replace)
        if kept is not None:
            kept.forget(graph)
            notes.notes += kept.notes()
        graph.prune()
        return len(plans)


def _forms(graph: Graph, notes: Notes) -> list[AttentionForm]:
    forms = []
    for first in _products(graph):
        try:
            forms.append(attention_form(_Known(graph.output_values), first))
        except UnlikeError as reason:
            notes.misses.append(f"attention at '{first.name}': {reason}")
    return forms


def _kept(
    graph: Graph, forms: Sequence[AttentionForm], runtime: bool, notes: Notes
) -> tuple[Kept | None, dict[Node, Plan]]:
    """What is kept from call to call, and the plans of attentions that do so; nothing where one of them cannot.

    Inputs of a graph inside another are its business.
    """
    if graph is not notes.whole:
        return None, {}
    try:
        kept = kept_keys(graph, forms)
        plans = {form.last: plan(form, runtime, kept=True) for form in kept.forms} if kept else {}
    except UnlikeError as reason:
        notes.misses.append(f"keys and values of earlier calls stay inputs: {reason}")
        return None, {}
    return kept, plans


def _products(graph: Graph) -> Iterator[Node]:
    """Products of two computed values that go into a softmax: what looks like the beginning of an attention."""
    for node in graph.nodes:
        computed = isinstance(node.op, MatMul) and not any(v.is_constant for v in node.inputs)
        if computed and _reaches_softmax(node):
            yield node


def _reaches_softmax(product: Node) -> bool:
    seen, ahead = {product}, [product]
    for _ in range(REACH):
        users = {u for node in ahead for v in node.outputs for u in v.users} - seen
        if any(isinstance(u.op, Softmax) for u in users):
            return True
        ahead = [u for u in users if u.op.kind in BETWEEN]
        seen |= users
    return False


@dataclass
class _Known:
    """What is known of a graph while it is rewritten."""

    wanted: Collection[Value]
    _shapes: dict[Value, tuple[Any, ...]] = field(default_factory=dict)

    def shape(self, value: Value) -> tuple[Any, ...]:
        """Numbers, symbols, and objects that equal nothing for what is not known."""
        if value not in self._shapes:
            self._shapes[value] = tuple(Unknown() if size is None else size for size in value.shape or ())
        return self._shapes[value]

    def constant(self, value: Value) -> np.ndarray | None:
        return value.constant

    def only_user(self, value: Value) -> Node | None:
        alone = len(value.users) == 1 and value not in self.wanted and value.tensor is None
        return value.users[0] if alone else None

    def maker(self, value: Value) -> Node | None:
        return value.producer if self.only_user(value) is not None else None
