"""Keys and values that the attentions of a session keep from run to run."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from mnnconvert.errors import UsageError
from mnnconvert.ir import Node
from mnnconvert.ops.attention import Attention

Sizes = tuple[int, ...]

FIRST_ROWS = 64  # places for positions in a cache that has just been made


@dataclass(eq=False)
class KvCache:
    """Keys and values of one attention, of which `length` positions are in use.

    They lie in panels, as products read them (panels of 1 for numpy): keys are [B,K,capacity/panel,D,panel], values
    [B,K,W/panel,capacity,panel] with W filled up. The capacity doubles when it is too small, so that a step costs the
    same however long the text is.
    """

    node: Node
    keys: np.ndarray | None = None
    values: np.ndarray | None = None
    length: int = 0
    width: int = 0  # of a value
    place: np.ndarray = field(default_factory=lambda: np.zeros(2, np.int64))
    """Length and capacity, where kernels read them."""

    def reserve(self, k: Sizes, v: Sizes, panel: int) -> None:
        """Make room for rows of these shapes, [B,S,K,D] and [B,S,K,W]; UsageError where they do not fit what is kept.

        A cache without anything in it takes any sizes.
        """
        given = (k[0], k[2], k[3], v[3], panel)
        if self.length == 0 and self.keys is not None and self._sizes() != given:
            self.keys = self.values = None
        if self.keys is not None and self._sizes() != given:
            raise UsageError.of(
                "bad-input", f"the cache of '{self.node.name}' holds keys and values of other sizes",
                kept=self._sizes()[:4], given=given[:4], hint="reset() the session before another batch",
            )  # fmt: skip
        needed, capacity = self.length + k[1], self._capacity()
        if self.keys is None or self.values is None or needed > capacity:
            capacity = max(capacity, FIRST_ROWS)
            while capacity < needed:
                capacity *= 2
            self.keys = _grown(self.keys, (*given[:2], capacity // panel, k[3], panel))
            self.values = _grown(self.values, (*given[:2], -(-v[3] // panel), capacity, panel))
            self.width = v[3]
        self.place[:] = self.length, capacity

    def append(self, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """All keys and values [B,T,K,...], these rows [B,S,K,...] being the last; views of the cache."""
        self.reserve(k.shape, v.shape, 1)
        assert self.keys is not None and self.values is not None  # reserved
        begin, self.length = self.length, self.length + k.shape[1]
        keys, values = self.keys[..., 0].transpose(0, 2, 1, 3), self.values[..., 0].transpose(0, 3, 1, 2)
        keys[:, begin : self.length], values[:, begin : self.length] = k, v
        return keys[:, : self.length], values[:, : self.length]

    def _capacity(self) -> int:
        return 0 if self.values is None else self.values.shape[3]

    def _sizes(self) -> tuple[int, int, int, int, int]:
        """Batch, heads, size of keys and values, and of panels."""
        assert self.keys is not None
        return (*self.keys.shape[:2], self.keys.shape[3], self.width, self.keys.shape[4])


def _grown(kept: np.ndarray | None, shape: Sizes) -> np.ndarray:
    """A copy with more places on an axis."""
    made = np.zeros(shape, np.float32)
    if kept is not None:
        made[tuple(slice(size) for size in kept.shape)] = kept
    return made


class Caches:
    """The caches of all attentions of a session."""

    def __init__(self) -> None:
        self._caches: dict[Node, KvCache] = {}

    def of(self, node: Node) -> KvCache | None:
        """The cache of a node, if its op keeps keys and values."""
        if not isinstance(node.op, Attention) or not node.op.kv_cache:
            return None
        return self._caches.setdefault(node, KvCache(node))

    def lengths(self) -> dict[Node, int]:
        """How many positions each cache holds."""
        return {node: cache.length for node, cache in self._caches.items()}

    def cut(self, lengths: dict[Node, int]) -> None:
        """Forget what came after `lengths` were taken."""
        for node, cache in self._caches.items():
            cache.length = lengths.get(node, 0)
