"""From a graph and the shapes of its inputs to launches of OpenCL kernels.

    @lowers(Softmax)
    def softmax(ctx: Lowering, node: Node) -> bool:
        x = ctx.read(node.inputs[0])                       # plain; or ctx.read_map(...): channels last
        y = ctx.result(node.output)                        # a new tensor for the result
        ctx.call("softmax", size=(rows,), x=x, y=y, rows=..., columns=...)
        return True

Arguments are named as the kernel names its parameters. A kernel is asked for more work-items than `size`: it returns
where its id is beyond. Rules live in `lowering/<family>.py`, kernels in `kernels/<family>.cl`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mnnconvert.ir import F16, F32, I32, Graph, Node, Value
from mnnconvert.ir.tensor import release
from mnnconvert.runtime_ref.cache import Caches
from mnnconvert.runtime_ref.chain import Chain
from mnnconvert.runtime_ref.lower import FOLD_ELEMENTS, LAST, PLAIN, Buffer, Constants, Rules, Sizes, Tensor
from mnnconvert.runtime_ref.lower import Lowering as GraphLowering
from mnnconvert.runtime_ref.opencl.chain import KERNEL, generate
from mnnconvert.runtime_ref.opencl.copies import ITEM, TYPES, group, plan
from mnnconvert.runtime_ref.opencl.device import Defines, Device, Signature, parsed, signatures
from mnnconvert.runtime_ref.opencl.tiles import vectors_of
from mnnconvert.runtime_ref.strided import offset, phantom, split

WIDEST = 256  # numbers of a value, of which items of attention keep some in private memory
MOST_ELEMENTS = 1 << 31  # of a tensor: kernels count in 32 bits

_RULES = Rules()
lowers, finds, RULES = _RULES.lowers, _RULES.finds, _RULES.rules

Argument = Tensor | Callable[[], Tensor] | float | None


@dataclass(frozen=True)
class Variant:
    """One way to do a piece of work: a kernel with its defines, work-items, items of a group, and arguments.

    `local` None leaves the group to the driver. `text` has the kernel where no file of the package has. A constant that
    only this variant needs may be a function that makes it. The variants of `before` are launched before it, in order.
    """

    kernel: str
    size: Sizes
    local: Sizes | None
    defines: Defines
    arguments: Mapping[str, Argument]
    text: str | None = None
    before: tuple[Variant, ...] = ()

    @property
    def launches(self) -> tuple[Variant, ...]:
        """All that is launched, in order."""
        return (*self.before, self)

    @property
    def signature(self) -> Signature:
        """The parameters of the kernel."""
        return parsed(self.text)[self.kernel] if self.text is not None else signatures()[self.kernel]

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors by the names of their parameters, but for those that are still to be made."""
        return {name: a for name, a in self.arguments.items() if isinstance(a, Tensor)}


@dataclass(eq=False)
class Launch:
    """Work for a node, and for those that are computed along with it: the default variant first."""

    node: Node
    variants: Sequence[Variant]
    along: tuple[Node, ...] = ()

    @property
    def tensors(self) -> list[Tensor]:
        each = (v for variant in self.variants for v in variant.launches)
        return list({id(t): t for v in each for t in v.tensors.values()}.values())

    @property
    def result_bytes(self) -> int:
        """Bytes of what it makes, which kernels call y, or y0, y1 ..."""
        named = self.variants[0].tensors.items()
        return sum(t.nbytes for name, t in named if name.rstrip("0123456789") == "y")


@dataclass
class DeviceConstants(Constants):
    """Constants of one session; those that kernels read lie on the device alone."""

    tensors: dict[object, Tensor] = field(default_factory=dict)


