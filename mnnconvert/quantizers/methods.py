"""The methods that turn a weight matrix into codes, under one signature."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mnnconvert.ir import CodedWeights
from mnnconvert.quantizers import gptq, hqq, lsq, rtn
from mnnconvert.quantizers.recipe import Setting
from mnnconvert.quantizers.statistics import Statistics


class Method(Protocol):
    """Codes for weights [rows, columns]. The block of the setting counts columns here (0: the whole row)."""

    def __call__(
        self, weights: NDArray[np.floating], setting: Setting, statistics: Statistics | None
    ) -> CodedWeights: ...


def _rtn(weights: NDArray[np.floating], setting: Setting, statistics: Statistics | None) -> CodedWeights:
    return rtn.quantize(weights, setting.bits, setting.block, setting.symmetric, setting.half_scales)


def _hqq(weights: NDArray[np.floating], setting: Setting, statistics: Statistics | None) -> CodedWeights:
    return hqq.quantize(weights, setting.bits, setting.block, setting.symmetric, setting.half_scales)


def _published_hqq(weights: NDArray[np.floating], setting: Setting, statistics: Statistics | None) -> CodedWeights:
    numbers = setting.bits, setting.block, setting.symmetric, setting.half_scales
    return hqq.quantize(weights, *numbers, variant="reference")


def _lsq(weights: NDArray[np.floating], setting: Setting, statistics: Statistics | None) -> CodedWeights:
    importance = None if statistics is None else statistics.importance
    return lsq.quantize(weights, setting.bits, setting.block, setting.symmetric, setting.half_scales, importance)


def _gptq(weights: NDArray[np.floating], setting: Setting, statistics: Statistics | None) -> CodedWeights:
    """Error compensation where the moments of the inputs are known, else least-squares grids."""
    if statistics is None or statistics.gram is None:
        return _lsq(weights, setting, statistics)
    numbers = setting.bits, setting.block, setting.symmetric, setting.half_scales
    return gptq.quantize(weights, statistics.gram, *numbers, correction=statistics.correction)[0]


METHODS: dict[str, Method] = {"rtn": _rtn, "hqq": _hqq, "hqq-reference": _published_hqq, "lsq": _lsq, "gptq": _gptq}
