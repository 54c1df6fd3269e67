"""Recurrent layers as compositions: LSTMs whose state is projected, which ONNX does not have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mnnconvert.frontends.torch.decompositions import decomposes


@decomposes("aten::lstm.input")
def projected_lstm(
    x: Any, states: Sequence[Any], weights: Sequence[Any], has_biases: bool, layers: int, dropout: float,
    training: bool, bidirectional: bool, batch_first: bool,
) -> Any:  # fmt: skip
    """Layer after layer, direction after direction, of LSTMs (Sak et al., 2014) with states h = R m of a product R."""
    import torch

    directions, each = 2 if bidirectional else 1, 5 if has_biases else 3
    if len(weights) != layers * directions * each:
        return NotImplemented
    y = x.transpose(0, 1) if batch_first else x
    hidden, cells = [], []
    for layer in range(layers):
        results = []
        for i in range(layer * directions, (layer + 1) * directions):
            backwards, own = i % directions == 1, weights[i * each : (i + 1) * each]
            z, c = _direction(y.flip(0) if backwards else y, states[0][i], states[1][i], own)
            hidden.append(z[-1])
            cells.append(c)
            results.append(z.flip(0) if backwards else z)
        y = torch.cat(results, -1) if bidirectional else results[0]
    return y.transpose(0, 1) if batch_first else y, torch.stack(hidden), torch.stack(cells)


def _direction(x: Any, state: Any, cell: Any, weights: Sequence[Any]) -> tuple[Any, Any]:
    """States h [steps, batch, projected] and the last cell [batch, hidden] of x [steps, batch, size].

    With W h = (W R) m it is an LSTM of m without projection. Its first state is 0, and the first h is fed beside x.
    """
    import torch

    *own, projection = weights
    inner, recurrent, *biases = own
    first = torch.cat([state.unsqueeze(0), state.new_zeros(1, 1, 1).expand(x.shape[0] - 1, *state.shape)])
    wide, start = torch.cat([x, first], -1), torch.zeros_like(cell).unsqueeze(0)
    parts = [torch.cat([inner, recurrent], 1), recurrent @ projection, *biases]
    y, _, last = torch.ops.aten.lstm.input(
        wide, [start, cell.unsqueeze(0)], parts, bool(biases), 1, 0.0, False, False, False
    )
    return y @ projection.t(), last[0]
