"""Which vectors hold the same bytes, found out without reading all of them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from mnnconvert.ir.tensor import SAMPLED, picked
from mnnconvert.schema.base import Payload


@dataclass
class Content:
    """The bytes of a vector, in memory or not."""

    value: NDArray[Any] | Payload
    nbytes: int

    def equals(self, other: Content) -> bool:
        """Whether both hold the same bytes. Of what is made only once nobody knows before it is written."""
        if self.nbytes != other.nbytes or any(getattr(c.value, "made_once", False) for c in (self, other)):
            return False
        one, two = self.sample, other.sample
        differ = one is not None and two is not None and one.dtype == two.dtype and one.tobytes() != two.tobytes()
        return not differ and self.digest == other.digest

    @cached_property
    def sample(self) -> NDArray[Any] | None:
        """Some elements; None where they are not to be had without the others."""
        return picked(getattr(self.value, "like", self.value), SAMPLED)

    @cached_property
    def digest(self) -> bytes:
        """Identifies the content; computed only when another vector has the same size and sample."""
        sink = _DigestSink()
        self.write_to(cast(BinaryIO, sink))
        return sink.hash.digest()

    def write_to(self, stream: BinaryIO) -> None:
        if isinstance(self.value, np.ndarray):
            stream.write(np.ascontiguousarray(self.value).reshape(-1).view(np.uint8).data)
        else:
            write_payload(self.value, stream)


class _DigestSink:
    def __init__(self) -> None:
        self.hash = hashlib.blake2b(digest_size=16)

    def write(self, data: bytes) -> int:
        self.hash.update(data)
        return memoryview(data).nbytes


class _CountingStream:
    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream
        self.count = 0

    def write(self, data: bytes) -> int:
        self.count += memoryview(data).nbytes
        return self.stream.write(data)


def write_payload(value: Payload, stream: BinaryIO) -> None:
    counter = _CountingStream(stream)
    value.write_to(cast(BinaryIO, counter))
    if counter.count != value.nbytes:
        raise RuntimeError(f"{value!r} wrote {counter.count} bytes, not the {value.nbytes} it promised")
