"""The candidates for GPUs as files: checks that need no GPU. tests/gpu runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pkb_gym.engine.compile.nvcc import nvcc_available
from tests.engine.candidates import Candidate, candidates
from tests.engine.compiling import cuda_errors
from tests.engine.emulator.joined import INCLUDE, can_join, joined_source

ALL = [candidate for kind in ("good", "broken", "hostile", "racy") for candidate in candidates(f"cuda/{kind}")]
COMPILED = [
    candidate
    for candidate in ALL
    if candidate.path.suffix == ".cu"
    and (
        candidate.kind in ("good", "racy")
        or candidate.path.name in ("blocks_that_are_not_resident.cu", "second_context.cu")
    )
]


def units() -> dict[str, str]:
    """Translation units by the name of their first candidate.

    Those that include the same headers share one: most of the compiler's time is for headers, and a candidate that
    lacked one would not compile there either.
    """
    groups: dict[frozenset[str], list[Candidate]] = {}
    sources = {}
    for candidate in COMPILED:
        if can_join(candidate):
            groups.setdefault(frozenset(INCLUDE.findall(candidate.source)), []).append(candidate)
        else:
            sources[candidate.name] = candidate.source
    return sources | {group[0].name: joined_source(group) for group in groups.values()}


UNITS = units()


def test_all_that_is_meant_to_run_is_compiled() -> None:
    assert len(COMPILED) > 20
    assert all(
        f'#line 1 "{candidate.path.name}"' in "".join(UNITS.values()) or candidate.name in UNITS
        for candidate in COMPILED
    )


@pytest.mark.slow
@pytest.mark.skipif(not nvcc_available(), reason="needs nvcc, of the CUDA toolkit, and g++")
@pytest.mark.parametrize("name", UNITS)
def test_it_compiles_without_a_gpu(name: str, tmp_path: Path) -> None:
    source = tmp_path / "kernel.cu"
    source.write_text(UNITS[name], encoding="utf-8")
    assert cuda_errors(source, tmp_path) == ""


def test_every_file_states_its_purpose() -> None:
    for candidate in ALL:
        assert candidate.outcome == "passed" or candidate.words, f"{candidate.name}: words of its message are missing"
        assert candidate.kind != "good" or candidate.outcome == "passed", candidate.name
        assert candidate.kind not in ("broken", "racy") or candidate.outcome != "passed", candidate.name
        assert ("race" in candidate.options) == (candidate.outcome == "race"), candidate.name
        assert candidate.config.device == "cuda"
