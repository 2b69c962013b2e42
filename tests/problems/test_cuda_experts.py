"""Expert kernels for GPUs: all compile, which takes no GPU. tests/gpu runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pkb_gym.engine.compile.nvcc import nvcc_available
from pkb_gym.engine.problem import Problem
from pkb_gym.problems.catalogue import catalogue, expert_source
from tests.engine.compiling import cuda_errors
from tests.engine.emulator.joined import INCLUDE, in_namespaces

EXPERTS = [problem for problem in catalogue() if expert_source(problem, "cu") is not None]


def units() -> list[dict[str, str]]:
    """Sources by the names of their problems. Those of one unit have the same includes, so that none lacks a header."""
    groups: dict[frozenset[str], dict[str, str]] = {}
    for problem in EXPERTS:
        source = expert_source(problem, "cu") or ""
        groups.setdefault(frozenset(INCLUDE.findall(source)), {})[problem.name] = source
    return list(groups.values())


UNITS = units()


def test_every_expert_is_compiled() -> None:
    assert sorted(name for unit in UNITS for name in unit) == sorted(problem.name for problem in EXPERTS)


@pytest.mark.slow
@pytest.mark.skipif(not nvcc_available(), reason="needs nvcc, of the CUDA toolkit, and g++")
@pytest.mark.parametrize("unit", UNITS, ids=" ".join)
def test_experts_compile(unit: dict[str, str], tmp_path: Path) -> None:
    source = tmp_path / "kernel.cu"
    # One alone is compiled as it is: it may name the global scope.
    text = "\n".join(in_namespaces(unit)) if len(unit) > 1 else next(iter(unit.values()))
    source.write_text(text, encoding="utf-8")
    assert cuda_errors(source, tmp_path) == ""


@pytest.mark.parametrize("problem", EXPERTS, ids=lambda problem: problem.name)
def test_expert_states_its_transfers(problem: Problem) -> None:
    opening = (expert_source(problem, "cu") or "").split("#include")[0]
    assert opening.startswith(f"// {problem.name}: "), "opens with a comment that names the problem"
    assert "bound" in opening.lower(), "the opening names the bound it aims at"
