"""The emulator, which holds the race detector, compiled once a run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from emulator.tests.traces import DetectorLibrary
from emulator.tests.worlds import EmulatorLibrary
from rank_emulator import build
from rank_emulator.cuda_sources import find_toolkit
from rank_emulator.errors import EmulatorError


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of compiled files, which test processes side by side share; PKB_TEST_COMPILED keeps it."""
    if kept := os.environ.get("PKB_TEST_COMPILED"):
        return Path(kept)
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "compiled"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def emulator_path(compiled: Path) -> Path | None:
    """The emulator; None where there are no headers of the CUDA toolkit."""
    try:
        find_toolkit()
    except EmulatorError:
        return None
    return build(compiled)


@pytest.fixture(scope="session")
def detector(compiled: Path, emulator_path: Path | None) -> DetectorLibrary:
    """Plays traces of events."""
    return DetectorLibrary(compiled, emulator_path)


@pytest.fixture(scope="session")
def emulator(emulator_path: Path | None) -> EmulatorLibrary:
    """Runs PTX."""
    if emulator_path is None:
        pytest.skip("the emulator is compiled with headers of the CUDA toolkit")
    return EmulatorLibrary(emulator_path)
