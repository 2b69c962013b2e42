"""The race detector, compiled once a run, and the emulator."""

from __future__ import annotations

import pytest

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.emulator import build_emulator
from tests.engine.emulator.traces import DetectorLibrary
from tests.engine.emulator.worlds import EmulatorLibrary


@pytest.fixture(scope="session")
def detector(tmp_path_factory: pytest.TempPathFactory) -> DetectorLibrary:
    """Plays traces of events."""
    return DetectorLibrary(tmp_path_factory.mktemp("detector"))


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> EmulatorLibrary:
    """Runs PTX; compiled once for all runs of the tests."""
    path = tmp_path_factory.mktemp("emulator") / "emulator.so"
    path.write_bytes(build_emulator(CompileCache.in_folder(None)))
    return EmulatorLibrary(path)
