"""The fixture of the tests of kernels; their functions are in `kernels.py`."""

from kernels import lib  # noqa: F401
