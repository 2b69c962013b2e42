"""The candidates for GPUs as files: checks that need no GPU. tests/gpu runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pkb_gym.engine.compile.nvcc import nvcc_available
from tests.engine.candidates import FOLDER, candidates
from tests.engine.compiling import cuda_errors

ALL = [candidate for kind in ("good", "broken", "hostile", "racy") for candidate in candidates(f"cuda/{kind}")]
COMPILED = (
    *(f"good/{candidate.path.name}" for candidate in candidates("cuda/good") if candidate.path.suffix == ".cu"),
    *("broken/blocks_that_are_not_resident.cu", "hostile/second_context.cu"),
    *(f"racy/{candidate.path.name}" for candidate in candidates("cuda/racy") if candidate.path.suffix == ".cu"),
)


@pytest.mark.slow
@pytest.mark.skipif(not nvcc_available(), reason="needs nvcc, of the CUDA toolkit, and g++")
@pytest.mark.parametrize("name", COMPILED)
def test_it_compiles_without_a_gpu(name: str, tmp_path: Path) -> None:
    assert cuda_errors(FOLDER / "cuda" / name, tmp_path) == ""


def test_every_file_states_its_purpose() -> None:
    for candidate in ALL:
        assert candidate.outcome == "passed" or candidate.words, f"{candidate.name}: words of its message are missing"
        assert candidate.kind != "good" or candidate.outcome == "passed", candidate.name
        assert candidate.kind not in ("broken", "racy") or candidate.outcome != "passed", candidate.name
        assert ("race" in candidate.options) == (candidate.outcome == "race"), candidate.name
        assert candidate.config.device == "cuda"
