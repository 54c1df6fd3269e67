"""The process in which the released MNN runtime runs: one model, many runs, pickled messages over the standard pipes.

Started by `mnn_engine.py` as a plain script; it imports nothing of this package. The runtime writes to standard output
as it pleases, so the pipe is moved out of its way first. Messages are dicts: the first one sent describes the model,
then every request (a list of arrays in the order of the model's inputs) is answered by {"results": [...]} or
{"problem": text}.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np


def serve(open_model: Callable[[], Any]) -> None:
    """Open a model, say what its inputs and outputs are, and answer requests until the other side closes the pipe."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    requests = sys.stdin.buffer
    try:
        model = open_model()
        send(replies, {"inputs": model.inputs, "outputs": model.outputs})
    except Exception as problem:  # noqa: BLE001  the runtime raises SystemError and others as it likes
        send(replies, {"problem": describe(problem)})
        return
    while (feeds := receive(requests)) is not None:
        send(replies, answer(model, feeds))


def answer(model: Any, feeds: list[np.ndarray]) -> dict[str, Any]:
    try:
        return {"results": model.run(feeds)}
    except Exception as problem:  # noqa: BLE001  as above
        return {"problem": describe(problem)}


def describe(problem: BaseException) -> str:
    """The runtime hides its sentence behind "returned a result with an exception set"."""
    return str(problem.__cause__ or problem)


def send(stream: BinaryIO, message: dict[str, Any]) -> None:
    pickle.dump(message, stream, protocol=5)
    stream.flush()


def receive(stream: BinaryIO) -> list[np.ndarray] | None:
    """The next request, or None when the other side has closed the pipe."""
    try:
        request: list[np.ndarray] = pickle.load(stream)
    except EOFError:
        return None
    return request


class Model:
    """A module of the runtime's expression API with the most exact arithmetic it offers, on one thread.

    `values` are asked for instead of the outputs.
    """

    def __init__(self, path: str, values: list[str]):
        from MNN import expr, nn

        self._expr = expr
        self._module = nn.load_module_from_file(
            path, [], values, backend=expr.Backend.CPU, precision_mode=expr.PrecisionMode.High, thread_num=1
        )
        info = self._module.get_info()
        self.outputs: list[str] = list(info["outputNames"])
        self._declared = [(variable.data_format, variable.dtype) for variable in info["inputs"]]
        self.inputs = [
            (name, self._numpy_type(variable.dtype), sizes(variable))
            for name, variable in zip(info["inputNames"], info["inputs"], strict=True)
        ]

    def _numpy_type(self, dtype: Any) -> str:
        types = {self._expr.int: "int32", self._expr.uint8: "uint8", self._expr.int8: "int8"}
        return types.get(dtype, "float32")

    def run(self, feeds: list[np.ndarray]) -> list[np.ndarray]:
        return [self._array(variable) for variable in self._module.forward(self._variables(feeds))]

    def _variables(self, feeds: list[np.ndarray]) -> list[Any]:
        """The label of a fed variable wins over the one in the file, so the declared one is put on."""
        variables = []
        for array, (label, dtype) in zip(feeds, self._declared, strict=True):
            variable = self._expr.placeholder(list(array.shape), label, dtype)
            variable.write(np.ascontiguousarray(array))
            variables.append(variable)
        return variables

    def _array(self, variable: Any) -> np.ndarray:
        """A copy in channel-first order; reading an empty variable is an error in the runtime."""
        if 0 in variable.shape:
            return np.zeros(variable.shape, self._numpy_type(variable.dtype))
        if variable.data_format == self._expr.NC4HW4:
            variable = self._expr.convert(variable, self._expr.NCHW)
        return np.array(variable.read())


def sizes(variable: Any) -> list[int | None]:
    """Sizes of a declared input; negative means open."""
    return [size if size >= 0 else None for size in variable.shape]


if __name__ == "__main__":
    serve(lambda: Model(sys.argv[1], sys.argv[2:]))
