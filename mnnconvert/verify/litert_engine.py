"""LiteRT, the runtime of TFLite files, as an engine: the source of truth for them.

Where it does not compute what the file says but something close to it, it is given an equal model that it computes
exactly (see `litert_twin`), and the notes say so.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from mnnconvert.errors import ConversionError, MnnConvertError
from mnnconvert.frontends.tflite.model import SourceGraph, load
from mnnconvert.verify.engines import TWIN_BYTES, Change, Feeds, Outputs, TensorInfo
from mnnconvert.verify.layers import SourceLayer


class LiteRtEngine:
    """Runs a TFLite file on the CPU, with LiteRT's own kernels and no delegate unless a custom operator needs one.

    Inputs and outputs have the names of the signature that calls the first subgraph, else those of the tensors. State
    is explicit, as in the graph that is made of the file. With `optimize` it runs as fast as it can: by its default
    delegate, and with activations rounded for integer weights.
    """

    name = "LiteRT"
    exact_kinds = True

    def __init__(self, path: str | Path, *, threads: int = 1, optimize: bool = False):
        from mnnconvert.verify.litert_twin import twin_of

        require_litert()
        self.path = Path(path)
        self._threads, self._optimize = threads, optimize
        twin = twin_of(self.path, exact=not optimize)
        self.notes: Sequence[str] = twin.notes
        self._content, self._counted = twin.content, twin.counted
        self._inputs, self._outputs = ([index for _, index in ports] for ports in (twin.inputs, twin.outputs))
        self._interpreter = self._open()
        self.inputs: Sequence[TensorInfo] = [info for info, _ in twin.inputs]
        self.outputs: Sequence[TensorInfo] = [info for info, _ in twin.outputs]

    @staticmethod
    def available() -> bool:
        return find_spec("ai_edge_litert") is not None

    def run(self, feeds: Feeds) -> Outputs:
        interpreter = self._interpreter
        try:
            self._resize(feeds)
            interpreter.allocate_tensors()
            for info, index in zip(self.inputs, self._inputs, strict=True):
                interpreter.set_tensor(index, np.array(feeds[info.name], info.dtype, order="C"))
            interpreter.invoke()
            results = {o.name: interpreter.get_tensor(i) for o, i in zip(self.outputs, self._outputs, strict=True)}
        except (RuntimeError, ValueError, KeyError, TypeError) as problem:
            self._interpreter = self._open()  # a failed call leaves it unusable
            raise self._failed("could not run the model", problem) from problem
        return self._without_unset(results)

    def layers(self) -> Sequence[SourceLayer]:
        """See `IntermediateEngine`; tensors that share their name with another are not told apart, and have none."""
        names = self._names
        return [
            SourceLayer(
                names.get(o.outputs[0], o.name) if o.outputs else o.name,
                o.name,
                tuple(names.get(i, "") for i in o.inputs),
                tuple(names.get(i, "") for i in o.outputs),
            )
            for o in self._graph.operators
        ]

    def run_values(self, feeds: Feeds, names: Sequence[str]) -> Outputs:
        """See `IntermediateEngine`: LiteRT keeps all tensors of a run meanwhile."""
        found = {name: np.asarray(feeds[name]) for name in names if name in feeds}
        found |= {name: array for name, array in self.run(feeds).items() if name in names}
        places = {name: index for index, name in self._names.items()}
        keeping = copy.copy(self)
        keeping._interpreter = keeping._open(keep=True)
        keeping.run(feeds)
        for name in names:
            if name in places and name not in found:
                found[name] = self._real(places[name], keeping._interpreter.get_tensor(places[name]))
        return found

    def with_constants(self, change: Change) -> LiteRtEngine | None:
        """The same model with `change` applied to its float constants; None beyond 500 MB."""
        from mnnconvert.verify.litert_twin import with_constants

        if len(self._content) > TWIN_BYTES:
            return None
        twin = copy.copy(self)
        twin._content = with_constants(self._content, change)
        twin._interpreter = twin._open()
        return twin

    @cached_property
    def _graph(self) -> SourceGraph:
        return load(self.path).graphs[0]

    @cached_property
    def _names(self) -> dict[int, str]:
        """Names of computed tensors by index, but for those that several have."""
        computed = {i: self._graph.tensors[i].name for o in self._graph.operators for i in o.outputs if i >= 0}
        counts = Counter(computed.values())
        return {i: name for i, name in computed.items() if counts[name] == 1}

    def _real(self, index: int, array: np.ndarray) -> np.ndarray:
        """What the codes of a tensor with one scale stand for."""
        tensor = self._graph.tensors[index]
        if not tensor.quantized or tensor.scale.size != 1:
            return array
        return (array.astype(np.float32) - np.float32(tensor.zero[0])) * np.float32(tensor.scale[0])

    def _without_unset(self, results: Outputs) -> Outputs:
        """Zeros where a detector has left the memory of its results as it was."""
        for name, count in self._counted.items():
            results[name][:, int(results[count].reshape(-1)[0]) :] = 0
        return results

    def _resize(self, feeds: Feeds) -> None:
        for info, index in zip(self.inputs, self._inputs, strict=True):
            sizes = np.shape(feeds[info.name])
            if sizes != self._interpreter._get_tensor_details(index, 0)["shape"].tolist():
                self._interpreter.resize_tensor_input(index, list(sizes), strict=False)

    def _open(self, keep: bool = False) -> Any:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        from ai_edge_litert.interpreter import Interpreter, OpResolverType

        failure: Exception | None = None
        resolvers = [OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES, OpResolverType.AUTO]
        for resolver in resolvers[::-1] if self._optimize else resolvers:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", UserWarning)  # that all tensors take memory, which is what is asked
                    interpreter = Interpreter(
                        model_content=self._content,
                        num_threads=self._threads,
                        experimental_op_resolver_type=resolver,
                        experimental_preserve_all_tensors=keep,
                    )
                interpreter.allocate_tensors()
                return interpreter
            except (RuntimeError, ValueError) as problem:
                failure = failure or problem
        assert failure is not None  # both ways failed
        raise self._failed("could not open the model", failure) from failure

    def _failed(self, what: str, problem: Exception) -> MnnConvertError:
        text = " ".join(str(problem).split())
        return ConversionError.of(
            "source-engine-failed",
            f"LiteRT {what}: {text[:400]}",
            engine=self.name,
            file=self.path,
            hint="Check that the source model runs by itself; --inputs gives it inputs that it accepts.",
        )


def require_litert() -> None:
    """Refuse with the extra to install where LiteRT is not there."""
    if not LiteRtEngine.available():
        raise ConversionError.of(
            "source-engine-missing",
            "LiteRT is not installed, so the source model cannot be run.",
            hint="pip install 'mnnconvert[litert]', or convert with --verify never.",
        )
