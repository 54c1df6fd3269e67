"""Error-compensated rounding of a layer whose inputs are known: GPTQ, refitted grids, descent on the codes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mnnconvert.ir.coded import CodedWeights

Order = Literal["activation", "natural"]


@dataclass(frozen=True)
class Facts:
    """What became of a layer. Losses are relative to tr(W H W^T), the power of the layer's output.

    `rounded`: loss of the same least-squares grid (weighted by diag H) with nearest codes, the start of the work.
    `loss`: loss of the result. `clipped`: share of the codes that the compensation drove beyond the grid.
    `method`: which candidate was the best, "gptq", "descent" (refit and sweeps), "lsq", "hqq" or "rtn".
    """

    rounded: float
    loss: float
    clipped: float
    method: str


def quantize(
    weights: NDArray[np.floating],
    gram: NDArray[np.float64],
    bits: int,
    block: int = 0,
    symmetric: bool = False,
    half_scales: bool = False,
    *,
    correction: NDArray[np.float64] | None = None,
    damping: float = 0.05,
    drift: float = 0.5,
    order: Order = "activation",
    rounds: int = 1,
    sweeps: int = 2,
) -> tuple[CodedWeights, Facts]:
    """Code weights W [rows, columns] so that the layer's output changes least on the inputs seen.

    `gram` H [columns, columns] = X^T X / n of the n inputs X that the layer really sees (of the quantised model);
    `correction` C [columns, columns] = F^T X / n, where F are the same inputs in the float model (None: F = X).
    """
    raise NotImplementedError
