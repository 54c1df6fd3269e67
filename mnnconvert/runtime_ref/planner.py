"""Where tensors lie in one arena: a pure function of their sizes and lifetimes.

Greedy by size: the largest buffer is placed first, each at the lowest offset where it meets no buffer that lives at the
same time. The same rule is known from TensorFlow Lite's memory planner (Pisarchyk and Lee 2020, "Efficient memory
management for deep neural net inference", section 4.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 64  # bytes: a cache line, and the widest vector


@dataclass(frozen=True)
class Lifetime:
    """A buffer of `nbytes` that is in use from step `first` to step `last`, both included.

    `over` is the index of a buffer that it may overwrite in place: one whose last step is this one's first.
    """

    nbytes: int
    first: int
    last: int
    over: int | None = None


@dataclass(frozen=True)
class Arena:
    """Offsets in bytes, one per buffer and all multiples of `ALIGNMENT`, and the size of the whole."""

    offsets: tuple[int, ...]
    nbytes: int


def plan(lifetimes: Sequence[Lifetime]) -> Arena:
    """Place all buffers; two that live at the same time never overlap, but for those that are computed in place."""
    groups = _in_place_groups(lifetimes)
    spans = [_span([lifetimes[i] for i in group]) for group in groups]
    order = sorted(range(len(groups)), key=lambda g: (-spans[g].nbytes, spans[g].first, g))
    placed: list[tuple[int, Lifetime]] = []
    offsets = [0] * len(lifetimes)
    for g in order:
        at = _lowest_gap(spans[g], placed)
        placed.append((at, spans[g]))
        for i in groups[g]:
            offsets[i] = at
    return Arena(tuple(offsets), max((at + _rounded(span.nbytes) for at, span in placed), default=0))


def lower_bound(lifetimes: Sequence[Lifetime]) -> int:
    """Bytes that no plan without sharing in place can go below: the largest sum of buffers that live at one step."""
    changes: dict[int, int] = {}
    for each in lifetimes:
        size = _rounded(each.nbytes)
        changes[each.first] = changes.get(each.first, 0) + size
        changes[each.last + 1] = changes.get(each.last + 1, 0) - size
    most = now = 0
    for step in sorted(changes):
        now += changes[step]
        most = max(most, now)
    return most


def _in_place_groups(lifetimes: Sequence[Lifetime]) -> list[list[int]]:
    """Buffers that share one place: each overwrites the one before it, which nobody reads any more."""
    group: dict[int, list[int]] = {}
    for i, each in enumerate(lifetimes):
        before = group.get(each.over) if each.over is not None else None
        fits = before is not None and lifetimes[before[-1]].last == each.first and each.over == before[-1]
        if before is not None and fits and lifetimes[each.over or 0].nbytes == each.nbytes:
            before.append(i)
            group[i] = before
        else:
            group[i] = [i]
    return list({id(g): g for g in group.values()}.values())


def _span(group: Sequence[Lifetime]) -> Lifetime:
    return Lifetime(max(g.nbytes for g in group), min(g.first for g in group), max(g.last for g in group))


def _lowest_gap(wanted: Lifetime, placed: Sequence[tuple[int, Lifetime]]) -> int:
    size, at = _rounded(wanted.nbytes), 0
    for begin, other in sorted(_conflicts(wanted, placed), key=lambda each: each[0]):
        if begin - at >= size:
            break
        at = max(at, begin + _rounded(other.nbytes))
    return at


def _conflicts(wanted: Lifetime, placed: Sequence[tuple[int, Lifetime]]) -> list[tuple[int, Lifetime]]:
    return [(at, o) for at, o in placed if o.first <= wanted.last and wanted.first <= o.last]


def _rounded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
