"""Import rules of optimizer steps: one update of every tensor, in ordinary arithmetic.

The operands are the rate R, the number of the step T, then all tensors, all gradients and all states of each kind; the
results are the new tensors and states in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mnnconvert.frontends.common.compose import apply, calc, cast, choose
from mnnconvert.frontends.onnx.node import OnnxNode
from mnnconvert.frontends.onnx.registry import onnx_op
from mnnconvert.ir import F32, Builder, Value

DOMAIN = "ai.onnx.preview.training"


def _tensors(b: Builder, n: OnnxNode, states: int) -> Iterator[tuple[Value, Value, list[Value]]]:
    """Every tensor with its gradient, regularized, and its states."""
    operands = n.inputs[2:]
    kinds = 2 + states
    if len(operands) % kinds:
        raise n.refuse(f"{n.op_type} has {len(operands)} tensors, which {kinds} does not divide")
    count = len(operands) // kinds
    for i in range(count):
        x, gradient, *state = operands[i::count]
        yield x, calc(b, "ADD", calc(b, "MUL", x, n.attr("norm_coefficient", 0.0)), gradient), state


def _results(updates: Sequence[tuple[Value, ...]]) -> tuple[Value, ...]:
    """The results of all tensors: first all of the first kind."""
    return tuple(value for kind in zip(*updates, strict=True) for value in kind)


@onnx_op("Momentum", domain=DOMAIN)
def momentum(b: Builder, n: OnnxNode) -> tuple[Value, ...]:
    """v' = alpha v + beta g, with beta 1 in step 0; x' = x - r v', in mode nesterov x - r (g + alpha v')."""
    rate, alpha, mode = n.input(0), n.attr("alpha", 0.0), n.attr("mode", "standard")
    if mode not in ("standard", "nesterov"):
        raise n.refuse(f"the mode of Momentum is {mode!r}")
    later = calc(b, "GREATER", cast(b, n.input(1), F32), 0.0)
    beta = choose(b, later, n.attr("beta", 0.0), 1.0, rate)
    updates = []
    for x, g, (v,) in _tensors(b, n, 1):
        new = calc(b, "ADD", calc(b, "MUL", v, alpha), calc(b, "MUL", g, beta))
        step = new if mode == "standard" else calc(b, "ADD", g, calc(b, "MUL", new, alpha))
        updates.append((calc(b, "SUB", x, calc(b, "MUL", step, rate)), new))
    return _results(updates)


@onnx_op("Adagrad", domain=DOMAIN)
def adagrad(b: Builder, n: OnnxNode) -> tuple[Value, ...]:
    """h' = h + g^2; x' = x - r / (1 + t decay) g / (sqrt(h') + epsilon)."""
    decay = calc(b, "ADD", calc(b, "MUL", cast(b, n.input(1), F32), n.attr("decay_factor", 0.0)), 1.0)
    rate, updates = calc(b, "REALDIV", n.input(0), decay), []
    for x, g, (h,) in _tensors(b, n, 1):
        new = calc(b, "ADD", h, apply(b, "SQUARE", g))
        root = calc(b, "ADD", apply(b, "SQRT", new), n.attr("epsilon", 1e-6))
        updates.append((calc(b, "SUB", x, calc(b, "REALDIV", calc(b, "MUL", g, rate), root)), new))
    return _results(updates)


@onnx_op("Adam", domain=DOMAIN)
def adam(b: Builder, n: OnnxNode) -> tuple[Value, ...]:
    """v' = alpha v + (1 - alpha) g; h' = beta h + (1 - beta) g^2; x' = (x - r' v' / (sqrt(h') + epsilon)) (1 - post).

    r' is r sqrt(1 - beta^t) / (1 - alpha^t), and r in step 0.
    """
    alpha, beta = n.attr("alpha", 0.9), n.attr("beta", 0.999)
    rate, updates = _unbiased(b, n.input(0), cast(b, n.input(1), F32), alpha, beta), []
    for x, g, (v, h) in _tensors(b, n, 2):
        v_new = calc(b, "ADD", calc(b, "MUL", v, alpha), calc(b, "MUL", g, 1 - alpha))
        h_new = calc(b, "ADD", calc(b, "MUL", h, beta), calc(b, "MUL", apply(b, "SQUARE", g), 1 - beta))
        root = calc(b, "ADD", apply(b, "SQRT", h_new), n.attr("epsilon", 1e-6))
        x_new = calc(b, "SUB", x, calc(b, "REALDIV", calc(b, "MUL", v_new, rate), root))
        updates.append((calc(b, "MUL", x_new, 1 - n.attr("norm_coefficient_post", 0.0)), v_new, h_new))
    return _results(updates)


def _unbiased(b: Builder, rate: Value, step: Value, alpha: float, beta: float) -> Value:
    """The rate of Adam in a step; the missing weight of the first averages is made up for."""
    first, second = (calc(b, "SUB", b.floats(1.0), calc(b, "POW", b.floats(base), step)) for base in (alpha, beta))
    later = calc(b, "GREATER", step, 0.0)
    scaled = calc(b, "REALDIV", apply(b, "SQRT", second), choose(b, later, first, 1.0, step))
    return choose(b, later, calc(b, "MUL", rate, scaled), rate, rate)
