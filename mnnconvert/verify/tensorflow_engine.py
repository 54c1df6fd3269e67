"""TensorFlow as an engine: the source of truth for its models, in all forms that the frontend reads."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mnnconvert.errors import ConversionError
from mnnconvert.verify.engines import Feeds, Outputs, TensorInfo

if TYPE_CHECKING:
    from mnnconvert.verify.layers import SourceLayer


class TensorFlowEngine:
    """Runs a frozen graph, a SavedModel by one of its signatures, or a Keras model, on the CPU and as it is written.

    Inputs and outputs have the names that the converted file gives them.
    """

    name = "TensorFlow"
    exact_kinds = True
    notes: Sequence[str] = ()

    def __init__(self, path: str | Path, *, threads: int = 1, optimize: bool = False, signature: str = ""):
        from mnnconvert.frontends.tensorflow.framework import Port, open_model

        require_engine()
        self.path = Path(path)

        def info(port: Port) -> TensorInfo:
            sizes = None if port.shape is None else [_size(port.name, i, d) for i, d in enumerate(port.shape)]
            return TensorInfo(port.name, port.dtype, None if sizes is None else tuple(sizes))

        self._model = open_model(self.path, signature, threads)
        self.inputs: Sequence[TensorInfo] = [info(port) for port in self._model.inputs]
        self.outputs: Sequence[TensorInfo] = [info(port) for port in self._model.outputs]

    @staticmethod
    def available() -> bool:
        return find_spec("tensorflow") is not None

    def run(self, feeds: Feeds) -> Outputs:
        import tensorflow as tf

        try:
            arrays = {info.name: np.asarray(feeds[info.name], info.dtype) for info in self.inputs}
            return self._model.run(arrays)
        except (tf.errors.OpError, ValueError, TypeError, KeyError) as problem:
            text = " ".join(str(problem).split())
            raise ConversionError.of(
                "source-engine-failed",
                f"TensorFlow could not run the model: {text[:400]}",
                engine=self.name,
                file=self.path,
                hint="Check that the source model runs by itself; --inputs gives it inputs that it accepts.",
            ) from problem

    def layers(self) -> Sequence[SourceLayer]:
        """See `IntermediateEngine`: the nodes that the outputs depend on, those of called functions too."""
        from mnnconvert.frontends.tensorflow.ports import in_order, place
        from mnnconvert.verify.layers import SourceLayer

        source = self._model.flat()
        fed = {place(reference)[0]: name for name, reference in source.inputs}

        def name_of(reference: str) -> str:
            name, port = place(reference)
            return fed.get(name, name if port in ("", "0") else f"{name}:{port}")

        nodes = in_order(source.graph, [place(reference)[0] for _, reference in source.outputs])
        return [
            SourceLayer(n.name, n.op, tuple(map(name_of, n.operands)), (n.name,))
            for n in nodes if n.op != "Const" and n.name not in fed
        ]  # fmt: skip

    def run_values(self, feeds: Feeds, names: Sequence[str]) -> Outputs:
        """See `IntermediateEngine`."""
        results = {name: array for name, array in self.run(feeds).items() if name in names}
        results |= {name: np.asarray(feeds[name]) for name in names if name in feeds}
        inside = [name for name in names if name not in results]
        return results | self._model.values({info.name: np.asarray(feeds[info.name]) for info in self.inputs}, inside)


def _size(name: str, axis: int, size: int | None) -> int | str:
    """An open size by the symbol that the importer has for it."""
    return f"{name}.{axis}" if size is None else size


def require_engine() -> None:
    """Refuse with the extra to install where TensorFlow is not there."""
    if not TensorFlowEngine.available():
        raise ConversionError.of(
            "source-engine-missing",
            "TensorFlow is not installed, so the source model cannot be run.",
            hint="pip install 'mnnconvert[tf]', or convert with --verify never.",
        )
