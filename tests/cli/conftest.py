"""Fixtures of the command-line tests."""

from cli_fakes import api

__all__ = ["api"]
