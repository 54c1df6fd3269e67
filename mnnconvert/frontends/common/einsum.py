"""Einsum as diagonals, sums, reorderings and matrix products, two operands at a time from left to right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mnnconvert.frontends.common.compose import calc
from mnnconvert.frontends.common.moves import (
    Part,
    part,
    permuted,
    reduced,
    reshaped,
    size_product,
    squeezed,
    unsqueezed,
)
from mnnconvert.frontends.common.nodes import SourceNode, limited
from mnnconvert.ir import F32, Builder, Value
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.matmul import MatMul

ELLIPSIS = "..."


@dataclass(frozen=True)
class Term:
    """A value whose axes have labels: letters, and `.0`, `.1` ... for what an ellipsis stands for, from the right."""

    value: Value
    labels: tuple[str, ...]

    def size(self, label: str) -> Part:
        return part(self.value, self.labels.index(label))


def parse(n: SourceNode, equation: str, ranks: Sequence[int]) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    """Labels of the operands and of the result; without `->` the result has the labels used once, in order."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise n.refuse(
            f"the equation '{equation}' has {len(terms)} terms for {len(ranks)} operands", reference=n.broken
        )
    operands = [_labels(n, term, rank) for term, rank in zip(terms, ranks, strict=True)]
    dots = sorted({label for labels in operands for label in labels if label[0] == "."}, reverse=True)
    if not arrow:
        counts = Counter(label for labels in operands for label in labels if label[0] != ".")
        return operands, (*dots, *sorted(label for label, count in counts.items() if count == 1))
    before, ellipsis, after = right.partition(ELLIPSIS)
    result = (*before, *(dots if ellipsis else ()), *after)
    known = {label for labels in operands for label in labels}
    if len(set(result)) != len(result) or not set(result) <= known:
        raise n.refuse(f"the result of the equation '{equation}' is not legal", reference=n.broken)
    return operands, result


def _labels(n: SourceNode, term: str, rank: int) -> tuple[str, ...]:
    before, ellipsis, after = term.partition(ELLIPSIS)
    count = rank - len(before) - len(after)
    if count < 0 or (count and not ellipsis):
        raise n.refuse(f"the term '{term}' does not fit an operand of rank {rank}", reference=n.broken)
    return (*before, *(f".{i}" for i in reversed(range(count))), *after)


def diagonal(b: Builder, n: SourceNode, term: Term) -> Term:
    """The elements whose indices agree on every axis of a repeated label: a gather from the two axes made one."""
    repeated = next((label for label, count in Counter(term.labels).items() if count > 1), None)
    if repeated is None:
        return term
    first = term.labels.index(repeated)
    second = term.labels.index(repeated, first + 1)
    size = term.size(repeated)
    if not isinstance(size, int):
        raise n.refuse(f"the size of the diagonal over '{repeated}' must be known")
    limited(n, size)
    rest = [i for i in range(len(term.labels)) if i not in (first, second)]
    moved = permuted(b, term.value, [*rest, first, second])
    flat = reshaped(b, moved, [*(part(moved, i) for i in range(len(rest))), size * size])
    value = b.add(GatherV2(len(rest)), flat, b.ints(np.arange(size) * (size + 1)))
    return diagonal(b, n, Term(value, (*(term.labels[i] for i in rest), repeated)))


def summed(b: Builder, term: Term, needed: set[str]) -> Term:
    """The sum over the labels that nobody needs."""
    gone = [i for i, label in enumerate(term.labels) if label not in needed]
    if not gone:
        return term
    return Term(reduced(b, "SUM", term.value, *gone, keep=False), tuple(x for x in term.labels if x in needed))


def without_ones(b: Builder, term: Term, other: Term) -> Term:
    """Axes of size 1 that broadcast against a larger one of the other operand, dropped."""
    gone = [i for i, x in enumerate(term.labels) if x in other.labels and term.size(x) == 1 and other.size(x) != 1]
    return Term(squeezed(b, term.value, *gone), tuple(x for i, x in enumerate(term.labels) if i not in gone))


def contract(b: Builder, x: Term, y: Term, needed: Sequence[str]) -> Term:
    """The product of two operands, summed over the labels that are not needed."""
    x, y = without_ones(b, x, y), without_ones(b, y, x)
    x, y = summed(b, x, {*needed, *y.labels}), summed(b, y, {*needed, *x.labels})
    shared = [label for label in x.labels if label in y.labels]
    batch = [label for label in shared if label in needed]
    inner = [label for label in shared if label not in needed]
    if not inner or x.value.dtype != F32:
        return summed(b, _multiplied(b, x, y), set(needed))
    return _matrix_product(b, x, y, batch, inner)


def _multiplied(b: Builder, x: Term, y: Term) -> Term:
    """Element by element, each operand with axes of size 1 for the labels that it does not have."""
    labels = (*x.labels, *(label for label in y.labels if label not in x.labels))
    return Term(calc(b, "MUL", _spread(b, x, labels), _spread(b, y, labels)), labels)


def _spread(b: Builder, term: Term, labels: Sequence[str]) -> Value:
    order = [term.labels.index(label) for label in labels if label in term.labels]
    missing = [i for i, label in enumerate(labels) if label not in term.labels]
    return unsqueezed(b, permuted(b, term.value, order), *missing)


def _matrix_product(b: Builder, x: Term, y: Term, batch: list[str], inner: list[str]) -> Term:
    rows = [label for label in x.labels if label not in (*batch, *inner)]
    columns = [label for label in y.labels if label not in (*batch, *inner)]
    left, swap_left = _matrix(b, x, batch, rows, inner)
    right, swap_right = _matrix(b, y, batch, inner, columns)
    product = b.add(MatMul(swap_left, swap_right), left, right)
    sizes = [*(x.size(i) for i in batch), *(x.size(i) for i in rows), *(y.size(i) for i in columns)]
    if len(rows) == 1 and len(columns) == 1:
        return Term(product, (*batch, *rows, *columns))
    return Term(reshaped(b, product, sizes), (*batch, *rows, *columns))


def _matrix(b: Builder, term: Term, batch: list[str], first: list[str], second: list[str]) -> tuple[Value, bool]:
    """[batch..., first, second] or, when the axes lie that way already, [batch..., second, first] and True."""
    swapped = term.labels == (*batch, *second, *first) and bool(first) and bool(second)
    groups = (second, first) if swapped else (first, second)
    moved = permuted(b, term.value, [term.labels.index(i) for i in (*batch, *groups[0], *groups[1])])
    if len(first) == 1 and len(second) == 1:
        return moved, swapped
    sizes = [*(term.size(i) for i in batch), *(size_product(b, [term.size(i) for i in group]) for group in groups)]
    return reshaped(b, moved, sizes), swapped


def einsum(b: Builder, n: SourceNode, equation: str, values: Sequence[Value]) -> Value:
    """Any number of operands; integers are multiplied out and summed."""
    ranks = [value.rank for value in values if value.rank is not None]
    if len(ranks) != len(values):
        raise n.refuse("Einsum needs operands of known rank")
    operands, result = parse(n, equation, ranks)
    terms = [diagonal(b, n, Term(v, labels)) for v, labels in zip(values, operands, strict=True)]
    total = terms[0]
    for i, term in enumerate(terms[1:], 1):
        later = [label for t in terms[i + 1 :] for label in t.labels]
        total = contract(b, total, term, [*result, *later])
    total = summed(b, total, set(result))
    return permuted(b, total.value, [total.labels.index(label) for label in result])
