"""Weights in the form that a kernel reads."""

from __future__ import annotations

import numpy as np

from mnnconvert.ir import Value
from mnnconvert.runtime_ref.cpu.lower import Lowering
from mnnconvert.runtime_ref.lower import Sizes, Tensor
from mnnconvert.runtime_ref.memory import aligned


def packed_by(ctx: Lowering, kernel: str, w: Value, shape: Sizes, **params: int) -> Tensor:
    """Weights `w` packed by a kernel into float32 of a shape: once where they are constant, else in each run."""
    tensor = w.tensor
    if tensor is None:
        packed = ctx.tensor(shape)
        ctx.call(kernel, w=ctx.read(w), packed=packed, **params)
        return packed

    def make() -> np.ndarray:
        array = aligned(shape, np.float32)
        ctx.once(kernel, w=np.ascontiguousarray(tensor.numpy(), np.float32), packed=array, **params)
        return array

    return ctx.packed(w, (kernel, *params.values()), make)
