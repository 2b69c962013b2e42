"""The suite: which problems a split holds, and how one is drawn."""

from __future__ import annotations

import gymnasium as gym
import pytest

from pkb_gym.engine.errors import ConfigError, ProblemNotFound, SizeError
from pkb_gym.envs.suite import SuiteEnv, split_names
from pkb_gym.problems.catalogue import catalogue

pytestmark = pytest.mark.usefixtures("evaluator")
NAMES = tuple(problem.name for problem in catalogue())


def suite(split, **kwargs) -> SuiteEnv:
    return SuiteEnv(split, evaluator="fake", device="cpu", **kwargs)


def drawn(env, seed, count=12):
    return [env.reset(seed=seed)[1]["problem"], *(env.reset()[1]["problem"] for _ in range(count - 1))]


def test_train_and_test_divide_the_catalogue():
    train, test = split_names("train"), split_names("test")
    assert not set(train) & set(test)
    assert sorted(train + test) == sorted(NAMES) == sorted(split_names("all")), "list new problems in splits.json"


def test_categories_and_lists_are_splits():
    assert split_names(["PKB/HyenaCP-v0", "1_allreduce"]) == ("AllReduce", "HyenaCP")
    collectives = split_names("collective_primitive")
    assert "AllReduce" in collectives and "HyenaCP" not in collectives


@pytest.mark.parametrize(
    ("split", "error", "message"),
    [
        ("trian", ConfigError, "no split 'trian'; there are all, train, test, collective_primitive"),
        ([], ConfigError, r"split \[\] is empty"),
        (["HyenaPC"], ProblemNotFound, "Did you mean 'HyenaCP'"),
    ],
)
def test_unknown_splits_are_refused(split, error, message):
    with pytest.raises(error, match=message):
        suite(split)


def test_a_size_that_does_not_fit_every_problem_is_refused_at_once():
    with pytest.raises(SizeError, match="HyenaCP: dtype must be one of"):
        suite(["AllReduce", "HyenaCP"], dtype="float64")


def test_the_seed_fixes_what_is_drawn():
    split = ["AllReduce", "Gather", "Scatter"]
    assert drawn(suite(split), 1) == drawn(suite(split), 1) != drawn(suite(split), 2)
    assert set(drawn(suite(split), 1)) == set(split)


def test_a_problem_can_be_chosen(evaluator):
    env = gym.make("PKB/Suite-v0", split=["AllReduce"], evaluator="fake", device="cpu")
    observation, info = env.reset(seed=0, options={"problem": "HyenaCP"})
    assert info["problem"] == "HyenaCP" and observation["task"].startswith("# HyenaCP")
    env.step("speedup 1")
    assert evaluator.requested[-1][0] == "HyenaCP"
    assert env.reset()[1]["problem"] == "AllReduce"


def test_observations_of_all_problems_lie_in_one_space():
    env = suite("all")
    for name in NAMES:
        assert env.reset(options={"problem": name})[0] in env.observation_space


def test_the_suite_survives_json():
    env = gym.make("PKB/Suite-v0", split=["Gather", "AllReduce"], evaluator="fake", device="cpu")
    again = gym.make(gym.envs.registration.EnvSpec.from_json(env.spec.to_json()))
    assert again.unwrapped.problem_names == env.unwrapped.problem_names == ("AllReduce", "Gather")
