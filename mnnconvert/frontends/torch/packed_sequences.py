"""Packed sequences of scripts: kept as padded tensors with lengths, which recurrent layers of ONNX take as they are.

torch packs sequences into one tensor of as many rows as they have steps in all, which no program can have whose lengths
are data. Here the packed tensor and the sizes of its batches are stand-ins; only packing, recurrent layers and padding
take them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from mnnconvert.errors import ConversionError
from mnnconvert.frontends.torch.translations import constant, node, nodes, translates

LAYER = "mnnconvert::layer_of_lengths"
GATES = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN_TANH": (0,), "RNN_RELU": (0,)}
"""The order in which ONNX has the gates of torch."""


@dataclass(frozen=True)
class Packed:
    """Sequences x [steps, batch, size] that are padded, of which `lengths` [batch] steps are theirs."""

    x: Any
    lengths: Any


@dataclass(frozen=True)
class BatchSizes:
    """How many of the sequences go on at each step."""

    packed: Packed


def find_packed(name: str, operands: Sequence[Any]) -> Callable[..., Any] | None:
    """What computes the operator `name` on packed sequences; None for operands that are none."""
    if name in _MAKING:
        return _MAKING[name]
    if not any(isinstance(x, Packed | BatchSizes) for x in operands):
        return None
    if name not in _TAKING:
        raise ConversionError.of(
            "unsupported-op", f"the script calls {name} on the data of packed sequences", op=name,
            hint="pad them first: torch.nn.utils.rnn.pad_packed_sequence",
        )  # fmt: skip
    return _TAKING[name]


def _pack(x: Any, lengths: Any, batch_first: bool) -> tuple[Packed, BatchSizes]:
    packed = Packed(x.transpose(0, 1) if batch_first else x, lengths)
    return packed, BatchSizes(packed)


def _pad(packed: Packed, _: BatchSizes, batch_first: bool, value: float, steps: Any) -> tuple[Any, Any]:
    """Sequences [steps, batch, size] with `value` behind their ends, and their lengths; -1 for the longest's steps."""
    import torch

    x, most = packed.x, packed.x.shape[0]
    if value:
        ended = torch.arange(most).unsqueeze(1) >= packed.lengths
        x = torch.where(ended.unsqueeze(-1), value, x)
    steps = _longest(packed) if isinstance(steps, int) and steps < 0 else steps
    if isinstance(steps, int) and isinstance(most, int) and steps > most:
        x = torch.nn.functional.pad(x, (0, 0, 0, 0, 0, steps - most), value=value)
    else:
        x = x.narrow(0, 0, steps)
    return x.transpose(0, 1) if batch_first else x, packed.lengths


def _longest(packed: Packed) -> Any:
    """The length of the longest sequence: a number that the program computes."""
    import torch

    longest = packed.lengths.max().item()
    torch._check(longest >= 1)
    torch._check(longest <= packed.x.shape[0])
    return longest


def _layers(kind: str) -> Callable[..., Any]:
    """The layers of a recurrent network, from the lowest on; its last states of every layer and direction."""

    def run(
        packed: Packed, _: BatchSizes, states: Any, weights: Sequence[Any], has_biases: bool, count: int,
        dropout: float, training: bool, bidirectional: bool,
    ) -> tuple[Any, ...]:  # fmt: skip
        import torch

        first = list(states) if kind == "LSTM" else [states]
        directions, each = 2 if bidirectional else 1, 4 if has_biases else 2
        if len(weights) != count * directions * each:
            raise ConversionError.of("unsupported-attribute", "the states of packed sequences are projected", op=kind)
        x, last = packed.x, []
        for layer in range(count):
            own = slice(layer * directions, (layer + 1) * directions)
            part = weights[own.start * each : own.stop * each]
            x, *after = operator()(kind, x, packed.lengths, [s[own] for s in first], list(part), has_biases)
            last.append(after)
        done = [torch.cat(state) for state in zip(*last, strict=True)]
        return (Packed(x, packed.lengths), *done[: len(first)])

    return run


