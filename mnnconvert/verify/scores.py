"""Users' own measures for gates: functions of the expected and the obtained outputs, found by `module:function`."""

from __future__ import annotations

import importlib
import math
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mnnconvert.errors import UsageError
from mnnconvert.verify.engines import Outputs

Score = Callable[[Outputs, Outputs], float]


def load_function(name: str, folder: Path) -> Score:
    """The function of a gate; its module may lie beside the gates, in `folder`. Raises `bad-gate`."""
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise UsageError.of("bad-gate", f"'{name}' is no 'module:function'.", hint='function = "scores:word_error"')
    sys.path.insert(0, str(folder.resolve()))
    try:
        found: Any = getattr(importlib.import_module(module), function)
    except Exception as error:  # the module is the user's: it may raise anything while it is imported
        raise UsageError.of(
            "bad-gate", f"the function '{name}' cannot be loaded: {type(error).__name__}: {error}", folder=folder
        ) from error
    finally:
        sys.path.remove(str(folder.resolve()))
    if not callable(found):
        raise UsageError.of("bad-gate", f"'{name}' is no function.")
    made: Score = found
    return made


def score(function: Score, name: str, want: Outputs, got: Outputs) -> float:
    """What the function says of one run. Raises `bad-gate` where it fails or gives no number."""
    try:
        value = float(function(dict(want), dict(got)))
    except Exception as error:  # as above
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise UsageError.of(
            "bad-gate",
            f"the function '{name}' failed: {type(error).__name__}: {error}",
            where=f"{place.filename}:{place.lineno}",
        ) from error
    if math.isnan(value):
        raise UsageError.of("bad-gate", f"the function '{name}' gives NaN")
    return value
