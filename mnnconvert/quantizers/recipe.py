"""What the user wants done to the weights: one setting for all of them, and rules for those that differ."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import Any

METHODS = ("rtn", "hqq", "hqq-reference", "lsq", "gptq")
NEEDS_DATA = ("gptq",)
NEEDS_MINIMUM = ("hqq", "hqq-reference")


@dataclass(frozen=True)
class Setting:
    """How one weight is stored.

    `bits` 2..8 codes (0: the weight stays as it is) with one scale per output channel, or per `block` input channels
    of it (0: no blocks); `symmetric` without an offset; `method` one of METHODS; `half_scales` keeps scales as float16.
    Raises ValueError for anything else.
    """

    bits: int = 0
    block: int = 0
    symmetric: bool = False
    method: str = "rtn"
    half_scales: bool = False

    def __post_init__(self) -> None:
        if self.bits and not 2 <= self.bits <= 8:
            raise ValueError(f"codes have 2 to 8 bits, not {self.bits}")
        if self.block < 0:
            raise ValueError(f"a block has at least one channel, not {self.block}")
        if self.method not in METHODS:
            raise ValueError(f"the methods are {', '.join(METHODS)}, not {self.method!r}")
        if self.symmetric and self.method in NEEDS_MINIMUM:
            raise ValueError(f"{self.method} fits the offset, which symmetric codes do not have")


@dataclass(frozen=True)
class Rule:
    """Layers, and what is different for them. Of several rules that fit a layer, the last one alone counts.

    A layer has to fit everything that is given: `name` a pattern with * and ?, `regex` found somewhere in its name,
    `op` the kind of its operator (in MNN or, for matrix products, in the source), `min_bytes` and `max_bytes` the size
    of its float32 weight, both included. `skip` leaves it as the float conversion has it; `changes` are the fields of
    Setting that replace those of the recipe.
    """

    name: str = ""
    regex: str = ""
    op: str = ""
    min_bytes: int = 0
    max_bytes: int | None = None
    skip: bool = False
    changes: dict[str, Any] = field(default_factory=dict)

    def fits(self, names: Collection[str], ops: Collection[str], size: int) -> bool:
        """Whether a layer known by any of these names and kinds, with a float32 weight of `size` bytes, is meant."""
        return (
            (not self.name or any(fnmatchcase(n, self.name) for n in names))
            and (not self.regex or any(re.search(self.regex, n) for n in names))
            and (not self.op or self.op.lower() in {o.lower() for o in ops})
            and self.min_bytes <= size
            and (self.max_bytes is None or size <= self.max_bytes)
        )

    def setting(self, default: Setting) -> Setting:
        """What the layers of this rule get. ValueError where the changes do not go together."""
        return replace(default, bits=0) if self.skip else replace(default, **self.changes)

    def __str__(self) -> str:
        given = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("changes", "skip")}
        return ",".join(f"{k}={v}" for k, v in given.items() if v not in ("", 0, None)) or "every layer"


@dataclass(frozen=True)
class Recipe:
    """How weights are stored: `default` where no rule fits; `half` stores all float weights as float16 instead.

    `embedding` is the number of bits of tables that are looked up by index: 8, 4, 0 to leave them, or None for 4 bits
    where the weights have up to 4 and 8 where they have more.
    """

    default: Setting = Setting()
    rules: tuple[Rule, ...] = ()
    half: bool = False
    embedding: int | None = None

    def __post_init__(self) -> None:
        if self.half and (self.default.bits or self.rules):
            raise ValueError("weights are either coded or halves")
        if self.embedding not in (None, 0, 4, 8):
            raise ValueError(f"tables have 8 or 4 bits, or 0 for none, not {self.embedding}")
        for rule in self.rules:
            rule.setting(self.default)

    @property
    def codes_weights(self) -> bool:
        return bool(self.default.bits or any(r.setting(self.default).bits for r in self.rules))

    @property
    def changes_weights(self) -> bool:
        return self.codes_weights or self.half

    @property
    def methods(self) -> set[str]:
        """The methods that may be used."""
        settings = [self.default, *(r.setting(self.default) for r in self.rules)]
        return {s.method for s in settings if s.bits}

    def rule_for(self, names: Collection[str], ops: Collection[str], size: int) -> int | None:
        """The number of the rule that decides on a layer, if any."""
        found = [i for i, rule in enumerate(self.rules) if rule.fits(names, ops, size)]
        return found[-1] if found else None
