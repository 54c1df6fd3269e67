"""One step of each recurrent cell of ONNX, and the activation functions that cells take."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mnnconvert.frontends.common.compose import apply, calc, choose
from mnnconvert.frontends.onnx.node import OnnxNode
from mnnconvert.ir import Builder, Value
from mnnconvert.ops.activation import ELU, ReLU
from mnnconvert.ops.arrange import Concat
from mnnconvert.ops.matmul import MatMul
from mnnconvert.ops.slicing import Slice

Function = Callable[[Builder, Value, float, float], Value]


def parts(b: Builder, x: Value, axis: int, count: int) -> tuple[Value, ...]:
    """`x` in `count` equal parts along an axis."""
    return b.add(Slice(axis, parts=count), x, names=[""] * count)


def _softplus(b: Builder, x: Value, alpha: float, beta: float) -> Value:
    """log(1 + exp(x)) as max(x, 0) + log(1 + exp(-|x|))."""
    small = apply(b, "EXP", apply(b, "NEG", apply(b, "ABS", x)))
    return calc(b, "ADD", calc(b, "MAXIMUM", x, 0.0), apply(b, "LOG1P", small))


def _hard_sigmoid(b: Builder, x: Value, alpha: float, beta: float) -> Value:
    return calc(b, "MINIMUM", calc(b, "MAXIMUM", _affine(b, x, alpha, beta), 0.0), 1.0)


def _affine(b: Builder, x: Value, alpha: float, beta: float) -> Value:
    return calc(b, "ADD", calc(b, "MUL", x, alpha), beta)


def _scaled_tanh(b: Builder, x: Value, alpha: float, beta: float) -> Value:
    return calc(b, "MUL", apply(b, "TANH", calc(b, "MUL", x, beta)), alpha)


def _softsign(b: Builder, x: Value, alpha: float, beta: float) -> Value:
    return calc(b, "REALDIV", x, calc(b, "ADD", apply(b, "ABS", x), 1.0))


@dataclass(frozen=True)
class Kind:
    """An activation function; `alpha` and `beta` are its defaults, None where it has no such parameter."""

    function: Function
    alpha: float | None = None
    beta: float | None = None


ACTIVATIONS = {
    "sigmoid": Kind(lambda b, x, *_: apply(b, "SIGMOID", x)),
    "tanh": Kind(lambda b, x, *_: apply(b, "TANH", x)),
    "relu": Kind(lambda b, x, *_: b.add(ReLU(), x)),
    "affine": Kind(_affine, 1.0, 0.0),
    "leakyrelu": Kind(lambda b, x, alpha, _: b.add(ReLU(alpha), x), 0.01),
    "thresholdedrelu": Kind(lambda b, x, alpha, _: choose(b, calc(b, "GREATER", x, alpha), x, 0.0, x), 1.0),
    "scaledtanh": Kind(_scaled_tanh, 1.0, 1.0),
    "hardsigmoid": Kind(_hard_sigmoid, 0.2, 0.5),
    "elu": Kind(lambda b, x, alpha, _: b.add(ELU(alpha), x), 1.0),
    "softsign": Kind(_softsign),
    "softplus": Kind(_softplus),
}


@dataclass(frozen=True)
class Activations:
    """The functions of one direction with their parameters."""

    names: tuple[str, ...]
    parameters: tuple[tuple[float, float], ...]

    def __call__(self, b: Builder, index: int, x: Value) -> Value:
        return ACTIVATIONS[self.names[index]].function(b, x, *self.parameters[index])


def _product(b: Builder, h: Value, r: Value) -> Value:
    return b.add(MatMul(transpose_b=True), h, r)


@dataclass(frozen=True)
class Rule:
    """What a step has to know: activations, clip threshold (0: none), two switches of single cells.

    `product` multiplies a state with recurrent weights as they were given to `Cell.weights`.
    """

    activations: Activations
    clip: float = 0.0
    linear_before_reset: bool = False
    input_forget: bool = False
    product: Callable[[Builder, Value, Value], Value] = _product

    def active(self, b: Builder, index: int, x: Value) -> Value:
        """Activation `index` of `x`, which is clipped first."""
        if self.clip:
            x = calc(b, "MINIMUM", calc(b, "MAXIMUM", x, -self.clip), self.clip)
        return self.activations(b, index, x)


class Cell(ABC):
    """A recurrent cell: how many gates and states it has, its usual activations, and one step."""

    gates: int
    states: int
    usual: tuple[str, ...]

    def weights(self, b: Builder, r: Value, bias: Value) -> tuple[Value, dict[str, Value]]:
        """The bias that is added for all steps at once, and the operands of `step`, of one direction."""
        inputs, recurrent = parts(b, bias, 0, 2)
        return calc(b, "ADD", inputs, recurrent), {"r": r}

    @abstractmethod
    def step(self, b: Builder, rule: Rule, row: Value, state: list[Value], weights: dict[str, Value]) -> list[Value]:
        """The states after a step. `row` is the input's part of the gates [batch, gates * hidden]."""


