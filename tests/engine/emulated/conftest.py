"""The emulator, compiled once for these tests and for those of its own distribution."""

from __future__ import annotations

from pathlib import Path

import pytest

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.emulator import build_key
from pkb_gym.engine.compile.nvcc import nvcc_available
from pkb_gym.engine.records.artifact import Artifact
from rank_emulator import build


@pytest.fixture(scope="session", autouse=True)
def emulator_is_built(compiled_before: Path) -> None:
    """The cache of evaluations holds what emulator/tests take from the same folder."""
    if nvcc_available():
        binary = build(compiled_before).read_bytes()
        cache = CompileCache.in_folder(compiled_before)
        cache.put(build_key(), Artifact(ok=True, log="", duration_s=0.0, binary=binary))
