"""The runtime of the released MNN package as an engine, kept in a process of its own.

It ends on bad files and bad feeds with a signal, and may hang; here both become a `peer-runtime-failed` diagnostic
that says what happened, and the next run starts a new process.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from mnnconvert.errors import ConversionError, MnnConvertError
from mnnconvert.verify.child import Child, ChildGoneError
from mnnconvert.verify.engines import Feeds, Outputs, TensorInfo

_CHILD = Path(__file__).with_name("mnn_child.py")


class MnnEngine:
    """MNN's own Python runtime on the CPU, in high precision, on one thread.

    External weights are found beside the file, as `<file>.weight`. Feeds are converted to the declared input type,
    which knows neither 64-bit integers nor bool: both go in as int32, and results come back as the runtime gives them.
    `timeout` is in seconds, for opening the model and for each run. `values` are values inside the file that are its
    outputs instead of those it has.
    """

    name = "mnn"
    exact_kinds = False
    notes = ()

    def __init__(self, path: str | Path, *, timeout: float = 120.0, values: Sequence[str] = ()):
        if not self.available():
            raise ConversionError.of(
                "peer-runtime-missing", "MNN's own runtime is not installed.", hint="pip install 'mnnconvert[mnn]'"
            )
        self.path = Path(path)
        self._timeout, self._values = timeout, tuple(values)
        self._child: Child | None = None
        described = self._ask(None)
        self.inputs = [TensorInfo(name, np.dtype(kind), tuple(shape)) for name, kind, shape in described["inputs"]]
        self.outputs = [TensorInfo(name, None, None) for name in described["outputs"]]

    @staticmethod
    def available() -> bool:
        return find_spec("MNN") is not None

    def run(self, feeds: Feeds) -> Outputs:
        if set(feeds) != {info.name for info in self.inputs}:
            raise self._bad_names(feeds)
        results = self._ask([self._narrow(info, np.asarray(feeds[info.name])) for info in self.inputs])["results"]
        if len(results) != len(self.outputs):
            count = "an empty list" if not results else f"{len(results)} of {len(self.outputs)} results"
            raise self._failed(f"forward returned {count}: an operator could not be created or run")
        return {info.name: array for info, array in zip(self.outputs, results, strict=True)}

    def run_values(self, feeds: Feeds, names: Sequence[str]) -> Outputs:
        """Values inside the file by their names there, in a process of its own."""
        with MnnEngine(self.path, timeout=self._timeout, values=names) as inner:
            return inner.run(feeds)

    def close(self) -> None:
        if self._child is not None:
            self._child.stop()
            self._child = None

    def __enter__(self) -> MnnEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, request: list[np.ndarray] | None) -> dict[str, Any]:
        """Sends a request (None: only open the model) to a living process and waits for its answer."""
        try:
            reply = self._converse(request)
        except ChildGoneError as gone:
            failure = self._failed(str(gone))
            self.close()
            raise failure from None
        if "problem" in reply:
            raise self._failed(reply["problem"])
        return reply

    def _converse(self, request: list[np.ndarray] | None) -> dict[str, Any]:
        if self._child is None:
            self._child = Child(["-P", str(_CHILD), str(self.path), *self._values])
            greeting = self._child.receive(self._timeout)
            if request is None or "problem" in greeting:
                return greeting
        self._child.send(request)
        return self._child.receive(self._timeout)

    def _narrow(self, info: TensorInfo, array: np.ndarray) -> np.ndarray:
        """The array in the declared type. Integers that do not fit are refused, not wrapped."""
        assert info.dtype is not None  # the runtime declares the type of every input
        if info.dtype.kind in "iu" and array.size:
            limits = np.iinfo(info.dtype)
            if array.min() < limits.min or array.max() > limits.max:
                raise ConversionError.of(
                    "bad-input",
                    f"Input '{info.name}' holds values outside {limits.min} to {limits.max}, MNN's {info.dtype}.",
                    input=info.name,
                    file=self.path,
                    hint="Feed smaller integers: the runtime has no 64-bit ones.",
                )
        return np.ascontiguousarray(array, dtype=info.dtype).reshape(array.shape)

    def _bad_names(self, feeds: Feeds) -> MnnConvertError:
        wanted = ", ".join(info.name for info in self.inputs) or "none"
        return ConversionError.of(
            "bad-input",
            f"The model takes the inputs {wanted}; given were {', '.join(feeds) or 'none'}.",
            file=self.path,
            hint="Give exactly the inputs of the model, by name.",
        )

    def _failed(self, what: str) -> MnnConvertError:
        said = self._child.log_tail() if self._child is not None else ""
        return ConversionError.of(
            "peer-runtime-failed",
            f"MNN's own runtime could not run the model: {what}.",
            engine=self.name,
            file=self.path,
            **({"runtime": said} if said else {}),
            hint="The file may be right and use something this runtime lacks; compare with mnnconvert's own executor.",
        )
