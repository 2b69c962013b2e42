"""The candidates for GPUs as files: what can be told of them without a GPU. tests/gpu runs them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.nvcc import compile_cuda, nvcc_available
from pkb_gym.engine.records.artifact import Artifact
from tests.engine.candidates import FOLDER, candidates

ALL = [candidate for kind in ("good", "broken", "hostile") for candidate in candidates(f"cuda/{kind}")]
COMPILED = ("good/pushes_with_signals.cu", "broken/blocks_that_are_not_resident.cu", "hostile/second_context.cu")


@pytest.mark.slow
@pytest.mark.skipif(not nvcc_available(), reason="needs nvcc, of the CUDA toolkit, and g++")
def test_some_compile_without_a_gpu(tmp_path: Path) -> None:
    def compiled(name: str) -> Artifact:
        source = (FOLDER / "cuda" / name).read_text(encoding="utf-8")
        return compile_cuda(source, CompileCache(tmp_path), timeout_s=100.0)

    with ThreadPoolExecutor(2) as pool:
        for name, artifact in zip(COMPILED, pool.map(compiled, COMPILED), strict=True):
            assert artifact.ok, f"{name}: {artifact.log}"


def test_every_file_says_what_it_stands_for() -> None:
    for candidate in ALL:
        assert candidate.outcome == "passed" or candidate.words, f"{candidate.name}: words of its message are missing"
        assert candidate.kind != "good" or candidate.outcome == "passed", candidate.name
        assert candidate.kind != "broken" or candidate.outcome != "passed", candidate.name
        assert candidate.config.device == "cuda"
