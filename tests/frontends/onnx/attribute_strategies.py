"""Random legal models of one node, as hypothesis strategies: six families of ops, every attribute of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from attribute_dice import Case, Dice, Operand
from attribute_windows import conv, conv_transpose, pool, resize
from hypothesis import strategies as st

FLOATS = "float32 float64 float16"
WIDE = f"{FLOATS} int32 int64 uint32"
NARROW = "int8 uint8 int16 uint16"
PLAIN = f"{WIDE} {NARROW} bool"
COMMON = "float32 float32 float32 int32 int64"
FAR = (2**63 - 1, -(2**63), 2**31 - 1, -(2**31), 2**31, 10**9)


def _family(*makers: Callable[[Dice], Case]) -> st.SearchStrategy[Case]:
    @st.composite
    def family(draw: Callable[[Any], Any]) -> Case:
        dice = Dice(draw)
        return dice.pick(*makers)(dice)

    return family()


# Broadcasting ------------------------------------------------------------------------------------------------------

BINARY = (  # ops, opset, element types that onnxruntime has
    ("Add Sub Mul Div", 7, WIDE), ("Add Sub Mul Div", 14, f"{WIDE} {NARROW}"), ("Pow", 7, FLOATS),
    ("Pow", 15, "float32 float64 float16 int32 int64"), ("Max Min Sum Mean", 8, "float32 float16"),
    ("Max Min", 13, f"{WIDE} int8 uint8"), ("Equal", 7, "int32 int64 bool"), ("Equal", 19, PLAIN),
    ("Less Greater", 7, FLOATS), ("Less Greater LessOrEqual GreaterOrEqual", 16, f"{WIDE} {NARROW}"),
    ("And Or Xor", 7, "bool"), ("BitwiseAnd BitwiseOr BitwiseXor", 18, f"int32 int64 {NARROW}"),
    ("PRelu", 9, "float32 float16"), ("PRelu", 16, WIDE), ("Mod", 13, f"{WIDE} {NARROW}"), ("BitShift", 11, "uint8"),
    ("BitShift", 11, "uint16 uint32"),
)  # fmt: skip


def _broadcast_shapes(d: Dice, count: int, to_first: bool = False) -> list[list[int]]:
    """Shapes that broadcast to one; with `to_first` to the first of them."""
    result = d.sizes(d.number(0, 5), 1, 4)
    shapes = []
    for i in range(count):
        whole = (i == 0 and to_first) or d.chance(3)
        kept = result[0 if whole else d.number(0, len(result)) :]
        shapes.append([1 if not whole and d.chance(3) else size for size in kept])
    return shapes


def element_wise(d: Dice) -> Case:
    ops, opset, kinds = d.pick(*BINARY)
    op, kind, attributes = d.pick(*ops.split()), d.kind(kinds), {}
    count = d.number(1, 4) if op in ("Max", "Min", "Sum", "Mean") else 2
    arrays = [d.array(s, kind) for s in _broadcast_shapes(d, count, to_first=op == "PRelu")]
    if op == "Mod":
        attributes["fmod"] = 1 if kind.kind == "f" else d.number(0, 1)
    if op == "Sub" and kind == np.uint32:
        arrays[0] += 200  # what is negative has no place in 32 bits with a sign
    if op in ("Mod", "Div") and kind.kind in "iu":
        arrays[1][arrays[1] == 0] = 3
    if op == "BitShift":
        attributes["direction"] = d.pick("LEFT", "RIGHT")
        arrays[1] = d.array(arrays[1].shape, kind, 0, 7)
    if op == "Pow":
        arrays = _power_operands(d, arrays, opset)
    if op in ("Add", "Sub", "Equal", "Less", "Greater", "Max", "Min") and kind in (np.int32, np.int64) and d.chance(4):
        arrays = [np.asarray(a * kind.type(10**7 + 1)) for a in arrays]
    operands = [Operand(a, i > 0 and d.chance(3)) for i, a in enumerate(arrays)]
    return Case(op, opset, tuple(operands), attributes, open_sizes=d.opened())


def _power_operands(d: Dice, arrays: list[np.ndarray], opset: int) -> list[np.ndarray]:
    base, exponent = arrays
    if base.dtype.kind == "f":
        base = np.asarray(np.abs(base / 2) + base.dtype.type(0.25))
    exponent = d.array(exponent.shape, d.kind("float32 int32 int64") if opset > 12 else base.dtype, 0, 4)
    return [base if base.dtype.kind == "f" else np.asarray(base % 5), exponent]


def where(d: Dice) -> Case:
    kind = d.kind("float32 float64 float16 int32 int64 int8 uint8 uint32")
    condition, x, y = _broadcast_shapes(d, 3)
    arrays = [d.array(condition, bool), d.array(x, kind), d.array(y, kind)]
    operands = tuple(Operand(a, i > 0 and d.chance(3)) for i, a in enumerate(arrays))
    return Case("Where", d.pick(9, 16), operands, open_sizes=d.opened())


def expand(d: Dice) -> Case:
    x, target = _broadcast_shapes(d, 2)
    return Case("Expand", d.pick(8, 13), (Operand(d.array(x, d.kind(PLAIN))), d.parameter(target)), {}, 1, d.opened())


def clip(d: Dice) -> Case:
    kind = d.kind("float32 float64 float16 int32 int64 int8 uint8 uint32")
    bounds = [None if d.chance(3) else d.parameter(d.array((), kind), kind) for _ in range(2)]
    return Case("Clip", d.pick(12, 13), (Operand(d.array(d.sizes(d.number(0, 5)), kind)), *bounds), {}, 1, d.opened())


# Slicing -----------------------------------------------------------------------------------------------------------


def _bound(d: Dice, size: int, limits: np.iinfo) -> int:
    far = d.pick(*FAR) if d.chance(5) else d.number(-size - 2, size + 2)
    return int(np.clip(far, limits.min, limits.max))


def slice_(d: Dice) -> Case:
    sizes = d.sizes(d.number(1, 5))
    rank, opset, index = len(sizes), d.pick(1, 10, 11, 13), d.kind("int64 int32")
    limits = np.iinfo(index if opset > 1 else np.int64)
    axes = d.subset(rank, int(opset == 1)) if d.chance(2) else list(range(d.number(1, rank)))
    named = axes != list(range(len(axes))) or d.chance(2)
    starts, ends = ([_bound(d, sizes[a], limits) for a in axes] for _ in range(2))
    axes = [d.signed(a, rank) if opset > 10 else a for a in axes]
    x = Operand(d.array(sizes, d.kind(PLAIN)))
    if opset == 1:
        return Case("Slice", 1, (x,), {"starts": starts, "ends": ends, **({"axes": axes} if named else {})})
    steps = [d.pick(*FAR[2:5]) if d.chance(12) else d.pick(1, -1, 2, -2, 3, -3) for _ in axes] if d.chance(2) else None
    steps = None if steps is None else [int(np.clip(s, limits.min, limits.max)) for s in steps]
    # onnxruntime steps backwards past the first element when the end is the largest integer: it is a size too many
    ends = [9 if s < 0 and e in FAR[::2] else e for s, e in zip(steps or [1] * len(ends), ends, strict=True)]
    lists = [starts, ends, axes if named else None, steps]
    operands = [x, *(None if v is None else _fits(d.parameter(v, index)) for v in lists)]
    return Case("Slice", opset, tuple(operands), {}, 1, d.opened())


def _fits(bounds: Operand) -> Operand:
    """Bounds that are fed have to fit in 32 bits."""
    return bounds if bounds.stored else Operand(np.clip(bounds.array, -(2**31), 2**31 - 1))


def split(d: Dice) -> Case:
    sizes, opset, count = d.sizes(d.number(1, 5)), d.pick(2, 11, 13, 18), d.number(1, 4)
    axis = d.number(0, len(sizes) - 1)
    cuts = sorted(d.numbers(count - 1, 0, sizes[axis]))
    parts = [high - low for low, high in zip([0, *cuts], [*cuts, sizes[axis]], strict=True)]
    attributes: dict[str, Any] = {"axis": d.signed(axis, len(sizes)) if opset > 2 else axis}
    equal = d.chance(2)
    if equal and opset < 18:
        sizes[axis] = count * d.number(0, 2)
    if equal and opset == 18:
        attributes["num_outputs"] = count
    if not equal and opset < 13:
        attributes["split"] = parts
    given = (d.parameter(parts),) if not equal and opset >= 13 else ()
    x = Operand(d.array(sizes, d.kind(PLAIN)))
    return Case("Split", opset, (x, *given), attributes, count, d.opened())


def _with_axes(d: Dice, op: str, x: np.ndarray, axes: list[int] | None) -> Case:
    opset, operands, attributes = d.pick(1, 11, 13), (Operand(x),), {}
    if axes is not None and opset < 13:
        attributes["axes"] = axes if opset == 11 else [abs(a) if a >= 0 else a + x.ndim for a in axes]
    elif axes is not None:
        operands = (*operands, d.parameter(axes))
    return Case(op, opset, operands, attributes, 1, d.opened())


def squeeze(d: Dice) -> Case:
    sizes = [1 if d.chance(2) else s for s in d.sizes(d.number(1, 5))]
    ones = [i for i, s in enumerate(sizes) if s == 1]
    axes = [d.signed(ones[i], len(sizes)) for i in d.subset(len(ones))] if d.chance(2) else None
    return _with_axes(d, "Squeeze", d.array(sizes, d.kind(PLAIN)), axes or None)


def unsqueeze(d: Dice) -> Case:
    sizes, more = d.sizes(d.number(0, 3)), d.number(1, 2)
    rank = len(sizes) + more
    case = _with_axes(d, "Unsqueeze", d.array(sizes, d.kind(PLAIN)), d.subset(rank, more)[:more])
    axes = [a if case.opset < 11 else d.signed(a, rank) for a in case.attributes.get("axes", ())]
    return Case(case.op, case.opset, case.operands, {"axes": axes} if axes else {}, 1, case.open_sizes)


# Padding -----------------------------------------------------------------------------------------------------------


def pad(d: Dice) -> Case:
    opset, sizes = d.pick(2, 11, 13, 18, 19, 21), d.sizes(d.number(1, 5), 1, 4)
    mode = d.pick("constant", "reflect", "edge", *(["wrap"] if opset >= 19 else []))
    axes = d.subset(len(sizes), 1) if opset >= 18 and d.chance(2) else list(range(len(sizes)))
    pairs = [_amounts(d, sizes[a], mode) for a in axes]
    pads = [p[0] for p in pairs] + [p[1] for p in pairs]
    attributes = {} if mode == "constant" and d.chance(2) else {"mode": mode}
    if opset == 2:
        if d.chance(2):
            attributes["value"] = d.number(-9, 9) / 4
        return Case("Pad", 2, (Operand(d.array(sizes, d.kind("float32 float64"))),), attributes | {"pads": pads})
    kind = d.kind(f"{COMMON} float64 int8 uint8 uint32" + (" bool" if opset > 12 else ""))
    value = d.parameter(d.array((), kind), kind) if d.chance(2) else None
    named = axes != list(range(len(sizes)))
    given = [Operand(d.array(sizes, kind)), d.parameter(pads), value]
    given += [d.parameter([d.signed(a, len(sizes)) for a in axes])] if named else []
    return Case("Pad", opset, tuple(given), attributes, 1, d.opened())


def _amounts(d: Dice, size: int, mode: str) -> tuple[int, int]:
    """What is added before and after; a crop leaves an element, and what is mirrored is there."""
    before, after = (0 if d.chance(3) else d.number(-2, 3) for _ in range(2))
    kept = size + min(0, before) + min(0, after)
    if kept < 1:
        before, after, kept = max(0, before), max(0, after), size
    most = {"reflect": max(0, kept - 1), "constant": 9}.get(mode, 9 if size else 0)
    return min(before, most), min(after, most)


# Gathering and scattering ------------------------------------------------------------------------------------------


def _indices(d: Dice, shape: Sequence[int], size: Any, kind: Any = np.int64) -> np.ndarray:
    """Indices into an axis of this size (or of these, along the last axis), counted from either end."""
    random = np.random.default_rng(d.number(0, 999))
    places = random.integers(0, np.maximum(size, 1), shape)
    return np.where(random.random(shape) < d.pick(0, 0.5), places - size, places).astype(kind)


def gather(d: Dice) -> Case:
    sizes = d.sizes(d.number(1, 4))
    axis = d.number(0, len(sizes) - 1)
    shape = d.sizes(d.number(0, 3), 1, 3) if sizes[axis] else [0, 2]
    indices = d.array(shape, np.int64) if 0 in shape else _indices(d, shape, sizes[axis], d.kind("int64 int32"))
    attributes = {"axis": d.signed(axis, len(sizes))} if axis or d.chance(2) else {}
    operands = (Operand(d.array(sizes, d.kind(PLAIN))), Operand(indices, d.chance(2)))
    return Case("Gather", d.pick(1, 11, 13), operands, attributes, 1, d.opened())


def _along(d: Dice, sizes: list[int], axis: int, distinct: bool) -> np.ndarray:
    """Indices of rank `len(sizes)`, no larger than the data on the other axes; no place twice if `distinct`."""
    shape = [d.number(1, s) if s else 0 for s in sizes]
    size = sizes[axis]
    if not distinct:
        shape[axis] = d.number(1, 4) if size else 0
        return _indices(d, shape, size)
    random = np.random.default_rng(d.number(0, 999))
    lines = np.argsort(random.random((*shape[:axis], size, *shape[axis + 1 :])), axis)
    places = np.take(lines, range(shape[axis]), axis)
    return np.where(random.random(shape) < 0.3, places - size, places).astype(np.int64)


def gather_elements(d: Dice) -> Case:
    sizes = d.sizes(d.number(1, 4))
    axis = d.number(0, len(sizes) - 1)
    indices = _along(d, sizes, axis, distinct=False)
    operands = (Operand(d.array(sizes, d.kind(PLAIN))), Operand(indices, d.chance(2)))
    return Case("GatherElements", d.pick(11, 13), operands, {"axis": d.signed(axis, len(sizes))}, 1, d.opened())


def gather_nd(d: Dice) -> Case:
    sizes, opset = d.sizes(d.number(1, 4), 1, 4), d.pick(11, 12, 13)
    batch = d.number(0, min(2, len(sizes) - 1)) if opset > 11 and d.chance(2) else 0
    depth = d.number(1, len(sizes) - batch)
    shape = [*sizes[:batch], *d.sizes(d.number(0, 2), 1, 3), depth]
    target = np.array(sizes[batch : batch + depth])
    if 0 in target:
        shape.insert(batch, 0)
    indices = Operand(_indices(d, shape, target), d.chance(2))
    attributes = {"batch_dims": batch} if batch or (opset > 11 and d.chance(2)) else {}
    return Case("GatherND", opset, (Operand(d.array(sizes, d.kind(PLAIN))), indices), attributes, 1, d.opened())


def _reduction(d: Dice) -> tuple[int, str]:
    opset = d.pick(11, 13, 16, 18)
    return opset, d.pick(*["none", "add", "mul", "max", "min"][: 1 if opset < 16 else 3 if opset < 18 else 5])


def _scattered(kinds: str, reduction: str) -> str:
    return kinds if reduction == "none" else "float32 float32 int32 int64"


def scatter_elements(d: Dice) -> Case:
    sizes, (opset, reduction) = d.sizes(d.number(1, 4)), _reduction(d)
    axis, kind = d.number(0, len(sizes) - 1), d.kind(_scattered(PLAIN, reduction))
    indices = _along(d, sizes, axis, distinct=reduction == "none")
    attributes = {"axis": d.signed(axis, len(sizes)), **({"reduction": reduction} if opset >= 16 else {})}
    operands = (Operand(d.array(sizes, kind)), Operand(indices, d.chance(2)),
                Operand(d.array(indices.shape, kind, -8, 8), d.chance(4)))  # fmt: skip
    return Case("ScatterElements", opset, operands, attributes, 1, d.opened())


def scatter_nd(d: Dice) -> Case:
    sizes, (opset, reduction) = d.sizes(d.number(1, 4), 1, 4), _reduction(d)
    depth, kind = d.number(1, len(sizes)), d.kind(_scattered(PLAIN, reduction))
    target, shape = np.array(sizes[:depth]), d.numbers(d.number(0, 2), 1, 3)
    if 0 in target or math.prod(shape) > math.prod(target):
        shape = [0] if 0 in target else [1]
    places = _indices(d, [*shape, depth], target)
    if reduction == "none":
        random = np.random.default_rng(d.number(0, 999))
        flat = random.permutation(max(1, math.prod(target)))[: math.prod(shape)].reshape(shape)
        places = np.stack(np.unravel_index(flat, np.maximum(target, 1)), -1).astype(np.int64)
    updates = d.array([*shape, *sizes[depth:]], kind, -8, 8)
    operands = (Operand(d.array(sizes, kind)), Operand(places, d.chance(2)), Operand(updates, d.chance(4)))
    return Case("ScatterND", opset, operands, {"reduction": reduction} if opset >= 16 else {}, 1, d.opened())


ONE_HOT = ("int64 int64 int64", "int64 int64 float32", "int32 int32 float32", "float32 float32 float32",
           "int64 int32 float32", "float32 int64 int64")  # fmt: skip


ONE_HOT = (  # element types of indices, depth and values
    "int64 int64 int64", "int64 int64 float32", "int32 int32 float32", "float32 float32 float32",
    "int64 int32 float32", "float32 int64 int64",
)  # fmt: skip


def one_hot(d: Dice) -> Case:
    kind, number, values = d.pick(*ONE_HOT).split()
    shape, depth = d.sizes(d.number(1, 3)), d.number(1, 5)
    indices = Operand(d.array(shape, np.int64, -depth - 2, depth + 2).astype(kind))
    depths = d.parameter([depth] if d.chance(2) else depth, number)
    axis = {"axis": d.signed(d.number(0, len(shape)), len(shape) + 1)}
    given = (indices, depths, d.parameter(d.array([2], values), values))
    return Case("OneHot", d.pick(9, 11), given, axis, 1, d.opened())


FAMILIES = {
    "broadcasting": _family(element_wise, element_wise, element_wise, where, expand, clip),
    "slicing": _family(slice_, slice_, split, squeeze, unsqueeze),
    "padding": _family(pad),
    "pooling": _family(pool, pool, conv, conv_transpose),
    "resize": _family(resize),
    "gather": _family(gather, gather_elements, gather_nd, scatter_elements, scatter_nd, one_hot),
}
