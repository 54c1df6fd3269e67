"""Error-compensated rounding of a layer whose inputs are known: GPTQ, then better grids and codes by descent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mnnconvert.errors import ConversionError
from mnnconvert.ir.coded import CodedWeights
from mnnconvert.quantizers import descent, hqq, lsq, rtn
from mnnconvert.quantizers.blocks import Form, whole
from mnnconvert.quantizers.descent import Doubles, Lattice

Order = Literal["activation", "natural"]

METHODS = ("lsq", "gptq", "descent", "plain")
DEAD = 1e-9  # of the mean power of the inputs: what an input counts that was never seen
PANEL = 32  # columns that are rounded before the rest hears of their errors; the sums are the same for any
ROWS_AT_ONCE_ELEMENTS = 1 << 22


@dataclass(frozen=True)
class Facts:
    """What became of a layer. Losses are relative to tr(W H W^T), the power of the layer's output.

    `rounded`: loss of the same least-squares grids with nearest codes, where the work started; `loss`: that of the
    result, both against the target W' of the rounding. `clipped`: share of the codes that GPTQ wanted beyond the ends
    of their grid, by more than half a step. `rows`: how many rows are the work of each method: "lsq" (nearest codes),
    "gptq", "descent" (after refit and sweeps), "hqq" or "rtn".
    """

    rounded: float
    loss: float
    clipped: float
    rows: dict[str, int]


def quantize(
    weights: NDArray[np.floating],
    gram: Doubles,
    bits: int,
    block: int = 0,
    symmetric: bool = False,
    half_scales: bool = False,
    *,
    correction: Doubles | None = None,
    damping: float = 0.05,
    drift: float = 0.5,
    order: Order = "activation",
    rounds: int = 2,
    sweeps: int = 2,
) -> tuple[CodedWeights, Facts]:
    """Code weights W [rows, columns] so that the layer's output changes least on the inputs seen.

    `gram` H [columns, columns] = X^T X / n of the n inputs X that the layer really sees (of the quantized model);
    `correction` C [columns, columns] = F^T X / n, where F are the same inputs in the float model (None: F = X).
    Columns have the order of the weights' rows: channels, for convolutions channels x kernel area.

    1. Damping: H_d = H + `damping` mean(diag H) I, C_d likewise.
    2. Drift: the output W F^T of the float model is the aim, which the weights W C_d H_d^-1 come nearest to on X. The
       target is W' = W + `drift` (W C_d H_d^-1 - W). All the way (1) overfits; without C nothing happens.
    3. Grids: `lsq.quantize` of W' with importance diag H, rounded as they are stored. They stay where the order goes.
       (Grids 3 % wider, for codes that the compensation drives apart, or narrower lose 3 % on the layers of MiniLM.)
    4. Codes: Frantar et al., "GPTQ", 2023, in the form of Chen et al., "The Geometry of LLM Quantization", 2025: with
       H_d = V V^T, V upper triangular, and errors e_i = w_i - w^_i, column after column becomes the nearest point to
       w_j + sum_{i<j} e_i V_ij / V_jj. Columns are taken by falling diag H ("activation") or as they lie ("natural").
    5. `rounds` times: `descent.refit` of all grids of a row together, then `sweeps` x `descent.sweep` over its codes.
    6. Every row keeps what has the least damped loss of 3, 4 and 5, unless HQQ (symmetric: round to nearest) on W has
       less loss against the float model's output: so no row, and no layer, is worse there than with `hqq`.

    Columns that are always 0 are rounded to nearest and have no say in the grids. With fewer inputs than columns H is
    singular and damping decides what the inputs do not: below a quarter of the columns, take `lsq.quantize` with
    importance diag H instead. Beside the weights it needs about five matrices of the size of H.
    Raises as `lsq.quantize`, and ConversionError `bad-gram` for matrices that do not fit or are not finite.
    """
    rows, columns = weights.shape
    form = Form(bits, whole(block, columns), symmetric, half_scales, full=symmetric)
    gram = _checked(gram, "gram", columns)
    given = weights.astype(np.float32)
    ridge = damping * float(np.diagonal(gram).mean())
    hessian = _damped(gram, ridge)
    target, pull = _aim(given, gram, hessian, correction, drift)
    grids = lsq.quantize(target, bits, block, symmetric, half_scales, np.diagonal(gram).clip(min=0))
    plain = _plain(given, form)
    layer = _Layer(gram, hessian, ridge, _Compensation.of(hessian, order), rounds, sweeps)
    step = max(1, ROWS_AT_ONCE_ELEMENTS // columns)
    parts = []
    for first in range(0, rows, step):
        part = slice(first, first + step)
        candidates = Lattice.of(grids, form, part), Lattice.of(plain, form, part)
        parts.append(layer.solve(*candidates, target[part].T.astype(np.float64), pull[part].T))
    return _joined(parts), _facts(parts, given, gram)


def _checked(matrix: Doubles, name: str, columns: int) -> Doubles:
    matrix = np.asarray(matrix, np.float64)
    if matrix.shape != (columns, columns) or not np.isfinite(matrix).all():
        raise ConversionError.of(
            "bad-gram",
            f"the {name} of a layer with {columns} columns must be {columns} x {columns} finite numbers",
            hint="look for an overflow in the activations, and collect them for the layer's own input",
            shape=str(matrix.shape),
        )
    return matrix


def _damped(gram: Doubles, ridge: float) -> Doubles:
    """H_d. An input that is always 0 hardly counts, whatever its weights are, but H_d stays positive definite."""
    hessian = gram.copy()
    diagonal = np.einsum("ii->i", hessian)
    dead = diagonal <= 0
    diagonal += ridge
    diagonal[dead] = DEAD * float(diagonal.mean()) or 1
    return hessian


def _aim(
    weights: NDArray[np.float32], gram: Doubles, hessian: Doubles, correction: Doubles | None, drift: float
) -> tuple[NDArray[np.float32], Doubles]:
    """The target W', and G = (W' - W) H + W (H - C), both [rows, columns].

    The loss of W^ against the float model's output is (W^ - W') H (W^ - W')^T + 2 (W^ - W') G^T, up to a constant.
    """
    if correction is None:
        return weights, np.broadcast_to(np.float64(0), weights.shape)
    pull = weights @ (gram - _checked(correction, "correction", len(gram)))
    target = (weights - drift * np.linalg.solve(hessian, pull.T).T).astype(np.float32)
    return target, pull + (target.astype(np.float64) - weights) @ gram


def _plain(weights: NDArray[np.float32], form: Form) -> CodedWeights:
    """The coding without data that no row may be worse than."""
    if form.symmetric:
        return rtn.quantize(weights, form.bits, form.block, True, form.half)
    return hqq.quantize(weights, form.bits, form.block, half_scales=form.half)


@dataclass(frozen=True)
class _Compensation:
    """Rounding of columns in an order [columns], each with the errors of those before: H_d = V V^T in this order."""

    order: NDArray[np.intp]
    factor: Doubles

    @classmethod
    def of(cls, hessian: Doubles, order: Order) -> _Compensation:
        falling = np.argsort(-np.diagonal(hessian), kind="stable")
        columns = falling if order == "activation" else np.arange(len(hessian))
        backwards = columns[::-1]  # the lower factor of the reversed matrix, reversed, is the upper one
        try:
            lower = np.linalg.cholesky(hessian[np.ix_(backwards, backwards)])
        except np.linalg.LinAlgError:
            raise ConversionError.of(
                "bad-gram", "the gram matrix of a layer is not positive definite", hint="raise the damping"
            ) from None
        return cls(columns, np.ascontiguousarray(lower[::-1, ::-1]))

    def round(self, lattice: Lattice, target: Doubles) -> tuple[Doubles, int]:
        """Set the codes of a lattice; returns the damped losses [rows] and how many codes were clipped."""
        error = np.empty_like(target)
        loss, clipped = np.zeros(target.shape[1]), 0
        for start in range(0, len(target), PANEL):
            panel = slice(start, start + PANEL)
            factor = self.factor[panel, panel]
            carried = self.factor[:start, panel].T @ error[:start]
            for j, column in enumerate(self.order[panel]):
                wanted = target[column] + carried[j] / factor[j, j]
                codes, at = lattice.nearest(column, wanted)
                clipped += int(np.count_nonzero(np.abs(at - codes) > 0.5))
                lattice.codes[column] = codes
                error[start + j] = target[column] - lattice.point(column, codes)
                carried[j + 1 :] += factor[j, j + 1 :, None] * error[start + j]
                loss += (carried[j] + factor[j, j] * error[start + j]) ** 2
        return loss, clipped


@dataclass(frozen=True)
class _Part:
    """Some rows, done: their coding, the method of each, sums of the losses, codes that were clipped."""

    lattice: Lattice
    method: NDArray[np.int8]
    rounded: float
    loss: float
    clipped: int


@dataclass(frozen=True)
class _Layer:
    """What the rows of a layer have in common."""

    gram: Doubles
    hessian: Doubles
    ridge: float
    compensation: _Compensation
    rounds: int
    sweeps: int

    def solve(self, lattice: Lattice, plain: Lattice, target: Doubles, pull: Doubles) -> _Part:
        """The best coding of rows: target and pull [columns, rows] as `_aim` has them."""
        best = lattice.copy()
        least = descent.losses(target - lattice.values(), self.hessian)
        rounded = self._undamped(least, target - lattice.values())
        method = np.zeros(target.shape[1], np.int8)

        def offer(loss: Doubles, name: str) -> None:
            better = loss < least
            best.take(lattice, better)
            least[better], method[better] = loss[better], METHODS.index(name)

        loss, clipped = self.compensation.round(lattice, target)
        offer(loss, "gptq")
        for i in range(max(self.rounds, 1)):
            if i < self.rounds:
                loss = descent.refit(lattice, target, self.hessian)
            for _ in range(self.sweeps):
                loss = descent.sweep(lattice, target, self.hessian)
        offer(loss, "descent")

        residual = target - best.values()
        final = self._undamped(least, residual)
        other = target - plain.values()
        others = descent.losses(other, self.gram)
        better = others - final < 2 * np.einsum("ij,ij->j", other - residual, pull)
        best.take(plain, better)
        method[better] = METHODS.index("plain")
        return _Part(best, method, rounded.sum(), np.where(better, others, final).sum(), clipped)

    def _undamped(self, loss: Doubles, residual: Doubles) -> Doubles:
        """The loss with H instead of H_d."""
        extra = np.diagonal(self.hessian) - np.diagonal(self.gram)
        return np.maximum(loss - extra @ residual**2, 0)


def _joined(parts: list[_Part]) -> CodedWeights:
    coded = [part.lattice.coded() for part in parts]
    minima = [c.minimum for c in coded if c.minimum is not None]
    codes, scale = np.concatenate([c.codes for c in coded]), np.concatenate([c.scale for c in coded])
    return CodedWeights(codes, scale, np.concatenate(minima) if minima else None, coded[0].bits, coded[0].half_scales)


def _facts(parts: list[_Part], weights: NDArray[np.float32], gram: Doubles) -> Facts:
    power = float(np.vdot(weights @ gram, weights)) or 1.0
    count = np.bincount(np.concatenate([part.method for part in parts]), minlength=len(METHODS)).tolist()
    plain = "rtn" if parts[0].lattice.form.symmetric else "hqq"
    rows = {name.replace("plain", plain): n for name, n in zip(METHODS, count, strict=True) if n}
    rounded, loss = (sum(getattr(part, name) for part in parts) / power for name in ("rounded", "loss"))
    return Facts(float(rounded), float(loss), sum(p.clipped for p in parts) / weights.size, rows)
