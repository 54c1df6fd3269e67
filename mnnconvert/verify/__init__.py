"""Engines, metrics, comparison, gates: what proves that two models agree.

The room shares its name with the function `mnnconvert.verify`, so the module itself can be called as that function.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _CallableRoom(ModuleType):
    def __call__(self, *args: Any, **keywords: Any) -> Any:
        from mnnconvert import api  # the function lives above this room; only its name is shared

        return api.verify(*args, **keywords)


sys.modules[__name__].__class__ = _CallableRoom
