"""Resampling with sizes and scales at once: torch takes places from the scales, its exporter from the sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mnnconvert.errors import ConversionError
from mnnconvert.frontends.torch.decompositions import decomposes, overload_of

CORNERS = ("linear1d", "bilinear2d", "bicubic2d", "trilinear3d")  # with a flag that says whether corners are aligned
NEAREST = ("nearest1d", "nearest2d", "nearest3d")
SMOOTH = ("bilinear2d_aa", "bicubic2d_aa")


def _register(name: str, flagged: bool, smooth: bool) -> None:
    def resize(x: Any, sizes: Sequence[Any], *more: Any) -> Any:
        flags, scales = (more[:1], more[1:]) if flagged else ((), more)
        if smooth and flags[0]:
            raise _refused(name, "smooths and aligns corners")
        return _by_scales(name, x, sizes, flags, [s for s in scales if s is not None])

    decomposes(f"aten::{name}")(resize)


def _by_scales(name: str, x: Any, sizes: Sequence[Any], flags: Sequence[Any], scales: Sequence[float]) -> Any:
    """The form that takes scales alone, where they say more than the sizes do."""
    if not scales:
        return NotImplemented
    before = x.shape[-len(sizes) :]
    if len(scales) != len(sizes) or not all(isinstance(n, int) for n in (*before, *sizes)):
        raise _refused(name, "has scales for some axes, or of open sizes")
    wanted = [n * s for n, s in zip(before, scales, strict=True)]
    if list(sizes) == wanted:
        return NotImplemented
    if list(sizes) != [int(n) for n in wanted]:
        raise _refused(name, f"makes {list(sizes)} of {list(before)} with the scales {list(scales)}")
    scaled: Callable[..., Any] = overload_of(f"aten::{name}.vec")
    return scaled(x, None, *flags, list(scales))


def _refused(name: str, what: str) -> ConversionError:
    return ConversionError.of("unsupported-attribute", f"{name} {what}", op=f"aten::{name}")


for _name in CORNERS:
    _register(f"upsample_{_name}", True, False)
for _name in NEAREST:
    _register(f"upsample_{_name}", False, False)
    _register(f"_upsample_nearest_exact{_name.removeprefix('nearest')}", False, False)
for _name in SMOOTH:
    _register(f"_upsample_{_name}", True, True)
