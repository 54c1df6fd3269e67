"""Error-compensated rounding: a plain reading of GPTQ, identities that must hold, and losses that never rise."""

import numpy as np
import pytest
from ways import same

from mnnconvert.errors import ConversionError
from mnnconvert.quantizers import descent, gptq, hqq, lsq, rtn
from mnnconvert.quantizers.blocks import Form
from mnnconvert.quantizers.descent import Lattice

F = np.float32


def layer(seed, rows=24, columns=96, samples=400, dead=0):
    """Weights, and the inputs of the layer [samples, columns]: correlated, some much larger than others."""
    rng = np.random.default_rng(seed)
    weights = (rng.standard_normal((rows, columns)) * 0.05).astype(F)
    mixing = np.eye(columns) + rng.standard_normal((columns, columns)) / np.sqrt(columns)
    x = rng.standard_normal((samples, columns)) @ mixing * rng.lognormal(0, 0.7, columns)
    x[:, rng.choice(columns, dead, replace=False)] = 0
    return weights, x


def gram(x, other=None):
    return x.T @ (x if other is None else other) / len(x)


def loss(coded, weights, h):
    difference = coded.decode().astype(np.float64) - weights
    return float(np.vdot(difference @ h, difference))


def plain_gptq(weights, h, coded, order):
    """Column by column with the inverse of what is left of H, as "Optimal Brain Surgeon" has it: the values."""
    w = weights.astype(np.float64)
    left = list(order)
    lowest = 0 if coded.minimum is not None else -(2 ** (coded.bits - 1))
    for j in order:
        inverse = np.linalg.inv(h[np.ix_(left, left)])
        at = left.index(j)
        scale = coded.scale[:, j // coded.block].astype(np.float64)
        low = 0 if coded.minimum is None else coded.minimum[:, j // coded.block].astype(np.float64)
        point = np.clip(np.rint((w[:, j] - low) / scale), lowest, lowest + 2**coded.bits - 1) * scale + low
        w[:, left] -= np.outer((w[:, j] - point) / inverse[at, at], inverse[at])
        w[:, j] = point
        left.remove(j)
    return w


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("order", ["activation", "natural"])
def test_is_gptq(order, symmetric):
    weights, x = layer(1)
    h = gram(x)
    coded, facts = gptq.quantize(weights, h, 4, 32, symmetric, order=order, rounds=0, sweeps=0)
    damped = h + 0.05 * np.diagonal(h).mean() * np.eye(96)
    columns = np.argsort(-np.diagonal(h), kind="stable") if order == "activation" else np.arange(96)
    wanted = plain_gptq(weights, damped, coded, columns)
    theirs = np.isclose(coded.decode(), wanted, rtol=0, atol=1e-6).all(axis=1)
    plain = lsq.quantize(weights, 4, 32, symmetric, importance=np.diagonal(h)).decode()
    assert (theirs | (coded.decode() == plain).all(axis=1)).all()  # a row may fare better with nearest codes
    assert theirs.sum() == facts.rows["gptq"] >= 22


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("diagonal", [np.ones(96), np.random.default_rng(0).lognormal(0, 1, 96)])
def test_without_correlations_it_is_rounding_to_nearest(diagonal, symmetric):
    weights, _ = layer(2)
    coded, facts = gptq.quantize(weights, np.diag(diagonal), 4, 32, symmetric, rounds=0, sweeps=0)
    plain = lsq.quantize(weights, 4, 32, symmetric, importance=diagonal)
    assert same(coded, plain) and facts.loss == pytest.approx(facts.rounded, rel=1e-12)


def test_panels_do_not_show(monkeypatch):
    weights, x = layer(3)
    one, _ = gptq.quantize(weights, gram(x), 4, 32)
    monkeypatch.setattr(gptq, "PANEL", 7)
    monkeypatch.setattr(descent, "PANEL", 96)
    monkeypatch.setattr(gptq, "ROWS_AT_ONCE_ELEMENTS", 5 * 96)
    monkeypatch.setattr(descent, "SYSTEMS_ELEMENTS", 2 * 36)
    other, _ = gptq.quantize(weights, gram(x), 4, 32)
    assert same(one, other)


def test_the_order_of_the_columns_does_not_matter():
    """Blocks, and columns within blocks, may be permuted: the order of rounding is that of the inputs' power."""
    weights, x = layer(4)
    rng = np.random.default_rng(0)
    new = np.concatenate([b * 32 + rng.permutation(32) for b in rng.permutation(3)])
    for options in ({"rounds": 0, "sweeps": 0}, {}):
        one, _ = gptq.quantize(weights, gram(x), 4, 32, **options)
        other, _ = gptq.quantize(weights[:, new], gram(x[:, new]), 4, 32, **options)
        assert loss(other, weights[:, new], gram(x[:, new])) == pytest.approx(loss(one, weights, gram(x)), rel=0.02)
        if options:  # a sweep takes columns as they lie
            difference = np.abs(one.decode()[:, new] - other.decode())
            assert (difference > 1e-6).mean() < 0.02  # sums have another order: some ties fall differently


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_gains_and_never_loses_to_the_others(bits, symmetric, half):
    weights, x = layer(bits)
    h = gram(x)
    coded, facts = gptq.quantize(weights, h, bits, 32, symmetric, half)
    ours = loss(coded, weights, h)
    others = [lsq.quantize(weights, bits, 32, symmetric, half, np.diagonal(h))]
    others.append(
        rtn.quantize(weights, bits, 32, True, half) if symmetric else hqq.quantize(weights, bits, 32, False, half)
    )
    assert ours < 0.75 * min(loss(other, weights, h) for other in others)
    power = np.vdot(weights.astype(np.float64) @ h, weights)
    assert facts.loss == pytest.approx(ours / power, rel=1e-4)  # decoding rounds
    assert facts.rounded == pytest.approx(loss(others[0], weights, h) / power, rel=1e-4)
    assert 0 <= facts.clipped < 0.2 and sum(facts.rows.values()) == 24
    for row in range(24):
        rows = [np.s_[row : row + 1]] * 2
        d = [(c.decode().astype(np.float64) - weights)[r] for c, r in zip((coded, others[1]), rows, strict=True)]
        assert np.vdot(d[0] @ h, d[0]) <= np.vdot(d[1] @ h, d[1]) * (1 + 1e-9)


def test_compensation_is_worth_its_work():
    """In the mean over layers, each stage has less loss than the one before."""
    totals = np.zeros(4)
    for seed in range(6):
        weights, x = layer(seed)
        h = gram(x)
        for i, options in enumerate(({"rounds": 0, "sweeps": 0}, {"rounds": 0}, {})):
            _, facts = gptq.quantize(weights, h, 3, 32, **options)
            totals[i + 1] += facts.loss
        totals[0] += facts.rounded
    assert (np.diff(totals) < 0).all() and totals[1] < 0.7 * totals[0] and totals[3] < 0.95 * totals[1]


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("bits", [2, 4])
def test_descent_never_rises(bits, half, symmetric):
    weights, x = layer(7)
    h = gram(x) + 0.01 * np.eye(96)
    form = Form(bits, 16, symmetric, half, full=symmetric)
    lattice = Lattice.of(rtn.quantize(weights, bits, 16, symmetric, half), form)
    target = weights.T.astype(np.float64)

    def now():
        return descent.losses(target - lattice.values(), h)

    history = [now()]
    for step in (descent.refit, descent.sweep, descent.sweep, descent.refit, descent.sweep):
        said = step(lattice, target, h)
        np.testing.assert_allclose(said, now(), rtol=1e-9)
        history.append(said)
    history = np.array(history)
    assert (np.diff(history, axis=0) <= 1e-12 * history[0]).all()
    assert history[-1].sum() < 0.6 * history[0].sum()
    stored = lattice.coded()  # what is stored is what was computed with
    np.testing.assert_allclose(stored.decode().T, lattice.values(), rtol=0, atol=1e-6)
    assert stored.codes.min() >= form.lowest and stored.codes.max() <= form.highest


def test_a_refit_is_the_least_squares_solution():
    """Of one row, the parameters are those of a general least-squares solver on the factor of H."""
    weights, x = layer(8, rows=1)
    h = gram(x)
    form = Form(4, 24)
    lattice = Lattice.of(rtn.quantize(weights, 4, 24), form)
    codes = lattice.codes[:, 0]
    blocks = np.repeat(np.eye(4), 24, axis=0)
    design = np.hstack([blocks * codes[:, None], blocks])
    root = np.linalg.cholesky(h).T
    wanted = np.linalg.lstsq(root @ design, root @ weights[0].astype(np.float64), rcond=None)[0]
    descent.refit(lattice, weights.T.astype(np.float64), h)
    np.testing.assert_allclose(np.concatenate([lattice.scale, lattice.origin])[:, 0], wanted, rtol=1e-4, atol=1e-6)


def test_a_sweep_ends_where_no_single_code_can_gain():
    weights, x = layer(9, rows=3, columns=32)
    h = gram(x)
    form = Form(2, 16)
    lattice = Lattice.of(rtn.quantize(weights, 2, 16), form)
    target = weights.T.astype(np.float64)
    for _ in range(50):
        least = descent.sweep(lattice, target, h)
    for column in range(32):
        for code in range(form.lowest, form.highest + 1):
            other = lattice.copy()
            other.codes[column] = code
            assert (descent.losses(target - other.values(), h) >= least * (1 - 1e-9)).all()


def test_a_refit_of_blocks_with_one_code():
    """The system is singular there: scale and origin of the block cannot be told apart."""
    weights = np.full((2, 32), 0.25, F)
    weights[:, 16:] = np.linspace(-1, 1, 16)
    h = gram(layer(10, columns=32)[1])
    lattice = Lattice.of(rtn.quantize(weights + F(0.01), 4, 16), Form(4, 16))
    before = descent.losses(weights.T - lattice.values(), h)
    after = descent.refit(lattice, weights.T.astype(np.float64), h)
    assert np.isfinite(lattice.values()).all() and (after <= before).all()


def test_without_drift_there_is_nothing_to_correct():
    weights, x = layer(11)
    h = gram(x)
    one, facts = gptq.quantize(weights, h, 4, 32)
    for drift in (0.0, 0.5, 1.0):
        other, others = gptq.quantize(weights, h, 4, 32, correction=h.copy(), drift=drift)
        assert same(one, other) and facts == others


def test_a_correction_follows_the_float_model():
    """The inputs of the layer were disturbed: its output is nearer to the float model's when that is known."""
    rng = np.random.default_rng(0)
    weights, x = layer(12, samples=2000)
    seen = 0.9 * x + 0.3 * rng.standard_normal(x.shape) @ np.diag(x.std(axis=0))

    def error(**options):
        coded, _ = gptq.quantize(weights, gram(seen), 4, 32, **options)
        return np.linalg.norm(x @ weights.T - seen @ coded.decode().T)

    full, half, without = (error(correction=gram(x, seen), drift=d) for d in (1.0, 0.5, 0.0))
    assert without == pytest.approx(error(), rel=0.01)
    assert full < half < 0.97 * without


def test_the_target_is_the_least_squares_solution():
    weights, x = layer(13, rows=5, columns=32)
    seen = x + 0.2 * np.random.default_rng(0).standard_normal(x.shape)
    target, pull = gptq._aim(weights, gram(seen), gram(seen), gram(x, seen), 1.0)
    wanted = np.linalg.lstsq(seen, x @ weights.T.astype(np.float64), rcond=None)[0].T
    np.testing.assert_allclose(target, wanted, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(pull, 0, atol=1e-6)  # the loss has its least value there


def test_inputs_that_are_always_zero():
    weights, x = layer(14, dead=20)
    h = gram(x)
    dead = np.diagonal(h) == 0
    weights[:, dead] *= 50
    coded, facts = gptq.quantize(weights, h, 4, 32)
    assert facts.loss < 0.01 and np.isfinite(coded.decode()).all()
    weights[:, dead] = 0
    other, _ = gptq.quantize(weights, h, 4, 32)
    assert loss(coded, weights, h) == pytest.approx(loss(other, weights, h), rel=0.05)
    none, facts = gptq.quantize(weights, np.zeros_like(h), 4, 32)
    assert facts.loss == 0 and np.isfinite(none.decode()).all()


def test_fewer_samples_than_columns():
    """H is singular: damping makes up for it, without any it is refused."""
    weights, x = layer(15, samples=30)
    coded, facts = gptq.quantize(weights, gram(x), 4, 32)
    assert np.isfinite(coded.decode()).all() and facts.loss < facts.rounded
    with pytest.raises(ConversionError, match="bad-gram"):
        gptq.quantize(weights, gram(x) - 1e-3 * np.eye(96), 4, 32, damping=0.0)


@pytest.mark.parametrize("bad", [np.eye(95), np.full((96, 96), np.nan), np.ones(96)])
def test_matrices_are_checked(bad):
    weights, x = layer(16)
    with pytest.raises(ConversionError, match="bad-gram"):
        gptq.quantize(weights, bad, 4, 32)
    with pytest.raises(ConversionError, match="bad-gram"):
        gptq.quantize(weights, gram(x), 4, 32, correction=bad)


def test_odd_shapes():
    for rows, columns, block in ((1, 5, 0), (3, 51, 17), (2, 130, 13)):
        weights, x = layer(17, rows=rows, columns=columns)
        coded, facts = gptq.quantize(weights, gram(x), 3, block)
        assert coded.codes.shape == (rows, columns) and facts.loss <= facts.rounded
