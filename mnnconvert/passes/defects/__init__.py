"""What MNN 3.6.1's runtime computes wrong, by the kind of op, each with the form that it computes right."""

from mnnconvert.passes.defects import arithmetic, indices, moves, scatter, sorting, windows
from mnnconvert.passes.defects.base import Defect, RefusedError

__all__ = ["DEFECTS", "Defect", "RefusedError"]

DEFECTS: dict[str, tuple[Defect, ...]] = {
    "none": (),
    "mnn-3.6.1": (
        *arithmetic.DEFECTS, *moves.DEFECTS, *indices.DEFECTS, *scatter.DEFECTS, *sorting.DEFECTS, *windows.DEFECTS,
    ),
}  # fmt: skip
