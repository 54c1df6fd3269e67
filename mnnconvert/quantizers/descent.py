"""Descent on the loss of a coded layer, sum over rows of (w - t) H (w - t)^T: on its grids, and on its codes.

Rows do not depend on each other. Matrices are transposed here, [columns, rows]: one column of the layer is contiguous.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mnnconvert.ir.coded import CodedWeights
from mnnconvert.quantizers.blocks import Form

Doubles = NDArray[np.float64]

PANEL = 32  # columns
SYSTEMS_ELEMENTS = 1 << 22  # of the systems that are solved together
RIDGE = 1e-9  # relative: blocks whose codes are all equal make the system singular


@dataclass
class Lattice:
    """Coded rows in float64: value = code x scale + origin. codes [columns, rows], scale and origin [blocks, rows].

    The numbers are those that will be stored: `minimum` = origin + lowest x scale, float32 or float16.
    """

    codes: Doubles
    scale: Doubles
    origin: Doubles
    form: Form

    @classmethod
    def of(cls, coded: CodedWeights, form: Form, rows: slice = slice(None)) -> Lattice:
        """Rows of coded weights."""
        scale = coded.scale[rows].T.astype(np.float64)
        origin = np.zeros_like(scale) if coded.minimum is None else coded.minimum[rows].T - coded.lowest * scale
        return cls(np.ascontiguousarray(coded.codes[rows].T, np.float64), scale, origin, form)

    def coded(self) -> CodedWeights:
        """The rows as they are stored."""
        codes = np.ascontiguousarray(self.codes.T).astype(np.int8)
        minimum = None if self.form.symmetric else self._minimum().T.astype(np.float32, order="C")
        scale = self.scale.T.astype(np.float32, order="C")
        return CodedWeights(codes, scale, minimum, self.form.bits, self.form.half)

    def values(self) -> Doubles:
        """The decoded rows [columns, rows]."""
        shape = (len(self.scale), self.form.block, -1)
        values = self.codes.reshape(shape) * self.scale[:, None] + self.origin[:, None]
        return values.reshape(self.codes.shape)

    def nearest(self, column: int, wanted: Doubles) -> tuple[Doubles, Doubles]:
        """Codes of the points of a column's grids that are nearest to `wanted` [rows]; and where `wanted` lies."""
        b = column // self.form.block
        scale = self.scale[b]
        at = np.divide(wanted - self.origin[b], scale, out=np.zeros_like(scale), where=scale != 0)
        return np.clip(np.rint(at), self.form.lowest, self.form.highest), at

    def point(self, column: int, codes: Doubles) -> Doubles:
        """The values of codes [rows] in a column."""
        b = column // self.form.block
        return codes * self.scale[b] + self.origin[b]

    def _minimum(self) -> Doubles:
        return self.origin + self.form.lowest * self.scale

    def moved(self, scale: Doubles, origin: Doubles) -> Lattice:
        """The same codes on other grids, rounded as they are stored."""
        stored = np.float16 if self.form.half else np.float32
        with np.errstate(over="ignore"):
            rounded = scale.astype(stored).astype(np.float64)
            if self.form.symmetric:
                return Lattice(self.codes, rounded, self.origin, self.form)
            minimum = (origin + self.form.lowest * scale).astype(stored).astype(np.float64)
        return Lattice(self.codes, rounded, minimum - self.form.lowest * rounded, self.form)

    def copy(self) -> Lattice:
        return Lattice(self.codes.copy(), self.scale.copy(), self.origin.copy(), self.form)

    def take(self, other: Lattice, rows: NDArray[np.bool_]) -> None:
        """Copy some rows of another."""
        for mine, theirs in ((self.codes, other.codes), (self.scale, other.scale), (self.origin, other.origin)):
            mine[:, rows] = theirs[:, rows]


def losses(difference: Doubles, hessian: Doubles) -> Doubles:
    """d H d^T of every column d of `difference` [columns, rows]."""
    return np.einsum("ij,ij->j", difference, hessian @ difference)