class RnnCell(Cell):
    gates, states, usual = 1, 1, ("tanh",)

    def step(self, b: Builder, rule: Rule, row: Value, state: list[Value], weights: dict[str, Value]) -> list[Value]:
        return [rule.active(b, 0, calc(b, "ADD", row, rule.product(b, state[0], weights["r"])))]


class LstmCell(Cell):
    """i, o, f, c in this order; peepholes [3 hidden] of i, o, f look at the cell."""

    gates, states, usual = 4, 2, ("sigmoid", "tanh", "tanh")

    def step(self, b: Builder, rule: Rule, row: Value, state: list[Value], weights: dict[str, Value]) -> list[Value]:
        h, c = state
        i, o, f, g = parts(b, calc(b, "ADD", row, rule.product(b, h, weights["r"])), 1, 4)
        if "peepholes" in weights:
            look = parts(b, weights["peepholes"], 0, 3)
            i, f = (calc(b, "ADD", gate, calc(b, "MUL", c, p)) for gate, p in ((i, look[0]), (f, look[2])))
        i = rule.active(b, 0, i)
        f = calc(b, "SUB", b.floats(1), i) if rule.input_forget else rule.active(b, 0, f)
        c = calc(b, "ADD", calc(b, "MUL", f, c), calc(b, "MUL", i, rule.active(b, 1, g)))
        if "peepholes" in weights:
            o = calc(b, "ADD", o, calc(b, "MUL", c, look[1]))
        return [calc(b, "MUL", rule.active(b, 0, o), rule.activations(b, 2, c)), c]


class GruCell(Cell):
    """z, r, candidate in this order. The candidate's recurrent bias stays with its product when that is reset."""

    gates, states, usual = 3, 1, ("sigmoid", "tanh")

    def weights(self, b: Builder, r: Value, bias: Value) -> tuple[Value, dict[str, Value]]:
        inputs, recurrent = parts(b, bias, 0, 2)
        z, reset, candidate = parts(b, recurrent, 0, 3)
        *gates, inner = parts(b, r, 0, 3)
        shared = calc(b, "ADD", inputs, _joined(b, z, reset, calc(b, "MUL", candidate, 0.0)))
        return shared, {"r": _joined(b, *gates), "candidate": inner, "bias": candidate}

    def step(self, b: Builder, rule: Rule, row: Value, state: list[Value], weights: dict[str, Value]) -> list[Value]:
        h = state[0]
        z, r, g = parts(b, row, 1, 3)
        hz, hr = parts(b, rule.product(b, h, weights["r"]), 1, 2)
        z, r = (rule.active(b, 0, calc(b, "ADD", x, y)) for x, y in ((z, hz), (r, hr)))
        inner = rule.product(b, h if rule.linear_before_reset else calc(b, "MUL", r, h), weights["candidate"])
        inner = calc(b, "ADD", inner, weights["bias"])
        inner = calc(b, "MUL", r, inner) if rule.linear_before_reset else inner
        g = rule.active(b, 1, calc(b, "ADD", g, inner))
        return [calc(b, "ADD", calc(b, "MUL", z, h), calc(b, "MUL", calc(b, "SUB", b.floats(1), z), g))]


CELLS: dict[str, Cell] = {"RNN": RnnCell(), "LSTM": LstmCell(), "GRU": GruCell()}


def _joined(b: Builder, *parts: Value) -> Value:
    return b.add(Concat(0), *parts)


def read_activations(n: OnnxNode, cell: Cell, directions: int) -> list[Activations]:
    """The functions of each direction; parameters are handed out in order to those functions that take one."""
    names = [str(name).lower() for name in n.attr("activations", ())] or list(cell.usual) * directions
    unknown = [name for name in names if name not in ACTIVATIONS]
    if unknown or len(names) != len(cell.usual) * directions:
        raise n.refuse(f"the activations {names} are not {len(cell.usual) * directions} known functions")
    alphas, betas = iter(n.attr("activation_alpha", ())), iter(n.attr("activation_beta", ()))
    found = [(_parameter(alphas, ACTIVATIONS[k].alpha), _parameter(betas, ACTIVATIONS[k].beta)) for k in names]
    size = len(cell.usual)
    return [
        Activations(tuple(names[d * size : d * size + size]), tuple(found[d * size : d * size + size]))
        for d in range(directions)
    ]


def _parameter(given: Iterator[float], default: float | None) -> float:
    """The next parameter for a function that takes one; its default where the list has ended."""
    return 0.0 if default is None else float(next(given, default))
