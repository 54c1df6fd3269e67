"""Chains as programs for the kernel `chain`."""

from __future__ import annotations

from functools import cache

import numpy as np

from mnnconvert.runtime_ref.chain import MOST_OPERANDS, MOST_RESULTS, Chain, Register
from mnnconvert.runtime_ref.cpu.library import Library

MOST_AXES, MOST_REGISTERS = 6, 64  # as in elementwise.cpp
KINDS = {np.dtype("float32"): 0, np.dtype("int32"): 0, np.dtype("uint8"): 1, np.dtype("int8"): 2}


def encode(chain: Chain, library: Library) -> tuple[np.ndarray, np.ndarray]:
    """The arguments `code` and `constants` of the kernel; ValueError when it cannot do that."""
    views = [_encoded(view) for view in chain.views]
    constants = [array.view(np.float32) for _, array in chain.constants.values()]
    places, temporaries = _places(chain)
    if (
        max(places.values()) >= MOST_REGISTERS
        or len(chain.operands) > MOST_OPERANDS
        or len(chain.results) > MOST_RESULTS
    ):
        raise ValueError("a chain with too many registers")
    numbers = function_numbers(library)
    unknown = {each.function for each in chain.instructions} - numbers.keys()
    if unknown:
        raise ValueError(f"no function {', '.join(sorted(unknown))}")
    sizes = [len(chain.operands), len(constants), temporaries, len(chain.results), len(chain.instructions)]
    code = [*sizes, *(n for view in views for n in view), *(KINDS[t] for t in chain.types)]
    for each in chain.instructions:
        x = [places[r] for r in each.x]
        code += [numbers[each.function], places[each.y], *x, *[0] * (3 - len(x))]
    return np.array(code, np.int64), np.concatenate([*constants, np.zeros(1, np.float32)])


def _encoded(view: np.ndarray) -> list[int]:
    axes = _merged_axes(view)
    if len(axes) > MOST_AXES:
        raise ValueError(f"an operand with {len(axes)} axes")
    axes = [(1, 0)] * (MOST_AXES - len(axes)) + axes
    return [KINDS[view.dtype], *(size for size, _ in axes), *(stride for _, stride in axes)]


def _places(chain: Chain) -> tuple[dict[Register, int], int]:
    """The number of each register, and how many are temporary: those are used again after the last reader."""
    fixed = [*chain.operands, *(register for register, _ in chain.constants.values())]
    places = {register: i for i, register in enumerate(fixed)}
    last = {register: i for i, each in enumerate(chain.instructions) for register in each.x}
    free: list[int] = []
    used = 0
    for i, each in enumerate(chain.instructions):
        free += [places[r] for r in dict.fromkeys(each.x) if last[r] == i and r not in fixed and r not in chain.results]
        if each.y in chain.results:
            continue
        if not free:
            free.append(len(fixed) + used)
            used += 1
        places[each.y] = free.pop()
    places |= {register: len(fixed) + used + i for i, register in enumerate(chain.results)}
    return places, used


def _merged_axes(wide: np.ndarray) -> list[tuple[int, int]]:
    """(size, stride in elements) of the axes of a view, where they cannot be walked as one."""
    axes: list[tuple[int, int]] = []
    for size, step in zip(wide.shape, wide.strides, strict=True):
        stride = step // wide.itemsize
        if size == 1:
            continue
        if axes and axes[-1][1] == stride * size:
            axes[-1] = (axes[-1][0] * size, stride)
        else:
            axes.append((size, stride))
    return axes if wide.size else []


@cache
def function_numbers(library: Library) -> dict[str, int]:
    """The functions of the kernel `chain` by name."""
    names = np.zeros(1 << 14, np.uint8)
    library.call("chain_ops", names=names, size=names.size)
    return {name: i for i, name in enumerate(names.tobytes().decode().split())}
