"""The race detector, compiled once a run, and the emulator."""

from __future__ import annotations

from pathlib import Path

import pytest

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.emulator import build_emulator
from pkb_gym.engine.compile.nvcc import nvcc_available
from tests.engine.emulator.traces import DetectorLibrary
from tests.engine.emulator.worlds import EmulatorLibrary


@pytest.fixture(scope="session")
def detector(compiled_before: Path) -> DetectorLibrary:
    """Plays traces of events."""
    return DetectorLibrary(CompileCache.in_folder(compiled_before))


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory, compiled_before: Path) -> EmulatorLibrary:
    """Runs PTX; compiled once for all tests, those of whole evaluations included."""
    if not nvcc_available():
        pytest.skip("the emulator is compiled with headers of the CUDA toolkit")
    import tvm_ffi  # noqa: F401  # loads the library that the emulator is linked with

    path = tmp_path_factory.mktemp("emulator") / "emulator.so"
    path.write_bytes(build_emulator(CompileCache.in_folder(compiled_before)))
    return EmulatorLibrary(path)
