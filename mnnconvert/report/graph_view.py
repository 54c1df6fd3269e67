"""Where the boxes of a graph are drawn: ranks from top to bottom, straight lanes, long edges in gutters beside them.

A box takes over the lane of one that it reads, so that chains are straight; an edge that passes other boxes runs in a
gutter to the left of all lanes, one for all readers of a value. Time is linear in boxes and edges, times the lanes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

Edges = Sequence[tuple[int, int]]

SHORTEST_CHAIN = 3  # boxes that are worth one box


@dataclass(frozen=True)
class Box:
    """Numbers of what the box stands for (several for a chain), its rank from above and its lane from the left."""

    members: tuple[int, ...]
    rank: int
    lane: int


@dataclass(frozen=True)
class View:
    """Boxes in the order of their ranks; edges as (from, to, gutter), where -1 is a direct line; how many of each."""

    boxes: tuple[Box, ...]
    edges: tuple[tuple[int, int, int], ...]
    ranks: int
    lanes: int
    gutters: int

    def to_dict(self) -> dict[str, object]:
        """Short names, as pages hold it."""
        return {
            "b": [[box.rank, box.lane, *box.members] for box in self.boxes],
            "e": [list(edge) for edge in self.edges], "r": self.ranks, "l": self.lanes, "g": self.gutters,
        }  # fmt: skip


def view(count: int, edges: Edges, collapsed: bool = False, hidden: Collection[int] = ()) -> View:
    """Lay out `count` items in topological order; edges lead from lower to higher numbers.

    Chains may be collapsed, and `hidden` items are left out with all their edges.
    """
    edges = [(a, b) for a, b in edges if a not in hidden and b not in hidden]
    shown = [i for i in range(count) if i not in hidden]
    groups = [g for g in _chains(count, edges) if g[0] not in hidden] if collapsed else [(i,) for i in shown]
    group_of = {member: number for number, group in enumerate(groups) for member in group}
    outer = sorted({(group_of[a], group_of[b]) for a, b in edges if group_of[a] != group_of[b]})
    return _layout(groups, outer)


def _neighbours(count: int, edges: Edges) -> tuple[list[list[int]], list[list[int]]]:
    before: list[list[int]] = [[] for _ in range(count)]
    after: list[list[int]] = [[] for _ in range(count)]
    for a, b in edges:
        before[b].append(a)
        after[a].append(b)
    return before, after


def _chains(count: int, edges: Edges) -> list[tuple[int, ...]]:
    """Runs of items of which each is the only one to read the one before, and reads nothing else; singles otherwise."""
    before, after = _neighbours(count, sorted(set(edges)))

    def inner(a: int, b: int) -> bool:  # both ends of a chain must have something before or after them
        return after[a] == [b] and before[b] == [a] and bool(before[a]) and bool(after[b])

    groups: list[tuple[int, ...]] = []
    seen: set[int] = set()
    for start in range(count):
        if start in seen:
            continue
        run = [start]
        while len(after[run[-1]]) == 1 and inner(run[-1], after[run[-1]][0]):
            run.append(after[run[-1]][0])
        seen.update(run)
        groups += [tuple(run)] if len(run) >= SHORTEST_CHAIN else [(i,) for i in run]
    return sorted(groups)


def _ranks(before: Sequence[Sequence[int]], after: Sequence[Sequence[int]], order: Sequence[int]) -> list[int]:
    """The longest way from above; what reads nothing stands just above its first reader."""
    ranks = [0] * len(order)
    for i in order:
        ranks[i] = max((ranks[p] + 1 for p in before[i]), default=0)
    for i in order:
        if not before[i] and after[i]:
            ranks[i] = min(ranks[n] for n in after[i]) - 1
    return ranks


def _layout(groups: Sequence[tuple[int, ...]], edges: Edges) -> View:
    before, after = _neighbours(len(groups), edges)
    topological = _topological(before, after)
    ranks = _ranks(before, after, topological)
    order = sorted(topological, key=lambda i: (ranks[i], groups[i]))
    lanes = _Lanes(before, after, ranks)
    for i in order:
        lanes.place(i)
    position = {group: number for number, group in enumerate(order)}
    far = [(a, b) for a, b in edges if ranks[b] > ranks[a] + 1 and lanes.heir.get(a) != b]
    gutters, number = _gutters(far, ranks)
    direct = set(edges) - set(far)
    boxes = tuple(Box(groups[i], ranks[i], lanes.lane[i]) for i in order)
    lines = sorted((position[a], position[b], -1 if (a, b) in direct else gutters[a]) for a, b in edges)
    return View(boxes, tuple(lines), max(ranks, default=-1) + 1, len(lanes.holder), number)


def _topological(before: Sequence[Sequence[int]], after: Sequence[Sequence[int]]) -> list[int]:
    """An order in which everything comes after what it reads; collapsing may have changed that of the numbers."""
    waiting = [len(b) for b in before]
    ready = [i for i, n in enumerate(waiting) if not n]
    for i in ready:  # grows meanwhile
        for reader in after[i]:
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)
    return ready


class _Lanes:
    """Which box holds each lane: one keeps its lane until something takes it over, or all of its readers are placed."""

    def __init__(self, before: Sequence[Sequence[int]], after: Sequence[Sequence[int]], ranks: Sequence[int]):
        self.before, self.ranks = before, ranks
        self.unplaced = [len(a) for a in after]
        self.lane: dict[int, int] = {}
        self.holder: list[int | None] = []
        self.heir: dict[int, int] = {}  # who took over whose lane
        self.ended: list[int] = []  # lanes of boxes that nothing reads, free from the next rank on
        self.rank = -1

    def place(self, box: int) -> None:
        """Give a box its lane; boxes come in the order of their ranks."""
        if self.ranks[box] != self.rank:
            for lane in self.ended:
                self.holder[lane] = None
            self.rank, self.ended = self.ranks[box], []
        held = [p for p in self.before[box] if self.holder[self.lane[p]] == p]
        if held:
            parent = max(held, key=lambda p: (self.ranks[p], -self.lane[p]))
            self.heir[parent] = box
            self.lane[box] = self.lane[parent]
        else:
            self.lane[box] = self._free(self.before[box])
        self.holder[self.lane[box]] = box
        self._settle(box)

    def _free(self, parents: Sequence[int]) -> int:
        """The free lane nearest to those of `parents`, or a new one."""
        near = min((self.lane[p] for p in parents), default=0)
        free = [lane for lane, holder in enumerate(self.holder) if holder is None]
        if free:
            return min(free, key=lambda lane: abs(lane - near))
        self.holder.append(None)
        return len(self.holder) - 1

    def _settle(self, box: int) -> None:
        for parent in self.before[box]:
            self.unplaced[parent] -= 1
            if not self.unplaced[parent] and self.holder[self.lane[parent]] == parent:
                self.holder[self.lane[parent]] = None
        if not self.unplaced[box]:
            self.ended.append(self.lane[box])


def _gutters(far: Edges, ranks: Sequence[int]) -> tuple[dict[int, int], int]:
    """A gutter for each source of long edges, shared by sources that do not overlap, and how many there are."""
    ends: dict[int, int] = {}
    for a, b in far:
        ends[a] = max(ends.get(a, 0), ranks[b])
    taken: list[int] = []  # the rank at which each gutter ends
    gutter: dict[int, int] = {}
    for source in sorted(ends, key=lambda s: (ranks[s], ends[s])):
        fits = (i for i, end in enumerate(taken) if end <= ranks[source])
        number = next(fits, len(taken))
        if number == len(taken):
            taken.append(0)
        taken[number] = ends[source]
        gutter[source] = number
    return gutter, len(taken)
