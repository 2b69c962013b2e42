"""All tests of this folder evaluate on emulated GPUs."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def emulator(emulator_is_built: None) -> None:
    """Compiles the emulator before the first test, whose deadline leaves time for it."""
