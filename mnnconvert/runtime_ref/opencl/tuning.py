"""Which variant of a kernel is the fastest: measured when asked to, and kept for the device."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence

from mnnconvert.runtime_ref.lower import Tensor
from mnnconvert.runtime_ref.opencl.cache import digest
from mnnconvert.runtime_ref.opencl.device import COMMON, Device, source
from mnnconvert.runtime_ref.opencl.lower import Variant

Time = Callable[[Variant, float], float]


class Tuning:
    """Choices among variants on one device: those of earlier processes, and with `measure` those made now.

    Each choice is a file of its own, named by all that may change it: the variants, their sizes, and the text of their
    kernels. So two processes that tune at once lose nothing. Without a choice the first variant is taken.
    """

    def __init__(self, device: Device, measure: bool = False):
        self.device = device
        self.measure = measure

    def best(self, variants: Sequence[Variant], time: Time) -> int:
        """The number of the variant to take; `time` gives the seconds of one, and knows the best so far."""
        described = [_described(v) for v in variants]
        name = f"{digest(*described, *self._sources(variants))}.json"
        kept = self._kept(name, described)
        if kept is not None or not self.measure:
            return kept or 0
        seconds: list[float] = []
        for variant in variants:
            seconds.append(time(variant, min(seconds, default=math.inf)))
        best = seconds.index(min(seconds))
        content = {"best": described[best], "seconds": dict(zip(described, seconds, strict=True))}
        self.device.folder.write(name, json.dumps(content, indent=1).encode())
        return best

    def _kept(self, name: str, described: Sequence[str]) -> int | None:
        content = self.device.folder.read(name)
        if content is None:
            return None
        best = json.loads(content).get("best")
        return described.index(best) if best in described else None

    def _sources(self, variants: Sequence[Variant]) -> list[str]:
        each = [v for variant in variants for v in variant.launches]
        texts = [v.text if v.text is not None else source(v.signature.file) for v in each]
        return [source(COMMON), *dict.fromkeys(texts)]


def _described(variant: Variant) -> str:
    """All that the time of a variant depends on."""
    numbers = {n: a for n, a in variant.arguments.items() if not isinstance(a, Tensor) and not callable(a)}
    types = {n: str(t.dtype) for n, t in variant.tensors.items()}
    before = [_described(v) for v in variant.before]
    return json.dumps([variant.kernel, variant.size, variant.local, dict(variant.defines), numbers, types, *before])
