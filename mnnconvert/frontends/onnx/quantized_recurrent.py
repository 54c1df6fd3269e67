"""Import rule of LSTMs that quantise what they multiply, step by step: exact products of integers in a loop."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mnnconvert.frontends.common.compose import calc, cast
from mnnconvert.frontends.onnx.cells import Rule
from mnnconvert.frontends.onnx.integer_products import exact_product, known_factor
from mnnconvert.frontends.onnx.node import OnnxNode
from mnnconvert.frontends.onnx.quantization import dynamic_scheme, saturated
from mnnconvert.frontends.onnx.recurrent import Layer, Results
from mnnconvert.frontends.onnx.registry import onnx_op
from mnnconvert.ir import F32, Builder, Value
from mnnconvert.ops.matmul import MatMul


@onnx_op("DynamicQuantizeLSTM", domain="com.microsoft", limits="known weights; whole sequences")
def dynamic_quantize_lstm(b: Builder, n: OnnxNode) -> Results:
    """An LSTM with 8-bit weights [directions, inputs, 4 hidden].

    The input is quantised by the range of all its steps, the hidden state of a step by its own range.
    """
    layer = QuantizedLayer(b, n)
    return layer.joined([layer.composed(d) for d in range(layer.count)])


class QuantizedLayer(Layer):
    """Operands beside those of an LSTM: scales and zero points of both weights, one per direction or per column."""

    def __init__(self, b: Builder, n: OnnxNode):
        super().__init__(b, n)
        if self.lengths is not None:
            raise n.refuse("DynamicQuantizeLSTM with the lengths of sequences is not supported")
        self.inputs = [_Weight(b, n, (1, 8, 9), d) for d in range(self.count)]
        self.recurrent = [_Weight(b, n, (2, 10, 11), d) for d in range(self.count)]

    def _projected(self, x: Value, d: int) -> Value:
        return self.inputs[d].product(self.b, x, self.inputs[d].value)

    def _recurrent_weight(self, d: int) -> Value:
        return self.recurrent[d].value

    def _rule(self, d: int) -> Rule:
        return replace(super()._rule(d), product=self.recurrent[d].product)


class _Weight:
    """Codes minus zero point [inputs, 4 hidden] of one direction, and the scale of their products."""

    def __init__(self, b: Builder, n: OnnxNode, operands: tuple[int, int, int], d: int):
        self.n = n
        names = ("the weight", "the scale", "the zero point")
        codes, scale, zero = (
            np.asarray(n.required_constant(i, what))[d] for i, what in zip(operands, names, strict=True)
        )
        self.value, self.row = known_factor(b, codes, n.source_type(operands[0]), np.asarray(zero), -1)
        self.scale = np.asarray(scale, F32)

    def product(self, b: Builder, x: Value, codes: Value) -> Value:
        """`x`, quantised to uint8 by its own range, times `codes`: this weight as a value of the graph of `b`."""
        scale, zero = dynamic_scheme(b, x)
        whole = calc(b, "SUB", saturated(b, calc(b, "REALDIV", x, scale), zero, "uint8"), zero)
        total = exact_product(b, self.n, lambda digit: b.add(MatMul(), digit, codes), whole, self.row)
        return calc(b, "MUL", cast(b, total, F32), calc(b, "MUL", scale, self.scale))
