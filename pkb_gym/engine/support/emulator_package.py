"""The package rank_emulator, on which device "emulated" rests; all else works without it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

PACKAGE = "rank_emulator"


def emulator_package() -> Path | None:
    """The folder of the package, found without importing it; None where it is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    return None if spec is None or spec.origin is None else Path(spec.origin).resolve().parent


def why_missing() -> str | None:
    """The remedy where the package is not installed; None where it is."""
    if emulator_package() is not None:
        return None
    return f"the package {PACKAGE} is missing; install pkb-gym again, or `pip install ./emulator` in a checkout"