_MAKING: dict[str, Callable[..., Any]] = {"aten::_pack_padded_sequence": _pack}
_TAKING: dict[str, Callable[..., Any]] = {
    "aten::_pad_packed_sequence": _pad,
    "aten::lstm.data": _layers("LSTM"),
    "aten::gru.data": _layers("GRU"),
    "aten::rnn_tanh.data": _layers("RNN_TANH"),
    "aten::rnn_relu.data": _layers("RNN_RELU"),
    "aten::select.int": lambda sizes, axis, index: sizes.packed.x.shape[1],  # only the first is asked for: all go on
    "aten::size.int": lambda sizes, axis: _longest(sizes.packed),
}


@cache
def operator() -> Any:
    """One layer, both ways where it has the weights for it: its states [steps, batch, size], and the last ones.

    The third result is the last cells of an LSTM; other kinds give their states once more.
    """
    import torch

    def run(kind: str, x: Any, lengths: Any, states: list[Any], weights: list[Any], has_biases: bool) -> Any:
        both = len(weights) == (8 if has_biases else 4)
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths.cpu(), enforce_sorted=False)
        order, back = packed.sorted_indices, packed.unsorted_indices
        first = [s.index_select(1, order) for s in states]
        call = getattr(torch._VF, kind.lower())
        given = first if kind == "LSTM" else first[0]
        y, *last = call(packed.data, packed.batch_sizes, given, weights, has_biases, 1, 0.0, False, both)
        whole = torch.nn.utils.rnn.PackedSequence(y, packed.batch_sizes, order, back)
        y, _ = torch.nn.utils.rnn.pad_packed_sequence(whole, total_length=x.shape[0])
        last = [s.index_select(1, back) for s in last]
        return y, last[0], last[-1].clone()

    schema = "(str kind, Tensor x, Tensor lengths, Tensor[] states, Tensor[] weights, bool biases)"
    made = torch.library.custom_op(LAYER, run, mutates_args=(), schema=f"{schema} -> (Tensor, Tensor, Tensor)")

    def sizes(kind: str, x: Any, lengths: Any, states: list[Any], weights: list[Any], has_biases: bool) -> Any:
        hidden, directions = states[0].shape[-1], states[0].shape[0]
        return x.new_empty(*x.shape[:2], directions * hidden), *(states[0].new_empty(states[0].shape) for _ in range(2))

    made.register_fake(sizes)
    return made


@translates(LAYER)
def layer_of_lengths(
    kind: str, x: Any, lengths: Any, states: Sequence[Any], weights: Sequence[Any], biases: bool
) -> Any:
    """A recurrent layer of ONNX, whose gates have another order."""
    each = 4 if biases else 2
    parts = [weights[i : i + each] for i in range(0, len(weights), each)]
    w, r = (_stacked([_ordered(p[i], kind) for p in parts]) for i in (0, 1))
    both = [node("Concat", [_ordered(p[i], kind) for i in (2, 3)], axis=0) for p in parts] if biases else []
    count = node("Cast", (lengths,), to=6)  # TensorProto.INT32
    operands = (x, w, r, _stacked(both) if both else None, count, *states)
    name, _, function = kind.partition("_")
    more: dict[str, Any] = {"linear_before_reset": 1} if name == "GRU" else {}
    more |= {"activations": [function.capitalize()] * len(parts)} if function else {}
    direction = "bidirectional" if len(parts) == 2 else "forward"
    y, *last = nodes(
        name, operands, 3 if name == "LSTM" else 2, hidden_size=states[0].shape[-1], direction=direction, **more
    )
    turned = node("Transpose", (y,), perm=[0, 2, 1, 3])
    return node("Reshape", (turned, constant(0, 0, -1))), last[0], node("Identity", (last[-1],))


def _ordered(matrix: Any, kind: str) -> Any:
    """The rows of a weight, or a bias, gate by gate in the order of ONNX."""
    order = GATES[kind]
    size = matrix.shape[0] // len(order)
    if len(order) == 1:
        return matrix
    parts = [node("Slice", (matrix, constant(g * size), constant((g + 1) * size))) for g in order]
    return node("Concat", parts, axis=0)


def _stacked(parts: Sequence[Any]) -> Any:
    """Directions on an axis in front."""
    rows = [node("Unsqueeze", (p, constant(0))) for p in parts]
    return rows[0] if len(rows) == 1 else node("Concat", rows, axis=0)
