"""The command line `pkb`."""

from .program import main

__all__ = ["main"]
