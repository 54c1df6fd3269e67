"""How much of a product an item computes: as many sums as a device has registers for."""

from __future__ import annotations

from collections.abc import Mapping

ROWS: Mapping[int, Mapping[int, tuple[int, ...]]] = {
    16: {4: (6, 4, 2, 1), 3: (8, 4, 2, 1), 2: (12, 8, 4, 2, 1), 1: (16, 8, 4, 2, 1)},
    8: {2: (6, 4, 2, 1), 1: (8, 4, 2, 1)},
    4: {2: (4, 2, 1), 1: (4, 2, 1)},
}
"""Rows that an item may compute, by the lanes of a vector and the vectors of columns."""
COST = {4: 1.0, 3: 1.0, 2: 1.1, 1: 1.5}
"""What a vector costs, by how many of them each number of a row is multiplied with."""


def vectors_of(lanes: int, columns: int) -> int:
    """How many vectors of so many columns make a panel."""
    return min(ROWS[lanes], key=lambda vectors: -(-columns // (vectors * lanes)) * vectors * COST[vectors])


def best_rows(lanes: int, vectors: int, rows: int, start: float) -> list[int]:
    """How many rows an item may compute, first those with which `rows` cost least; a tile costs `start` rows more."""
    return sorted(ROWS[lanes][vectors], key=lambda tile: (-(-rows // tile) * (tile + start), tile))
