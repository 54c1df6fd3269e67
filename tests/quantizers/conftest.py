"""The fixture of the tests of quantizers; their functions are in `ways.py`."""

from ways import way  # noqa: F401
