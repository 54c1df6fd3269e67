"""What the user wants done to the weights."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """How weights are stored.

    `bits` 2..8 codes with one scale per output channel, or per `block` input channels of it (0: no blocks);
    `symmetric` without an offset; `method` "rtn" or "hqq"; `half_scales` keeps scales as float16.
    `half` stores all float weights as float16 instead of coding them.
    """

    bits: int = 0
    block: int = 0
    symmetric: bool = False
    method: str = "rtn"
    half_scales: bool = False
    half: bool = False

    def __post_init__(self) -> None:
        if self.half and self.bits:
            raise ValueError("weights are either coded or halves")
        if self.bits and not 2 <= self.bits <= 8:
            raise ValueError(f"codes have 2 to 8 bits, not {self.bits}")

    @property
    def changes_weights(self) -> bool:
        return bool(self.bits or self.half)
