"""The race detector, compiled once a run."""

from __future__ import annotations

import pytest

from tests.engine.emulator.traces import DetectorLibrary


@pytest.fixture(scope="session")
def detector(tmp_path_factory: pytest.TempPathFactory) -> DetectorLibrary:
    """Plays traces of events."""
    return DetectorLibrary(tmp_path_factory.mktemp("detector"))