class Lowering(GraphLowering):
    """Builds the steps for one set of shapes; rules talk to it.

    Feature maps lie with channels last (`LAST`): [N, ..., ceil(C/lanes) * lanes], where lanes beyond C hold anything.
    With `half` floats lie as float16; kernels compute in float32.
    """

    rules = _RULES
    map_layout = LAST

    def __init__(
        self,
        device: Device,
        constants: DeviceConstants,
        wanted: Collection[Value],
        graphs: Mapping[str, Graph] | None = None,
        caches: Caches | None = None,
        half: bool = False,
    ):
        super().__init__(device.lanes, constants, wanted, graphs, caches)
        self.device = device
        self.half = half
        self.held = constants.tensors
        self.faults: Tensor | None = None
        self.faulty: list[Node] = []  # those that may write to it

    # What rules ask.

    @property
    def limits(self) -> Any:
        """What kernels have to keep to."""
        return self.device.limits

    def channels(self, value: Value) -> int:
        """The channels of a map [N,C,...] as it lies."""
        return -(-self.shape(value)[1] // self.lanes) * self.lanes

    def static(self, key: object, make: Callable[[], np.ndarray], exactly: bool = False) -> Tensor:
        """An array that depends on nothing but `key`, on the device; floats lie as `real`, or `exactly` as they are."""
        if key not in self.held:
            self.held[key] = self._uploaded(make(), exactly)
        return self.held[key]

    def literal(self, array: np.ndarray, exactly: bool = False) -> Tensor:
        """A small array that belongs to this program alone, on the device."""
        return self._uploaded(np.asarray(array), exactly)

    def held_image(self, constant: Tensor, arranged: Callable[[np.ndarray], np.ndarray]) -> Tensor:
        """A constant of the device as an image, made once: four neighbours of an array [lines, ...] are a texel."""
        key = "image", id(constant)
        if key not in self.held:
            array = arranged(self.device.download(constant.buffer.device, constant.shape, constant.dtype))
            image = self.device.image(array.reshape(array.shape[0] * array.shape[1], -1, 4))
            self.held[key] = Tensor(Buffer(constant.nbytes, device=image), constant.shape, constant.dtype)
        return self.held[key]

    def lying(self, value: Value, layout: str = "") -> Tensor:
        """A value where it lies, in `layout` if so too; maybe inside of a buffer, for kernels with an `x_at`."""
        lies = self.layouts(value)
        return super()._in(value, layout if layout in lies else next(iter(lies), PLAIN))

    def seen(self, tensor: Tensor) -> np.ndarray:
        """A phantom of a tensor as it lies in memory, seen under its shape."""
        stored = phantom(self.stored(tensor.shape, tensor.layout), tensor.dtype)
        return stored if tensor.layout == PLAIN else np.moveaxis(stored, -1, 1)[:, : tensor.shape[1]]

    def places(self, shape: Sequence[int], x: Tensor, view: np.ndarray) -> list[Tensor]:
        """The tensors of `shape`, plain or a map, that a view of what is `seen` of `x` is without a copy."""
        try:
            view = split(view, shape)
        except ValueError:
            return []
        at, found = x.offset + offset(view), []
        for layout in (PLAIN, LAST) if len(shape) > 2 and x.dtype == self.storage(F32) else (PLAIN,):
            made = Tensor(x.buffer, tuple(shape), x.dtype, layout, at)
            lies = zip(shape, view.strides, self.seen(made).strides, strict=True)
            inside = at + math.prod(self.stored(shape, layout)) * x.dtype.itemsize <= x.buffer.nbytes
            if inside and all(s == t for n, s, t in lies if n > 1):
                found.append(made)
        return found

    # What rules do.

    def fault(self) -> dict[str, Argument]:
        """The arguments `fault` and `number` of a kernel that writes the number where an index has no element."""
        assert self._current is not None
        if self.faults is None:
            self.faults = self.literal(np.zeros(1, I32))
        self.faulty.append(self._current)
        return {"fault": self.faults, "number": len(self.faulty)}

    def copy(self, x: Tensor, source: np.ndarray, y: Tensor, target: np.ndarray) -> None:
        """Copy a view of what is `seen` of `x` to one of `y`; ValueError where it has too many axes."""
        if not target.size:
            return
        made = plan(source, target, ITEM if self.device.is_cpu else self.lanes)
        itemsize = x.dtype.itemsize
        places = {
            "x_at": made.numbers["x_at"] + x.offset // itemsize,
            "y_at": made.numbers["y_at"] + y.offset // itemsize,
        }
        local = group(made.size, min(ITEM, target.size)) if self.device.is_cpu else None
        numbers = {**made.numbers, **places}
        self.call(made.kernel, made.size, local=local, defines={"T": TYPES[itemsize]}, x=x, y=y, **numbers)

    def tensor(self, shape: Sequence[int], dtype: Any = F32, layout: str = PLAIN, over: Tensor | None = None) -> Tensor:
        """A new tensor of the arena; see `GraphLowering.tensor`."""
        return super().tensor(shape, self.storage(dtype), layout, over)

    def storage(self, dtype: Any) -> np.dtype:
        """How elements of a type lie in memory."""
        return F16 if self.half and np.dtype(dtype) == F32 else np.dtype(dtype)

    def variant(
        self, kernel: str, size: Sequence[int], local: Sequence[int] | None = None, defines: Defines | None = None,
        text: str | None = None, **arguments: Argument,
    ) -> Variant:  # fmt: skip
        """One way to do a piece of work; TypeError where the arguments are not those of the kernel.

        A parameter `NAME_at` is where the tensor NAME begins in its buffer, in elements, and needs not be given.
        """
        made = Variant(
            kernel, tuple(size), None if local is None else tuple(local), dict(defines or {}), arguments, text
        )
        for name, tensor in made.tensors.items():
            if f"{name}_at" in made.signature.parameters:
                arguments.setdefault(f"{name}_at", tensor.offset // tensor.dtype.itemsize)
            elif tensor.offset % self.device.alignment:
                raise TypeError(f"{kernel} takes no {name} inside of a buffer")
        if arguments.keys() != made.signature.parameters.keys():
            raise TypeError(f"{kernel} takes {', '.join(made.signature.parameters)}, not {', '.join(arguments)}")
        return made

    def call(self, kernel: str, size: Sequence[int], **arguments: Any) -> None:
        """Append work that there is one way to do; see `variant`."""
        self.choose([self.variant(kernel, size, **arguments)])

    def choose(self, variants: Sequence[Variant]) -> None:
        """Append work that can be done in several ways: the first one, or the one that tuning has found to be fastest.

        Tuning runs all of them on whatever lies in memory: they read where they read for any data.
        """
        assert self._current is not None
        legal = [v for v in variants if all(self._is_legal(each) for each in v.launches)]
        self.steps.append(Launch(self._current, legal or variants[:1]))

    def _is_legal(self, variant: Variant) -> bool:
        return variant.local is None or math.prod(variant.local) <= self.limits.work_group

    # The walk over the graph.

    def feed(self, value: Value, shape: Sizes, content: np.ndarray | None = None) -> None:
        super().feed(value, shape, content)
        dtype = self.storage(value.dtype)
        self.define(value, Tensor(Buffer(math.prod(shape) * dtype.itemsize, fed=value), shape, dtype))

    def _constant_tensor(self, value: Value, content: np.ndarray) -> Tensor:
        if value.tensor is None:
            return self.literal(np.asarray(content, value.dtype))
        key = id(value.tensor)
        made = self.static(("plain", key), lambda: content)
        if content.size > FOLD_ELEMENTS:  # rules do not look at its content again
            self.constants.arrays.pop(key, None)
            release(value.tensor)
        return made

    def _uploaded(self, array: np.ndarray, exactly: bool) -> Tensor:
        array = array if exactly else array.astype(self.storage(array.dtype), copy=False)
        return Tensor(Buffer(array.nbytes, device=self.device.upload(array)), tuple(array.shape), array.dtype)

    # What products ask.

    def in_panels(self, b: np.ndarray) -> np.ndarray:
        batch, k, n = b.shape
        panel = vectors_of(self.lanes, n) * self.lanes
        filled = np.zeros((batch, k, -(-n // panel) * panel), F32)
        filled[..., :n] = b
        return filled.reshape(batch, k, -1, panel).swapaxes(1, 2)

    def product(self, **arguments: Any) -> None:
        from mnnconvert.runtime_ref.opencl.product import append

        append(self, **arguments)

    def attends(self, depth: int, width: int) -> bool:
        return depth > 0 and 0 < width <= WIDEST

    def attention(self, **arguments: Any) -> None:
        from mnnconvert.runtime_ref.opencl.attention import append

        append(self, **arguments)

    def copied(self, tensor: Tensor, view: np.ndarray) -> Tensor:
        made = self.tensor(view.shape)
        self.copy(tensor, view, made, self.seen(made))
        return made

    def chained(self, chain: Chain, tensors: Sequence[Tensor]) -> Tensor:
        made, kernel = self.tensor(chain.shape), generate(chain, self.lanes)
        operands = {f"x{i}": tensor for i, tensor in enumerate(tensors)}
        self.call(KERNEL, kernel.size, text=kernel.text, **operands, y0=made, **kernel.numbers)
        return made

    def take_back(self, tensor: Tensor, source: Tensor) -> bool:
        for step in reversed(self.steps):
            if isinstance(step, Launch) and tensor in step.tensors:
                copied = step.variants[0].kernel.startswith("copy_") and step.variants[0].tensors["x"] is source
                if copied:
                    self.steps.remove(step)
                return copied
        return False

    def _in(self, value: Value, layout: str) -> Tensor:
        found = super()._in(value, layout)
        if found.offset % self.device.alignment == 0:
            return found
        made = self._converted(found, layout)
        self.define(value, made)
        return made

    def _converted(self, source: Tensor, layout: str) -> Tensor:
        for tensor in self.places(source.shape, source, self.seen(source)):
            if tensor.layout == layout and tensor.offset % self.device.alignment == 0:
                return tensor
        made = self.tensor(source.shape, source.dtype, layout)
        self.copy(source, self.seen(source), made, self.seen(made))
        return made
