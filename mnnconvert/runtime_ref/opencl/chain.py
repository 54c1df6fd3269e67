"""Chains as generated kernels.

The text says which functions are called, what operands are, and how they step along the innermost axis; sizes, strides
and constants are arguments. So chains that look alike share one program.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache

from mnnconvert.ir import F16, F32, I8, I32, U8
from mnnconvert.runtime_ref.chain import Chain, Register
from mnnconvert.runtime_ref.opencl.device import source

KERNEL = "chain"
POINTERS = {F32: "real", F16: "real", I32: "int", I8: "char", U8: "uchar"}
INTEGRAL = {"TO_BOOL", "TO_INT", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL", "EQUAL", "NOTEQUAL"}
"""Functions of floats that give integers."""

Axis = tuple[int, tuple[int, ...]]  # size, stride of each operand in elements


@dataclass
class Generated:
    """The text of a kernel, its work-items, and the arguments that are numbers."""

    text: str
    size: tuple[int, int]
    numbers: dict[str, float] = field(default_factory=dict)


def generate(chain: Chain, lanes: int) -> Generated:
    """A kernel `chain` with operands x0, x1 ... and results y0, y1 ...; each item computes `lanes` numbers.

    ValueError for functions that are not there for such operands.
    """
    *outer, (inner, steps) = _merged(chain) or [(1, (0,) * len(chain.views))]
    rows = math.prod(size for size, _ in outer)
    constants = list(chain.constants.values())
    numbers: dict[str, float] = {"n": inner, "rows": rows}
    numbers |= {f"c{i}": array.item() for i, (_, array) in enumerate(constants)}
    for a, (size, strides) in enumerate(outer):
        numbers[f"size{a}"] = size
        numbers |= {f"s{i}_{a}": stride for i, stride in enumerate(strides) if stride}
    numbers |= {f"step{i}": step for i, step in enumerate(steps) if step not in (0, 1)}

    types = {f"c{i}": array.dtype for i, (_, array) in enumerate(constants)}
    parameters = [f"global const {POINTERS[v.dtype]} *x{i}" for i, v in enumerate(chain.views)]
    parameters += [f"global {POINTERS[t]} *y{i}" for i, t in enumerate(chain.types)]
    parameters += [f"{'float' if types.get(name) == F32 else 'int'} {name}" for name in numbers]
    body = [
        "int i = get_global_id(0) * V, row = get_global_id(1), left = n - i;",
        "if (left <= 0 || row >= rows) return;",
        *_places(len(chain.views), outer, steps),
        *_loads(chain, steps),
        *_functions(chain),
        *_stores(chain),
    ]
    lines = "".join(f"    {line}\n" for line in body)
    text = f"{source('functions.cl')}\nkernel void {KERNEL}({', '.join(parameters)})\n{{\n{lines}}}\n"
    return Generated(text, (-(-inner // lanes), rows), numbers)


def _merged(chain: Chain) -> list[Axis]:
    """The axes, outermost first, that no two operands let us walk as one."""
    axes: list[Axis] = []
    for d, size in enumerate(chain.shape):
        strides = tuple(v.strides[d] // v.itemsize for v in chain.views)
        if size == 1:
            continue
        if axes and axes[-1][1] == tuple(s * size for s in strides):
            axes[-1] = (axes[-1][0] * size, strides)
        else:
            axes.append((size, strides))
    return axes


def _places(operands: int, outer: Sequence[Axis], steps: Sequence[int]) -> Iterable[str]:
    """Where each operand is read, from the number of the row."""
    moving = [[a for a, (_, strides) in enumerate(outer) if strides[i]] for i in range(operands)]
    if any(moving):
        yield "int rest = row;"
    for a in reversed(range(len(outer)) if any(moving) else ()):
        yield f"int k{a} = rest % size{a}; rest /= size{a};" if a else "int k0 = rest;"
    for i in range(operands):
        begin = [] if steps[i] == 0 else ["i" if steps[i] == 1 else f"i * step{i}"]
        terms = [*begin, *(f"k{a} * s{i}_{a}" for a in moving[i])]
        yield f"x{i} += {' + '.join(terms) or '0'};"


def _loads(chain: Chain, steps: Sequence[int]) -> Iterable[str]:
    for i, (view, step) in enumerate(zip(chain.views, steps, strict=True)):
        kind = POINTERS[view.dtype]
        vector = "floatV" if kind == "real" else "intV"
        if step == 0:
            yield f"{vector} a{i} = " + (f"LOAD(x{i}, 0);" if kind == "real" else f"x{i}[0];")
        elif step == 1:
            yield f"{vector} a{i} = load_{kind}(x{i}, left);"
        else:
            yield f"{vector} a{i} = spread_{kind}(x{i}, step{i}, left);"
    for i, (_, array) in enumerate(chain.constants.values()):
        yield f"{'floatV' if array.dtype == F32 else 'intV'} b{i} = c{i};"


def _functions(chain: Chain) -> Iterable[str]:
    floats = {r for r, v in zip(chain.operands, chain.views, strict=True) if v.dtype in (F32, F16)}
    floats |= {r for r, a in chain.constants.values() if a.dtype == F32}
    for each in chain.instructions:
        function, integral = each.function.removesuffix(".i"), each.function.endswith(".i")
        if function in ("SELECT", "COPY"):
            integral = each.x[-1] not in floats
        if (not integral and function not in INTEGRAL) or function == "TO_FLOAT":
            floats.add(each.y)
        vector = "floatV" if each.y in floats else "intV"
        called = f"{'i' if integral else 'f'}_{function}"
        if called not in _known():
            raise ValueError(f"no function {called}")
        arguments = ", ".join(_name(chain, r) for r in each.x)
        yield f"{vector} {_name(chain, each.y)} = {called}({arguments});"


@cache
def _known() -> frozenset[str]:
    return frozenset(re.findall(r"\b[if]_[A-Z]\w*", source("functions.cl")))


def _stores(chain: Chain) -> Iterable[str]:
    for i, (register, dtype) in enumerate(zip(chain.results, chain.types, strict=True)):
        yield f"store_{POINTERS[dtype]}({_name(chain, register)}, y{i} + row * n + i, left);"


def _name(chain: Chain, register: Register) -> str:
    if register in chain.operands:
        return f"a{chain.operands.index(register)}"
    constants = [r for r, _ in chain.constants.values()]
    if register in constants:
        return f"b{constants.index(register)}"
    return f"t{next(i for i, each in enumerate(chain.instructions) if each.y is register)}"
