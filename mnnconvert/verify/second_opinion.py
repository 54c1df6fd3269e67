"""ONNX's own reference evaluator as a second opinion, for where onnxruntime may be the one that is wrong.

References are fallible: onnxruntime computes some forms of operators otherwise than the standard's own definitions do,
and these have faults of their own. So where a file misses, small models and single layers are computed by the evaluator
too. Where the two references disagree and the file sides with the evaluator, the miss is disputed, and both are shown.
Operators that the evaluator is known to compute wrongly (in some form) are left out.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from mnnconvert.verify.compare import Comparison, OutputVerdict, Tolerance, compare_outputs
from mnnconvert.verify.engines import Engine, Feeds, OnnxRuntimeEngine, Outputs
from mnnconvert.verify.metrics import compare_arrays

if TYPE_CHECKING:
    import onnx

MOST_NODES = 64  # the evaluator loops in Python
MOST_NUMBERS = 1 << 20  # in all inputs together
UNSURE = {
    "LSTM", "GRU", "RNN", "DequantizeLinear", "QuantizeLinear", "BatchNormalization", "Softmax", "LogSoftmax",
    "Hardmax", "MaxPool", "AveragePool", "ConvTranspose", "Pad", "Loop", "Scan", "RandomNormal", "RandomUniform",
}  # fmt: skip
NAME = "ONNX's reference evaluator"


def opinion(model: onnx.ModelProto, feeds: Feeds) -> Outputs | None:
    """What the evaluator makes of a model; None for what it is not asked, or cannot compute."""
    nodes = model.graph.node
    numbers = sum(np.size(array) for array in feeds.values())
    if len(nodes) > MOST_NODES or numbers > MOST_NUMBERS or any(n.op_type in UNSURE or n.domain for n in nodes):
        return None
    from onnx.reference import ReferenceEvaluator

    names = [value.name for value in model.graph.output]
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            results = ReferenceEvaluator(model).run(names, dict(feeds))
    except Exception:  # noqa: BLE001  it raises whatever its Python code meets: then it has no opinion
        return None
    return {n: np.asarray(a) for n, a in zip(names, results, strict=True) if isinstance(a, np.ndarray | np.generic)}


def heard(reference: Engine, feeds: Feeds, got: Outputs, want: Outputs, comparison: Comparison) -> Comparison:
    """`comparison` with the misses disputed in which the file sides with the evaluator against onnxruntime."""
    if not isinstance(reference, OnnxRuntimeEngine) or not all(v.numeric for v in comparison.failures):
        return comparison
    theirs = opinion(reference.proto, feeds)
    if theirs is None:
        return comparison
    verdicts = [_disputed(v, got, want, theirs, comparison.tolerance) for v in comparison.outputs]
    return replace(comparison, outputs=tuple(verdicts))


def _disputed(
    verdict: OutputVerdict, got: Outputs, want: Outputs, theirs: Outputs, tolerance: Tolerance
) -> OutputVerdict:
    name = verdict.name
    if verdict.passed or name not in theirs:
        return verdict
    said = sides(got[name], want[name], theirs[name], tolerance)
    return replace(verdict, opinion=said) if said and agree(got[name], theirs[name], tolerance) else verdict


def sides(got: np.ndarray, want: np.ndarray, theirs: np.ndarray, tolerance: Tolerance) -> str:
    """How far the references are from each other and the file from the second; "" where the two agree."""
    if agree(theirs, want, tolerance):
        return ""
    apart, ours = compare_arrays(theirs, want), compare_arrays(got, theirs)
    if apart.max_abs is None or ours.max_abs is None:
        return f"{NAME} gives {list(theirs.shape)} {theirs.dtype} instead of {list(want.shape)} {want.dtype}"
    return (
        f"onnxruntime and {NAME} are {apart.max_abs:.3g} apart (largest value {apart.largest:.3g}); "
        f"the file is off by {ours.max_abs:.3g} from the second"
    )


def agree(one: np.ndarray, other: np.ndarray, tolerance: Tolerance) -> bool:
    """Whether two arrays are the same within the tolerance, whichever integer type they have."""
    return compare_outputs({"": one}, {"": other}, tolerance, exact_kinds=False).passed


def of_layer(
    engine: Engine, name: str, inputs: Outputs, got: np.ndarray, want: np.ndarray, tolerance: Tolerance
) -> tuple[str, bool]:
    """`sides` of one layer of an ONNX model, and whether the file agrees with the evaluator there."""
    if not isinstance(engine, OnnxRuntimeEngine):
        return "", False
    from mnnconvert.verify.onnx_values import single

    theirs = opinion(single(engine.proto, [name], inputs), inputs)
    if theirs is None or name not in theirs:
        return "", False
    return sides(got, want, theirs[name], tolerance), agree(got, theirs[name], tolerance)
