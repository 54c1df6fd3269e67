"""From a graph and the shapes of its inputs to calls of compiled kernels.

    @lowers(Softmax)
    def softmax(ctx: Lowering, node: Node) -> bool:
        x = ctx.read(node.inputs[0])                       # plain; or ctx.read_blocked(...)
        y = ctx.result(node.output)                        # a new tensor for the result
        ctx.call("softmax", x=x, y=y, rows=..., columns=...)
        return True

Rules live in `lowering/<family>.py`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mnnconvert.errors import ConversionError
from mnnconvert.ir import F32, Graph, Node, Value
from mnnconvert.runtime_ref.cache import Caches, KvCache
from mnnconvert.runtime_ref.chain import MOST_OPERANDS, MOST_RESULTS, Chain
from mnnconvert.runtime_ref.cpu.chain import encode
from mnnconvert.runtime_ref.cpu.library import Kernel, Library, Pool
from mnnconvert.runtime_ref.lower import BLOCKED, LAST, PLAIN, Constants, Rules, Sizes, Tensor
from mnnconvert.runtime_ref.lower import Lowering as GraphLowering
from mnnconvert.runtime_ref.strided import copy_parameters, phantom


@dataclass(eq=False)
class Call:
    """A kernel applied to tensors, for a node and those that it computes along with it."""

    node: Node
    kernel: Kernel
    args: tuple[Tensor | None, ...]
    params: tuple[int, ...]
    scalars: tuple[float, ...]
    along: tuple[Node, ...] = ()

    @property
    def tensors(self) -> list[Tensor]:
        return [a for a in self.args if a is not None]

    @property
    def result_bytes(self) -> int:
        """Bytes of what it makes, which kernels call y, or y0, y1 ..."""
        named = zip(self.kernel.args, self.args, strict=True)
        return sum(t.nbytes for name, t in named if t is not None and name.rstrip("0123456789") == "y")


@dataclass(frozen=True)
class Growth:
    """What a program adds to a cache: keys and values [batch, positions, heads, size], under a mask of `columns`.

    The keys of a cache lie in panels of `panel` neighbours.
    """

    cache: KvCache
    keys: Sizes
    values: Sizes
    columns: int
    panel: int

    def prepare(self) -> None:
        """Make room, before a run."""
        self.cache.reserve(self.keys, self.values, self.panel)
        total = self.cache.length + self.keys[1]
        if self.columns > total:
            what = f"Attention failed: a mask of {self.columns} columns on {total} keys"
            raise ConversionError.of("run-failed", what, node=self.cache.node.name)

    def finish(self) -> None:
        """Count what a run has added."""
        self.cache.length += self.keys[1]


_RULES = Rules()
WIDEST = 1024  # numbers of a key and its value, up to which attention keeps a tile of them in the caches

lowers, finds, RULES = _RULES.lowers, _RULES.finds, _RULES.rules


class Lowering(GraphLowering):
    """Builds the steps for one set of shapes; rules talk to it.

    `exact` is False where activations may be rounded to integers for speed. With `caches` attentions keep keys and
    values from run to run; `growths` is what a run adds to them.
    """

    rules = _RULES
    map_layout = BLOCKED

    def __init__(
        self,
        library: Library,
        pool: Pool,
        constants: Constants,
        wanted: Collection[Value],
        exact: bool = True,
        graphs: Mapping[str, Graph] | None = None,
        caches: Caches | None = None,
    ):
        super().__init__(library.lanes, constants, wanted, graphs, caches)
        self.library = library
        self.pool = pool
        self.exact = exact
        self.growths: list[Growth] = []

    def read_blocked(self, value: Value) -> Tensor:
        """A float feature map [N,C,...] in blocked layout."""
        return self._in(value, BLOCKED)

    def read_last(self, value: Value) -> Tensor:
        """A map of codes [N,C,...] with its channels last."""
        return self._in(value, LAST)

    def channel_first(self, tensor: Tensor) -> np.ndarray:
        """A phantom of a plain tensor or a map of codes as it lies in memory, seen as [N,C,...]."""
        stored = phantom(self.stored(tensor.shape, tensor.layout), tensor.dtype)
        return stored if tensor.layout == PLAIN else np.moveaxis(stored, -1, 1)[:, : tensor.shape[1]]

    def call(self, kernel: str, **values: Any) -> None:
        """Append a call: tensors (or None) and numbers by the names that the kernel declares."""
        found = self.library.kernels[kernel]
        try:
            args = tuple(map(values.pop, found.args))
            params = tuple(map(int, map(values.pop, found.params)))
            scalars = tuple(map(float, map(values.pop, found.scalars)))
        except KeyError as error:
            raise TypeError(f"{kernel} needs {error}") from error
        if values:
            raise TypeError(f"{kernel} has no {', '.join(values)}")
        assert self._current is not None
        self.steps.append(Call(self._current, found, args, params, scalars))

    def once(self, kernel: str, **values: Any) -> None:
        """Run a kernel now, on arrays: for packers."""
        self.library.call(kernel, self.pool, **values)

    def in_panels(self, b: np.ndarray) -> np.ndarray:
        (batch, k, n), panel = b.shape, 2 * self.lanes
        outer, row, column = (stride // b.itemsize for stride in b.strides)
        made = np.empty((batch, -(-n // panel), k, panel), F32)
        memory = np.lib.stride_tricks.as_strided(b, (b.size,), (b.itemsize,))
        self.once("gemm_pack_b", b=memory, packed=made, batch=batch, k=k, n=n, row=row, column=column, outer=outer)
        return made

    def product(self, **arguments: Any) -> None:
        self.call("gemm_f32", **arguments)

    def attends(self, depth: int, width: int) -> bool:
        return 0 < depth <= WIDEST - width

    def attention(self, **arguments: Any) -> None:
        self.call("attention", capacity=0, **arguments)

    def copied(self, tensor: Tensor, view: np.ndarray) -> Tensor:
        made = self.tensor(view.shape)
        if view.size:
            self.call("copy_strided", x=tensor, y=made, **copy_parameters(view, phantom(made.shape, made.dtype)))
        return made

    def chained(self, chain: Chain, tensors: Sequence[Tensor]) -> Tensor:
        code, constants = encode(chain, self.library)
        made = self.tensor(chain.shape)
        named = {f"x{i}": tensors[i] if i < len(tensors) else None for i in range(MOST_OPERANDS)}
        named |= {f"y{i}": made if i == 0 else None for i in range(MOST_RESULTS)}
        code_tensor, numbers = self.literal(code), self.literal(constants)
        self.call("chain", code=code_tensor, constants=numbers, count=made.size, **named)
        return made

    def take_back(self, tensor: Tensor, source: Tensor) -> bool:
        made = next((s for s in reversed(self.steps) if isinstance(s, Call) and s.args[-1] is tensor), None)
        if made is None or made.kernel.name != "copy_strided" or made.args[0] is not source:
            return False
        self.steps.remove(made)
        return True

    def _converted(self, source: Tensor, layout: str) -> Tensor:
        made = self.tensor(source.shape, source.dtype, layout)
        n, c, *spatial = source.shape
        if LAST in (source.layout, layout):
            self.call("copy_strided", x=source, y=made, **copy_parameters(*map(self.channel_first, (source, made))))
            return made
        kernel = "nchw_to_blocked" if layout == BLOCKED else "blocked_to_nchw"
        self.call(kernel, x=source, y=made, batch=n, channels=c, pixels=math.prod(spatial))
        return made
