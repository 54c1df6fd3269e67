"""The decoder that all families share: attention and a gated product per layer, between embeddings and logits.

The graph is what MNN's runtime for language models calls: embeddings of some tokens, their mask and positions, and the
first row of which logits are wanted. Keys and values of earlier calls are kept by the `Attention` op.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from mnnconvert.errors import ConversionError, Diagnostic
from mnnconvert.frontends.common.compose import apply, calc, cast, reshape
from mnnconvert.frontends.common.moves import FAR, sliced
from mnnconvert.frontends.llm.rotary import Rotary
from mnnconvert.ir import F32, I32, Builder, Graph, Tensor, Value
from mnnconvert.ir.tensor import reshaped
from mnnconvert.ir.types import format_shape
from mnnconvert.ops.arrange import Concat
from mnnconvert.ops.attention import Attention
from mnnconvert.ops.convolution import Convolution
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.normalization import LayerNorm
from mnnconvert.ops.shape import Reshape
from mnnconvert.ops.slicing import StridedSlice

INPUTS = ("input_ids", "attention_mask", "position_ids", "logits_index")


class Weights(Protocol):
    """The weights of a checkpoint by the names of Hugging Face, without `.weight`."""

    def matrix(self, name: str) -> Tensor: ...
    def vector(self, name: str) -> np.ndarray: ...
    def has(self, name: str) -> bool: ...


@dataclass(frozen=True)
class Decoder:
    """Sizes and switches of a decoder.

    `heads` query heads share `groups` key heads of `size` elements; `windows` holds for each layer how many keys a
    query sees (0: all) and `rotary` the rotation of its positions. `score_scale` multiplies scores (0: 1 / sqrt(size)),
    `norm_offset` is added to the gains of norms, `embedding_scale` multiplies embeddings, `logit_cap` c makes of logits
    c tanh(x / c) (0: leaves them). `sandwich`: norms follow attention and product too, before their sums.
    """

    vocabulary: int
    width: int
    inner: int
    heads: int
    groups: int
    size: int
    epsilon: float
    rotary: tuple[Rotary, ...]
    windows: tuple[int, ...]
    activation: str = "SILU"
    tied: bool = False
    head_norms: bool = False
    sandwich: bool = False
    norm_offset: float = 0.0
    embedding_scale: float = 1.0
    score_scale: float = 0.0
    logit_cap: float = 0.0
    notes: tuple[Diagnostic, ...] = ()

    @property
    def window(self) -> int:
        """The window of those layers that have one, 0 where none has."""
        return max(self.windows)

    @property
    def positions(self) -> int:
        """How many tokens a text may have for which the positions are right; 0 where these are for any."""
        return min((r.positions for r in self.rotary if r.positions), default=0)

    @property
    def layers(self) -> int:
        return len(self.windows)


def decoder_graph(decoder: Decoder, weights: Weights) -> Graph:
    """Embeddings [S,1,width], mask [1,1,S,T], positions int32 [1,S], first row int32 [1] -> logits [1,rows,vocabulary].

    The mask is float and added to scores; T counts the keys of earlier calls too. Rows before the first are left out,
    and a negative one counts from the end. Where layers have a window the mask is [2,1,1,S,T]: that of the layers
    without, and that of those with one.
    """
    made = _Decoder(decoder, weights)
    made.build()
    return made.b.graph


class _Decoder:
    """The graph under construction."""

    def __init__(self, decoder: Decoder, weights: Weights):
        self.decoder, self.weights, self.b = decoder, weights, Builder()
        self.b.graph.source = "ONNX"
        mask = (1, 1, "tokens", "keys")
        shapes = ("tokens", 1, decoder.width), (2, 1, *mask[1:]) if decoder.window else mask, (1, "tokens"), (1,)
        kinds = F32, F32, I32, I32
        self.embedded, self.mask, self.positions, self.first = (
            self.b.input(*each) for each in zip(INPUTS, kinds, shapes, strict=True)
        )
        self._turns: dict[Rotary, tuple[Value, Value]] = {}
        self._masks: dict[int, Value] = {} if decoder.window else {0: self.mask}

    def build(self) -> None:
        b, decoder = self.b, self.decoder
        x = reshape(b, self.embedded, (1, -1, decoder.width))
        if decoder.embedding_scale != 1:
            x = calc(b, "MUL", x, decoder.embedding_scale)
        for number in range(decoder.layers):
            with b.at(f"layers.{number}"):
                x = self._layer(x, number)
        with b.at("head"):
            x = b.add(StridedSlice(), x, self.first, b.ints([FAR]), b.ints([1]), b.ints([1]))
            x = self._norm(x, "model.norm")
            logits = self._linear(x, "lm_head", decoder.vocabulary)
            logits = self._capped(reshape(b, logits, (1, -1, decoder.vocabulary)))
        b.output(logits, "logits")

    def _layer(self, x: Value, number: int) -> Value:
        key, sandwich = f"model.layers.{number}", self.decoder.sandwich
        y = self._attention(self._norm(x, f"{key}.input_layernorm"), number, f"{key}.self_attn")
        y = self._norm(y, f"{key}.post_attention_layernorm") if sandwich else y
        x = calc(self.b, "ADD", x, y)
        before = "pre_feedforward_layernorm" if sandwich else "post_attention_layernorm"
        y = self._gated(self._norm(x, f"{key}.{before}"), f"{key}.mlp")
        y = self._norm(y, f"{key}.post_feedforward_layernorm") if sandwich else y
        return calc(self.b, "ADD", x, y)

    def _attention(self, x: Value, number: int, key: str) -> Value:
        b, decoder = self.b, self.decoder
        q, k, v = self._heads(x, key)
        if decoder.head_norms:
            q, k = self._norm(q, f"{key}.q_norm"), self._norm(k, f"{key}.k_norm")
        q, k = (self._rotated(y, decoder.rotary[number]) for y in (q, k))
        scale = decoder.score_scale * float(decoder.size) ** 0.5
        if scale and scale != 1:  # the runtime does not look at a scale of the op
            q = calc(b, "MUL", q, scale)
        op = Attention(kv_cache=True, layer_index=number)
        mixed = b.add(op, q, k, v, self._mask(decoder.windows[number]), name=f"{key}.attention")
        return self._linear(mixed, f"{key}.o_proj", decoder.width)

    def _heads(self, x: Value, key: str) -> list[Value]:
        """Queries, keys and values [1, S, heads, size]."""
        decoder = self.decoder
        counts = decoder.heads, decoder.groups, decoder.groups
        if self.weights.has(f"{key}.qkv_proj"):
            joined = self._linear(x, f"{key}.qkv_proj", sum(counts) * decoder.size)
            joined = reshape(self.b, joined, (1, -1, sum(counts), decoder.size))
            ends = np.cumsum(counts).tolist()
            return [sliced(self.b, joined, 2, end - count, end) for count, end in zip(counts, ends, strict=True)]
        names = (f"{key}.{n}_proj" for n in "qkv")
        parts = (self._linear(x, name, n * decoder.size) for name, n in zip(names, counts, strict=True))
        return [reshape(self.b, y, (1, -1, n, decoder.size)) for y, n in zip(parts, counts, strict=True)]

    def _gated(self, x: Value, key: str) -> Value:
        b, inner = self.b, self.decoder.inner
        if self.weights.has(f"{key}.gate_up_proj"):
            joined = self._linear(x, f"{key}.gate_up_proj", 2 * inner)
            gate, up = sliced(b, joined, 2, 0, inner), sliced(b, joined, 2, inner)
        else:
            gate, up = (self._linear(x, f"{key}.{n}_proj", inner) for n in ("gate", "up"))
        product = calc(b, "MUL", apply(b, self.decoder.activation, gate), up)
        return self._linear(product, f"{key}.down_proj", self.decoder.width)

    def _linear(self, x: Value, name: str, outputs: int) -> Value:
        """x W^T + bias on the last axis, as the 1x1 convolution that the runtime has such products as: [1, S, outputs].
        The bias is that of the checkpoint, or zero."""
        b, inputs = self.b, x.shape[-1] if x.shape else None
        tensor = self.weights.matrix(name)
        weight = b.constant(reshaped(tensor, (*tensor.shape, 1, 1)), f"{name}.weight")
        bias = (
            self.weights.vector(f"{name}.bias") if self.weights.has(f"{name}.bias") else np.zeros(outputs, np.float32)
        )
        if tensor.shape != (outputs, inputs) or bias.shape != (outputs,):
            raise ConversionError.of("bad-checkpoint", f"'{name}' is {list(tensor.shape)}, not {[outputs, inputs]}")
        rows = b.add(Reshape((-1, inputs, 1, 1)), x)  # type: ignore[arg-type]
        y = b.add(Convolution(), rows, weight, b.constant(bias, f"{name}.bias"), name=name)
        return reshape(b, y, (1, -1, outputs))

    def _norm(self, x: Value, name: str) -> Value:
        gain = self.weights.vector(name) + np.float32(self.decoder.norm_offset)
        if x.shape is None or gain.shape != x.shape[-1:]:
            raise ConversionError.of("bad-checkpoint", f"'{name}' has {gain.size} elements for {format_shape(x.shape)}")
        op = LayerNorm(axes=(-1,), epsilon=self.decoder.epsilon, rms=True)
        return self.b.add(op, x, self.b.constant(gain), self.b.constant(np.zeros_like(gain)), name=name)

    def _capped(self, logits: Value) -> Value:
        cap = self.decoder.logit_cap
        if not cap:
            return logits
        return calc(self.b, "MUL", apply(self.b, "TANH", calc(self.b, "MUL", logits, 1 / cap)), cap)

    def _rotated(self, x: Value, rotary: Rotary) -> Value:
        """Pairs (x[i], x[i + n]) of the first 2 n elements of every head, turned by their angles."""
        b, n = self.b, len(rotary.frequencies)
        cos, sin = self._turn(rotary)
        u, v = sliced(b, x, 3, 0, n), sliced(b, x, 3, n, 2 * n)
        first = calc(b, "SUB", calc(b, "MUL", u, cos), calc(b, "MUL", v, sin))
        second = calc(b, "ADD", calc(b, "MUL", v, cos), calc(b, "MUL", u, sin))
        rest = [sliced(b, x, 3, 2 * n)] if 2 * n < self.decoder.size else []
        return b.add(Concat(3), first, second, *rest)

    def _turn(self, rotary: Rotary) -> tuple[Value, Value]:
        """cos and sin [1, S, 1, n] of the angles at the positions, made once for all layers."""
        if rotary not in self._turns:
            b = self.b
            at = reshape(b, cast(b, self.positions, F32), (1, -1, 1, 1))
            angles = calc(b, "MUL", at, np.asarray(rotary.frequencies, np.float32))
            cos, sin = (apply(b, name, angles) for name in ("COS", "SIN"))
            if rotary.scale != 1:
                cos, sin = (calc(b, "MUL", y, rotary.scale) for y in (cos, sin))
            self._turns[rotary] = cos, sin
        return self._turns[rotary]

    def _mask(self, window: int) -> Value:
        """The mask of a layer with this window."""
        if window not in self._masks:
            self._masks[window] = self.b.add(GatherV2(), self.mask, self.b.ints(int(window > 0)), self.b.ints(0))
        return self._masks[window]
