"""A runtime of others in a process of its own, which may end or hang without harm; `mnn_child.py` is the other side."""

from __future__ import annotations

import contextlib
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Sequence
from typing import IO, Any

import numpy as np


class ChildGoneError(Exception):
    """The process has ended or was ended; the text says how."""


class Child:
    """A Python process with the given arguments, its two pipes, and a file with whatever it prints."""

    def __init__(self, arguments: Sequence[str]):
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        assert self._process.stdin is not None and self._process.stdout is not None  # both are pipes
        self._requests, self._replies = self._process.stdin, self._process.stdout
        self._finalizer = weakref.finalize(self, _end, self._process, self._log)

    def send(self, request: list[np.ndarray] | None) -> None:
        try:
            pickle.dump(request, self._requests, protocol=5)
            self._requests.flush()
        except BrokenPipeError:
            raise ChildGoneError(self._epitaph()) from None

    def receive(self, timeout: float) -> dict[str, Any]:
        late = threading.Event()
        timer = threading.Timer(timeout, self._kill, [late])
        timer.start()
        try:
            reply: dict[str, Any] = pickle.load(self._replies)
            return reply
        except (EOFError, pickle.UnpicklingError):
            late_text = f"it gave no answer within {timeout:g} s and was ended"
            raise ChildGoneError(late_text if late.is_set() else self._epitaph()) from None
        finally:
            timer.cancel()

    def _kill(self, late: threading.Event) -> None:
        late.set()
        self._process.kill()

    def _epitaph(self) -> str:
        self._process.kill()  # a process that closed its pipe without ending
        code = self._process.wait()
        if code < 0:
            return f"its process was ended by {signal.Signals(-code).name}"
        return f"its process ended with exit code {code}"

    def log_tail(self) -> str:
        """The last lines that the runtime printed, on one line."""
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").splitlines()
        return " / ".join(line.strip() for line in lines if line.strip() and "device supports" not in line)[-300:]

    def stop(self) -> None:
        self._finalizer()


def _end(process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout, log):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):  # a request that was never read
                stream.close()
