"""The emulator, which holds the race detector, compiled once a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.emulator import build_emulator
from pkb_gym.engine.compile.nvcc import nvcc_available
from tests.engine.emulator.traces import DetectorLibrary
from tests.engine.emulator.worlds import EmulatorLibrary


@pytest.fixture(scope="session")
def emulator_path(tmp_path_factory: pytest.TempPathFactory, compiled_before: Path) -> Path | None:
    """The emulator, compiled once for all tests, those of whole evaluations included.

    None where there are no headers of the CUDA toolkit.
    """
    if not nvcc_available():
        return None
    import tvm_ffi  # noqa: F401  # loads the library that the emulator is linked with

    path = tmp_path_factory.mktemp("emulator") / "emulator.so"
    path.write_bytes(build_emulator(CompileCache.in_folder(compiled_before)))
    return path


@pytest.fixture(scope="session")
def detector(compiled_before: Path, emulator_path: Path | None) -> DetectorLibrary:
    """Plays traces of events."""
    return DetectorLibrary(CompileCache.in_folder(compiled_before), emulator_path)


@pytest.fixture(scope="session")
def emulator(emulator_path: Path | None) -> EmulatorLibrary:
    """Runs PTX."""
    if emulator_path is None:
        pytest.skip("the emulator is compiled with headers of the CUDA toolkit")
    return EmulatorLibrary(emulator_path)
