"""What MNN 3.6.1's runtime computes wrong, by the kind of op, each with the form that it computes right.

Left as they are, because models hardly rely on them: MINIMUM and MAXIMUM return their second
operand where the first is NaN; Softmax of nothing but -inf is 0 instead of NaN; maximum pooling gives at least -2^24;
the lowest int32 divided by -1 ends the process, as does TopKV2 of no elements.
"""

from mnnconvert.passes.defects import arithmetic, attention, indices, moves, padding, scatter, slices, sorting, windows
from mnnconvert.passes.defects.base import Defect, RefusedError

__all__ = ["DEFECTS", "Defect", "RefusedError"]

DEFECTS: dict[str, tuple[Defect, ...]] = {
    "none": (),
    "mnn-3.6.1": (
        *arithmetic.DEFECTS, *moves.DEFECTS, *slices.DEFECTS, *padding.DEFECTS, *indices.DEFECTS,
        *scatter.DEFECTS, *sorting.DEFECTS, *windows.DEFECTS, *attention.DEFECTS,
    ),
}  # fmt: skip
