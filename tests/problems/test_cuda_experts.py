"""Expert kernels for GPUs as texts. tests/engine/emulated compiles and emulates them (the long ones by `make emulated`
alone), tests/gpu runs them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

import pkb_gym.engine
from pkb_gym.engine.problem import Problem
from pkb_gym.problems.catalogue import catalogue, expert_source

EXPERTS = [problem for problem in catalogue() if expert_source(problem, "cu") is not None]
HEADERS = Path(pkb_gym.engine.__file__).parent / "include"


@pytest.mark.parametrize("problem", EXPERTS, ids=lambda problem: problem.name)
def test_expert_states_its_transfers(problem: Problem) -> None:
    opening = (expert_source(problem, "cu") or "").split("#include")[0]
    assert opening.startswith(f"// {problem.name}: "), "opens with a comment that names the problem"
    assert "bound" in opening.lower(), "the opening names the bound it aims at"


@cache
def included_words(header: str) -> frozenset[str]:
    """The words of a header of `pkb/` and of those that it includes."""
    text = (HEADERS / header).read_text()
    return frozenset(re.findall(r"\w+", text)).union(*map(included_words, headers_of(text)))


def headers_of(text: str) -> list[str]:
    return re.findall(r'^#include "(pkb/\w+\.h)"', text, re.MULTILINE)


@pytest.mark.parametrize("problem", EXPERTS, ids=lambda problem: problem.name)
def test_names_of_headers_that_an_expert_uses_are_there(problem: Problem) -> None:
    """Most experts are compiled by `make emulated` alone."""
    text = re.sub(r"//.*", "", expert_source(problem, "cu") or "")
    used = {name for path in re.findall(r"\bpkb((?:::\w+)+)", text) for name in path.split("::")[1:]}
    there = frozenset(re.findall(r"\w+", re.sub(r"\bpkb::[\w:]+", "", text))).union(
        *map(included_words, headers_of(text))
    )
    assert used <= there
