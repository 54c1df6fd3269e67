"""Element-wise ops, reductions, norms and products that the runtime computes wrong."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mnnconvert.ir import F32, I8, I32, Builder, Node, Value
from mnnconvert.ir.types import element_count, known
from mnnconvert.ops.activation import ReLU
from mnnconvert.ops.arrange import BroadcastTo
from mnnconvert.ops.elementwise import COMPARISONS, Binary, Cast, Select, Unary
from mnnconvert.ops.layout import Identity
from mnnconvert.ops.matmul import MatMul
from mnnconvert.ops.normalization import LayerNorm
from mnnconvert.ops.reduction import Reduction
from mnnconvert.ops.shape import Permute, Reshape
from mnnconvert.passes.defects.base import Defect, RefusedError, equal, rank_of, shape_of
from mnnconvert.passes.defects.ranges import EXACT, exact_product, is_exact, magnitude

Made = Sequence[Value] | None
INTEGER_UNARY = {"NEG", "SQUARE", "SIGN"}
WHOLE = {"FLOOR", "CEIL", "ROUND"}  # change no integer
ORDER = {"LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL"}
DIVISIONS = {"REALDIV", "FLOORDIV", "MOD", "FLOORMOD"}


def _order(b: Builder, node: Node) -> Made:
    """LESS turned around; one operand in the shape of the result."""
    op, (x, y) = node.op, node.inputs
    if not isinstance(op, Binary) or op.function not in ORDER or x.dtype != F32:
        return None
    full = _one_full(b, node)
    if op.function == "LESS":
        return [b.add(Binary("GREATER", op.activation), y, full)]
    return None if full is x else [b.add(op, full, y)]


def _equality(b: Builder, node: Node) -> Made:
    """EQUAL as the opposite of NOTEQUAL, one operand in full shape. Bits do where one is known, without 0 and NaN."""
    op, (x, y) = node.op, node.inputs
    if not isinstance(op, Binary) or op.function not in ("EQUAL", "NOTEQUAL") or x.dtype != F32 or op.activation:
        return None
    known = [v.constant for v in (x, y) if v.constant is not None]
    if any((c != 0).all() and not np.isnan(c).any() for c in known):
        return None
    full = _one_full(b, node)
    if op.function == "EQUAL":
        return [equal(b, full, y)]
    return None if full is x else [b.add(op, full, y)]


def _float_modulo(b: Builder, node: Node) -> Made:
    """The remainder with the sign of the dividend, plus the divisor where the signs differ."""
    op, (x, y) = node.op, node.inputs
    if not isinstance(op, Binary) or op.function != "FLOORMOD" or x.dtype != F32 or op.activation:
        return None
    if y.constant is not None and np.isfinite(y.constant).all():
        return None
    rest, zero = b.add(Binary("MOD"), x, y), b.floats(0.0)
    signs = [b.add(Binary("GREATER"), zero, v) for v in (rest, y)]
    differ = b.add(Binary("MUL"), b.add(Binary("NOTEQUAL"), *signs), b.add(Binary("NOTEQUAL"), rest, zero))
    return [select(b, differ, b.add(Binary("ADD"), rest, y), rest)]


def _product_with_silu(b: Builder, node: Node) -> Made:
    op = node.op
    if not isinstance(op, Binary) or op.function != "MUL_SILU":
        return None
    return [b.add(Binary("MUL", op.activation), node.inputs[0], b.add(Unary("SILU"), node.inputs[1]))]


def _exclusive_or(b: Builder, node: Node) -> Made:
    if getattr(node.op, "function", "") != "LOGICALXOR" or all(is_truth(v) for v in node.inputs):
        return None
    return [b.add(Binary("NOTEQUAL"), *(truth(b, v) for v in node.inputs))]


def _integer_extreme(b: Builder, node: Node) -> Made:
    """MINIMUM and MAXIMUM go through float32 in the runtime."""
    op = node.op
    if not isinstance(op, Binary) or op.function not in ("MINIMUM", "MAXIMUM") or node.inputs[0].dtype != I32:
        return None
    if all(_is_small(v) for v in node.inputs):
        return None
    x, y = node.inputs
    order = (x, y) if op.function == "MAXIMUM" else (y, x)
    return [select(b, b.add(Binary("GREATER"), *order), x, y)]


def _is_small(value: Value) -> bool:
    """Whether every element is known to be exact in float32."""
    bound = magnitude(value)
    return bound is not None and bound <= EXACT


def _integer_product(b: Builder, node: Node) -> Made:
    op, (x, y) = node.op, node.inputs
    if not isinstance(op, Binary) or op.function != "MUL" or x.dtype != I32 or op.activation or is_exact(x, y):
        return None
    return [exact_product(b, x, y)]


def _integer_distance(b: Builder, node: Node) -> Made:
    op, (x, y) = node.op, node.inputs
    if not isinstance(op, Binary) or op.function != "SquaredDifference" or x.dtype != I32 or op.activation:
        return None
    return [b.add(Unary("SQUARE"), b.add(Binary("SUB"), x, y))]


def _division(b: Builder, node: Node) -> Made:
    """Division by zero gives 0, as in our executor; the process of the runtime ends at it."""
    op, (x, y) = node.op, node.inputs
    if not isinstance(op, Binary) or op.function not in DIVISIONS or x.dtype != I32 or _is_nonzero(y):
        return None
    by_zero = b.add(Binary("EQUAL"), y, b.ints(0))
    quotient = b.add(op, x, b.add(Binary("ADD"), y, by_zero))
    return [select(b, by_zero, b.ints(0), quotient)]


def _is_nonzero(value: Value) -> bool:
    """Whether no element is zero; sizes that are not known are taken to be positive."""
    known = value.constant
    if known is not None:
        return bool((known != 0).all())
    sizes = value.sizes
    return sizes is not None and None not in sizes and 0 not in sizes


def is_truth(value: Value) -> bool:
    """Whether a value is known to hold only 0 and 1."""
    content = value.constant if value.tensor is not None or value.spec.constant is not None else None
    if content is not None:
        return bool(((content == 0) | (content == 1)).all())
    op = value.producer.op if value.producer is not None else None
    return getattr(op, "function", "") in COMPARISONS or getattr(op, "to", "") == "DT_BOOL"


def truth(b: Builder, value: Value) -> Value:
    """1 where a value is not zero, else 0."""
    return value if is_truth(value) else b.add(Binary("NOTEQUAL"), value, b.ints(0))


def _integer_unary(b: Builder, node: Node) -> Made:
    op, x = node.op, node.inputs[0]
    if not isinstance(op, Unary) or x.dtype != I32 or op.function in INTEGER_UNARY:
        return None
    if op.function in WHOLE:
        return [b.add(Identity(), x)]
    if op.function == "ABS":
        small = (magnitude(x) or EXACT + 1) <= EXACT
        return None if small else [select(b, b.add(Binary("GREATER"), b.ints(0), x), b.add(Unary("NEG"), x), x)]
    return [b.add(Cast("DT_INT32"), b.add(op, b.add(Cast("DT_FLOAT"), x)))]


def _select(b: Builder, node: Node) -> Made:
    condition, x, y = node.inputs
    if all(_fits(v, node.output) for v in (x, y)):
        return None
    return [select(b, condition, x, y)]


def select(b: Builder, condition: Value, x: Value, y: Value) -> Value:
    """Select with choices of the size of the result, or of one element."""
    made = b.add(Select(), condition, x, y)
    if all(_fits(v, made) for v in (x, y)):
        return made
    return b.add(Select(), condition, *(_grown(b, v, made, (condition, x, y)) for v in (x, y)))


def _one_full(b: Builder, node: Node) -> Value:
    """The first operand; in the shape of the result where both would broadcast."""
    x, y = node.inputs
    return x if any(_fits(v, node.output) for v in (x, y)) else _grown(b, x, node.output, (x, y))


def _fits(value: Value, result: Value) -> bool:
    return element_count(value.shape) == 1 or (value.shape == result.shape and None not in (value.shape or (None,)))


def _grown(b: Builder, value: Value, result: Value, all_operands: tuple[Value, ...]) -> Value:
    if _fits(value, result):
        return value
    if known(result.shape):
        return b.add(BroadcastTo(), value, shape_of(b, result))
    for other in all_operands:
        if other is not value:
            value = b.add(BroadcastTo(), value, shape_of(b, other))
    return value


def _reduction(b: Builder, node: Node) -> Made:
    op, x = node.op, node.inputs[0]
    if not isinstance(op, Reduction):
        return None
    if op.operation in ("ASUM", "SUMSQ"):
        inner = b.add(Unary("ABS" if op.operation == "ASUM" else "SQUARE"), x)
        return [_reduce(b, "SUM", op, inner, node)]
    if op.operation in ("ANY", "ALL"):
        return [_reduce(b, "MAXIMUM" if op.operation == "ANY" else "MINIMUM", op, truth(b, x), node)]
    if x.rank == 0:
        return [b.add(Identity(), x)]
    if op.operation in ("MAXIMUM", "MINIMUM", "MEAN") and 0 in (x.shape or ()):
        return [_of_nothing(b, op, x, node)]
    return None


def _of_nothing(b: Builder, op: Reduction, x: Value, node: Node) -> Value:
    if not known(x.shape) or (len(node.inputs) > 1 and node.inputs[1].constant is None):
        raise RefusedError(f"{op.operation} of no elements")
    return b.constant(op.ref(np.zeros(x.shape, x.dtype), *(v.constant for v in node.inputs[1:])))  # type: ignore[arg-type]


def _reduce(b: Builder, operation: str, op: Reduction, x: Value, node: Node) -> Value:
    return (
        b.add(Identity(), x) if x.rank == 0 else b.add(Reduction(operation, op.dims, op.keep_dims), x, *node.inputs[1:])
    )


def _integer_relu(b: Builder, node: Node) -> Made:
    op, x = node.op, node.inputs[0]
    if x.dtype == F32:
        return None
    if x.dtype == I32 and isinstance(op, ReLU) and op.slope == 0:
        return [select(b, b.add(Binary("GREATER"), x, b.ints(0)), x, b.ints(0))]
    return [b.add(Cast("DT_INT32"), b.add(op, b.add(Cast("DT_FLOAT"), x)))]


def _vectors(b: Builder, node: Node) -> Made:
    """The product of two vectors is the sum of their products."""
    x, y = node.inputs[:2]
    if x.rank != 1 or y.rank != 1:
        return None
    total = b.add(Reduction("SUM", (0,), False), b.add(Binary("MUL"), x, y))
    return [b.add(Binary("ADD"), total, node.inputs[2])] if len(node.inputs) > 2 else [total]


def _norm_of_sum(b: Builder, node: Node) -> Made:
    """LayerNorm with two results is computed for NC4HW4 blocks of one shape only."""
    if not isinstance(node.op, LayerNorm) or len(node.outputs) < 2:
        return None
    total = b.add(Binary("ADD"), node.inputs[0], node.inputs[-1])
    return [total, b.add(node.op, total, *node.inputs[1:-1])]


def _norm_apart(b: Builder, node: Node) -> Made:
    """Axes with others between them are moved behind all others, and back again."""
    op, x = node.op, node.inputs[0]
    if not isinstance(op, LayerNorm) or op.group > 1 or max(op.axes) - min(op.axes) == len(op.axes) - 1:
        return None
    rank = rank_of(x, "LayerNorm over axes apart")
    axes = sorted(axis % rank for axis in op.axes)
    if axes[-1] - axes[0] == len(axes) - 1:
        return None
    order = (*(i for i in range(rank) if i not in axes), *axes)
    last = LayerNorm(tuple(range(-len(axes), 0)), op.epsilon, op.rms)
    y = b.add(last, b.add(Permute(order), x), *node.inputs[1:])
    return [b.add(Permute(tuple(order.index(i) for i in range(rank))), y)]


def _inner_product(b: Builder, node: Node) -> Made:
    x, w, bias = node.inputs
    columns = w.shape[1] if w.shape else None
    if not isinstance(columns, int):
        raise RefusedError("InnerProduct with a weight of unknown shape")
    flat = b.add(Reshape((-1, columns)), x)
    return [b.add(MatMul(transpose_b=True), flat, w, bias)]


def _zero_points(b: Builder, node: Node) -> Made:
    if len(set(getattr(node.op, "zero", ()))) > 1:
        raise RefusedError("FloatToInt8 with zero points that differ by channel")
    return None


def _codes_of_vector(b: Builder, node: Node) -> Made:
    """As a matrix of one row, which codes stay until they are numbers again."""
    x = node.inputs[0]
    if x.rank is None or x.rank > 1:
        return None
    row = _row_of(x) or b.add(Reshape((1, -1)), x)
    return [b.add(Reshape((-1,) if x.rank else ()), b.add(node.op, row))]


def _row_of(x: Value) -> Value | None:
    """The row of codes that was made a vector."""
    before = x.producer
    if x.dtype != I8 or before is None or not isinstance(before.op, Reshape):
        return None
    matrix = before.inputs[0]
    return matrix if matrix.rank == 2 and (matrix.shape or ())[0] == 1 else None


DEFECTS = (
    Defect("FloatToInt8", "the codes of a vector are written beyond its memory", _codes_of_vector),
    Defect("Int8ToFloat", "the codes of a vector are read beyond its memory", _codes_of_vector),
    Defect("FloatToInt8", "the first zero point is used for all channels", _zero_points),
    Defect("Binary", "of negative floats LESS is reversed, as is any order where both operands broadcast", _order),
    Defect(
        "Binary",
        "EQUAL (NOTEQUAL where both operands broadcast) compares the bits of floats: 0 and -0 differ",
        _equality,
    ),
    Defect("Binary", "float FLOORMOD by an infinity is NaN", _float_modulo),
    Defect("Binary", "MUL_SILU is computed for NC4HW4 of the transformer fusion only", _product_with_silu),
    Defect("Binary", "LOGICALXOR compares numbers, not truth values", _exclusive_or),
    Defect("Binary", "integer MINIMUM and MAXIMUM are rounded to float32", _integer_extreme),
    Defect("Binary", "integer MUL is rounded to float32", _integer_product),
    Defect("Binary", "integer SquaredDifference is rounded to float32", _integer_distance),
    Defect("Binary", "the process ends when an integer is divided by zero", _division),
    Defect("MatMul", "two vectors crash", _vectors),
    Defect("Unary", "only NEG, SQUARE and SIGN are computed on integers", _integer_unary),
    Defect("Select", "a choice that broadcasts is read out of bounds", _select),
    Defect("Reduction", "ASUM and SUMSQ are missing; ANY counts only positive numbers; a scalar crashes", _reduction),
    Defect("ReLU", "integers are computed as the bits of floats", _integer_relu),
    Defect("ReLU6", "integers are computed as the bits of floats", _integer_relu),
    Defect("LayerNorm", "two results are computed for NC4HW4 of the transformer fusion only", _norm_of_sum),
    Defect("LayerNorm", "axes with others between them are taken for others", _norm_apart),
    Defect("InnerProduct", "wrong for more than one row", _inner_product),
)
