"""MNN's runtime for many models in one process: starting it takes longer than running a case.

Run as a script, this file is that process: it answers each (file, list of feeds) with the list of outputs by name, or
with the text of what went wrong. A model that ends it is run again in a new one, as the fault may be an earlier one's.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

TIMES = 2  # processes that a model may end before it counts as its own fault


class PeerError(Exception):
    """The runtime failed on a model; the text says how."""


class Peer:
    """The process, started when it is first needed and whenever it has ended."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, path: Path, runs: list[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
        """The outputs of a model for each set of feeds."""
        for _ in range(TIMES):
            answer = self._ask((str(path), runs))
            if answer is not None:
                break
        else:
            raise PeerError("the runtime's process ended")
        if isinstance(answer, str):
            raise PeerError(answer)
        return answer

    def _ask(self, request: Any) -> Any:
        """The answer, or None when the process ended instead."""
        if self._process is None:
            arguments = [sys.executable, "-P", __file__]
            self._process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=-3)
        try:
            pickle.dump(request, self._process.stdin)
            self._process.stdin.flush()
            return pickle.load(self._process.stdout)
        except (BrokenPipeError, EOFError, pickle.UnpicklingError):
            self.close()
            return None

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def main() -> None:
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # the runtime prints as it pleases
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from mnnconvert.verify.mnn_child import Model, describe, receive, send

    while (request := receive(sys.stdin.buffer)) is not None:
        try:
            send(replies, _answer(Model(request[0]), request[1]))
        except Exception as problem:  # noqa: BLE001  the runtime raises SystemError and others as it likes
            send(replies, describe(problem))


def _answer(model: Any, runs: list[dict[str, np.ndarray]]) -> Any:
    outputs = []
    for feeds in runs:
        arrays = [feeds[name].astype(kind) for name, kind, _ in model.inputs]
        results = model.run(arrays)
        if len(results) != len(model.outputs):
            return f"forward returned {len(results)} of {len(model.outputs)} results"
        outputs.append(dict(zip(model.outputs, results, strict=True)))
    return outputs


if __name__ == "__main__":
    main()