def refit(lattice: Lattice, target: Doubles, hessian: Doubles) -> Doubles:
    """Move all grids of every row to where, with the codes as they are, the loss is least; returns the losses [rows].

    The values of a row are A p, p its scales and origins, A [columns, 2 blocks] its codes and ones. With the residual
    r = t - A p the step solves (A^T H A) dp = A^T H r, in float64. It is taken, per row, when the loss with the stored,
    rounded numbers is not larger than before.
    """
    residual = target - lattice.values()
    gradient = hessian @ residual
    before = np.einsum("ij,ij->j", residual, gradient)
    scale, origin = lattice.scale.copy(), lattice.origin.copy()
    unknowns = len(scale) * (1 if lattice.form.symmetric else 2)
    step = max(1, SYSTEMS_ELEMENTS // unknowns**2)
    ones = _block_sums(hessian.reshape(len(hessian), len(scale), -1).sum(axis=2), len(scale))
    for start in range(0, target.shape[1], step):
        part = slice(start, start + step)
        change = _solve(lattice.codes[:, part], gradient[:, part], hessian, ones, lattice.form)
        scale[:, part] += change[:, : len(scale)].T
        if not lattice.form.symmetric:
            origin[:, part] += change[:, len(scale) :].T
    moved = lattice.moved(scale, origin)
    after = losses(target - moved.values(), hessian)
    legal = (moved.scale != 0).all(axis=0) if lattice.form.symmetric else (moved.scale > 0).all(axis=0)
    better = (after <= before) & legal  # a loss that is not finite is not better
    lattice.take(moved, better)
    return np.where(better, after, before)


def _block_sums(values: Doubles, blocks: int) -> Doubles:
    """Sums over the columns of every block: [columns, n] -> [blocks, n]."""
    return values.reshape(blocks, -1, values.shape[1]).sum(axis=1)


def _solve(codes: Doubles, gradient: Doubles, hessian: Doubles, ones: Doubles, form: Form) -> Doubles:
    """The steps dp [rows, unknowns] of `refit`; `gradient` is H r, `ones` [blocks, blocks] the sums of H by blocks."""
    rows, blocks = codes.shape[1], len(ones)
    unknowns = blocks if form.symmetric else 2 * blocks
    system = np.empty((rows, unknowns, unknowns))
    for b in range(blocks):
        own = slice(b * form.block, (b + 1) * form.block)
        product = hessian[:, own] @ codes[own]  # H times the column of A with the codes of block b
        system[:, :blocks, b] = _block_sums(product * codes, blocks).T
        if not form.symmetric:
            mixed = _block_sums(product, blocks).T
            system[:, blocks:, b] = mixed
            system[:, b, blocks:] = mixed
    right = [_block_sums(gradient * codes, blocks)]
    if not form.symmetric:
        system[:, blocks:, blocks:] = ones
        right.append(_block_sums(gradient, blocks))
    diagonal = np.einsum("rii->ri", system)
    diagonal += RIDGE * diagonal + np.finfo(np.float64).tiny
    return np.asarray(np.linalg.solve(system, np.concatenate(right).T[:, :, None])[:, :, 0], np.float64)


def sweep(lattice: Lattice, target: Doubles, hessian: Doubles) -> Doubles:
    """Give every code, column after column, the value of least loss while all others stay; returns the losses [rows].

    Coordinate descent (Behdin et al., "QuantEase", 2023): with the residual r = t - w^ and g = H r, column j is best at
    the nearest point to w^_j + g_j / H_jj. No step raises the loss. g is kept up to date within a panel of columns; the
    next panel gets the changes of all before it in one product.
    """
    residual = target - lattice.values()
    gradient = hessian @ residual
    loss = np.einsum("ij,ij->j", residual, gradient)
    change = np.zeros_like(target)
    for start in range(0, len(target), PANEL):
        panel = slice(start, start + PANEL)
        within = hessian[panel, panel]
        inside = gradient[panel] - hessian[panel, :start] @ change[:start]
        for j in range(len(inside)):
            column = start + j
            old = lattice.point(column, lattice.codes[column])
            codes, _ = lattice.nearest(column, old + inside[j] / within[j, j])
            delta = lattice.point(column, codes) - old
            if delta.any():
                change[column], lattice.codes[column] = delta, codes
                loss += delta * (delta * within[j, j] - 2 * inside[j])
                inside[j + 1 :] -= within[j + 1 :, j, None] * delta
    return loss
