"""The multiple-choice knapsack: one option for each item, the least total cost within a budget of bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

CELLS = 1 << 18  # sizes that are told apart; up to this budget the answer is exact

Option = tuple[int, float]  # bytes, cost


def choose(items: Sequence[Sequence[Option]], budget: int) -> list[int] | None:
    """The option of each item whose costs have the least sum while their bytes stay within `budget`; None: none fit.

    Dynamic programming over sizes (Kellerer, Pferschy and Pisinger, "Knapsack Problems", 2004, section 11.5): with
    f_k(c) the least cost of the first k items in c bytes, f_k(c) = min over options (b, e) of f_{k-1}(c - b) + e.
    The smallest option of each item is taken off the budget first. What is left is counted in units of at most
    left / 262144 bytes, sizes rounded up: exact for budgets up to 256 KiB above the smallest choice, and beyond never
    over the budget. Of equal costs the smaller size is taken. O(cells * options) time, a byte per cell and item.
    """
    smallest = [min(bytes_ for bytes_, _ in options) for options in items]
    left = budget - sum(smallest)
    if left < 0:
        return None
    unit = max(1, -(-left // CELLS))
    cells = left // unit + 1
    best = np.zeros(cells)
    taken = np.zeros((len(items), cells), np.int16)
    sizes = [[-(-(b - low) // unit) for b, _ in options] for options, low in zip(items, smallest, strict=True)]
    for k, options in enumerate(items):
        costs = np.full(cells, np.inf)
        for i in sorted(range(len(options)), key=lambda i: sizes[k][i]):
            size = sizes[k][i]
            if size >= cells:
                break
            sums = best[: cells - size] + options[i][1]
            better = sums < costs[size:]
            costs[size:][better] = sums[better]
            taken[k, size:][better] = i
        best = costs
    cell = int(np.argmin(best))  # the first, hence the smallest, of equal costs
    answer = [0] * len(items)
    for k in reversed(range(len(items))):
        answer[k] = int(taken[k, cell])
        cell -= sizes[k][answer[k]]
    return answer


def useful(options: Sequence[Option]) -> list[int]:
    """Which options no other one beats in bytes and cost, by growing size."""
    kept: list[int] = []
    for i in sorted(range(len(options)), key=lambda i: options[i]):
        if not kept or options[i][1] < options[kept[-1]][1]:
            kept.append(i)
    return kept
