"""The errors of this package."""

from __future__ import annotations


class EmulatorError(RuntimeError):
    """The emulator cannot be built or loaded here, or refuses a request; the text has the reason."""
