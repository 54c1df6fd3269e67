"""Keys and values that the attentions of a session keep from run to run."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from mnnconvert.errors import UsageError
from mnnconvert.ir import Node
from mnnconvert.ops.attention import Attention

FIRST_ROWS = 64  # places for positions in a cache that has just been made


@dataclass(eq=False)
class KvCache:
    """Keys [B,K,capacity,D] and values [B,K,capacity,W] of one attention, of which `length` positions are in use.

    The capacity doubles when it is too small, so that a step costs the same however long the text is.
    """

    node: Node
    keys: np.ndarray | None = None
    values: np.ndarray | None = None
    length: int = 0
    place: np.ndarray = field(default_factory=lambda: np.zeros(2, np.int64))
    """Length and capacity, where kernels read them."""

    def reserve(self, k: tuple[int, ...], v: tuple[int, ...]) -> None:
        """Make room for rows of these shapes, [B,S,K,D] and [B,S,K,W]; UsageError where they do not fit what is kept.

        Memory without anything in it is made anew for other sizes.
        """
        if self.length == 0 and self.keys is not None and self._sizes() != (k[0], k[2], k[3], v[3]):
            self.keys = self.values = None
        if self.keys is not None and self._sizes() != (k[0], k[2], k[3], v[3]):
            raise UsageError.of(
                "bad-input", f"the cache of '{self.node.name}' holds keys and values of other sizes",
                kept=self._sizes(), given=(k[0], k[2], k[3], v[3]), hint="reset() the session before another batch",
            )  # fmt: skip
        needed = self.length + k[1]
        if self.keys is None or needed > self.keys.shape[2]:
            capacity = FIRST_ROWS
            while capacity < needed:
                capacity *= 2
            self.keys = self._grown(self.keys, (k[0], k[2], capacity, k[3]))
            self.values = self._grown(self.values, (v[0], v[2], capacity, v[3]))
        self.place[:] = self.length, self.keys.shape[2]

    def append(self, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """All keys and values [B,T,K,...], these rows [B,S,K,...] being the last; views of the cache."""
        self.reserve(k.shape, v.shape)
        begin, self.length = self.length, self.length + k.shape[1]
        whole = []
        for kept, new in ((self.keys, k), (self.values, v)):
            assert kept is not None  # reserved
            rows = np.moveaxis(kept, 1, 2)
            rows[:, begin : self.length] = new
            whole.append(rows[:, : self.length])
        return whole[0], whole[1]

    def _sizes(self) -> tuple[int, int, int, int]:
        assert self.keys is not None and self.values is not None
        return (*self.keys.shape[:2], self.keys.shape[3], self.values.shape[3])

    def _grown(self, kept: np.ndarray | None, shape: tuple[int, ...]) -> np.ndarray:
        made = np.zeros(shape, np.float32)
        if kept is not None:
            made[:, :, : self.length] = kept[:, :, : self.length]
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
