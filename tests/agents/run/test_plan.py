"""Which problems a run is made of."""

from __future__ import annotations

import pytest

from pkb_gym.agents.run.plan import choose_problems, resolve_all
from pkb_gym.engine.errors import ConfigError, ProblemNotFound
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.stages.execution_environment import this_machine
from pkb_gym.envs.suite import split_names


def names(*words):
    return [problem.name for problem in choose_problems(words)]


def test_names_splits_and_categories():
    assert names("HyenaCP", "PKB/AllReduce-v0", "HyenaCP") == ["HyenaCP", "AllReduce"]
    assert names("Scatter,Gather", "all_reduce") == ["Scatter", "Gather", "AllReduce"]
    assert len(names("all")) == 87
    assert tuple(names("test")) == split_names("test")
    assert "RingAttentionTP" in names("context_parallel")


def test_an_unknown_word_is_reported_with_the_nearest():
    with pytest.raises(ProblemNotFound, match=r"no problem 'AllReduze'.* Did you mean 'AllReduce'"):
        names("AllReduze")


def test_what_does_not_fit_is_skipped_with_the_reason():
    problems = choose_problems(["AllReduce", "HyenaCP"])
    found = resolve_all(problems, EvalConfig(device="cpu", size={"M": 4, "N": 4}, world_size=2), this_machine())
    assert [problem.name for problem in found.problems] == ["AllReduce"] == list(found.resolved)
    assert "no axis" in found.skipped["HyenaCP"]
    with pytest.raises(ConfigError, match="no problem to play: HyenaCP: no axis"):
        resolve_all(problems[1:], EvalConfig(device="cpu", size={"M": 4}, world_size=2), this_machine())
