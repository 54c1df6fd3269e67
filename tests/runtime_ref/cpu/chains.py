"""Runs chains of element-wise functions in tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from kernels import guard, guarded

from mnnconvert.runtime_ref.chain import MOST_OPERANDS, MOST_RESULTS, Chain, Register
from mnnconvert.runtime_ref.cpu.chain import encode
from mnnconvert.runtime_ref.cpu.library import Library

Build = Callable[..., Sequence[Register]]


def run_chain(
    lib: Library,
    build: Build,
    *arrays: np.ndarray,
    shape: Sequence[int] | None = None,
    dtypes: Sequence[Any] = (np.float32,),
) -> list[np.ndarray]:
    """The results of `build(chain, *operands)`; asserts that one and two threads agree and stay within bounds.

    Views are handed over with their strides; the memory behind them is that of their owner.
    """
    chain = Chain(tuple(np.broadcast_shapes(*(a.shape for a in arrays)) if shape is None else shape))
    registers = build(chain, *(chain.operand(a) for a in arrays))
    for register, dtype in zip(registers, dtypes, strict=True):
        chain.result(register, dtype)
    code, constants = encode(chain, lib)
    operands = {f"x{i}": guarded(a) if a.flags.c_contiguous else a for i, a in enumerate(arrays)}
    runs = []
    for threads in (1, 2):
        results = [guard(chain.shape, dtype) for dtype in dtypes]
        named = {f"y{i}": y for i, (y, _) in enumerate(results)}
        count = int(np.prod(chain.shape))
        lib.call("chain", lib.pool(threads), code=code, constants=constants, count=count, **operands, **named)
        for _, check in results:
            check()
        runs.append([y for y, _ in results])
    for one, two in zip(*runs, strict=True):
        assert one.tobytes() == two.tobytes(), "one and two threads differ"
    assert len(arrays) <= MOST_OPERANDS and len(dtypes) <= MOST_RESULTS
    return runs[0]


def apply(lib: Library, function: str, *arrays: np.ndarray, dtype: Any = np.float32) -> np.ndarray:
    """One function of the kernel `chain`."""
    return run_chain(lib, lambda c, *x: [c.apply(function, *x)], *arrays, dtypes=[dtype])[0]
