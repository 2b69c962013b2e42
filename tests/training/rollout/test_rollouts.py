"""Episodes on rows of the prompts: how submissions are judged, answered and valued."""

from __future__ import annotations

import asyncio

import pytest

from pkb_gym.engine.errors import ConfigError, ProblemNotFound
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.problems.catalogue import find_problem
from pkb_gym.rewards import find_reward
from pkb_gym.training.evaluation.async_evaluator import AsyncEvaluator
from pkb_gym.training.rollout.rollouts import Rollouts
from tests.envs.fake_evaluator import FakeEvaluator
from tests.training.scripted import row

PROBLEM = find_problem("AllReduce")


@pytest.fixture
def evaluator():
    return FakeEvaluator()


@pytest.fixture
def asynchronous(evaluator):
    wrapped = AsyncEvaluator(evaluator)
    yield wrapped
    wrapped.close()


@pytest.fixture
def rollouts(asynchronous):
    base = EvalConfig(until="time", timing_budget_s=0.1)
    return Rollouts(asynchronous, find_reward("default"), max_turns=2, base=base)


def test_a_row_decides_how_submissions_are_judged(rollouts, evaluator):
    episode = rollouts.begin(row(size='{"M": 64, "N": 32}', seed=11))
    asyncio.run(episode.submit("speedup 2"))
    problem, _, config = evaluator.requested[0]
    assert (problem, config.size, config.dtype) == ("AllReduce", {"M": 64, "N": 32}, "bfloat16")
    assert (config.world_size, config.language, config.seed, config.turn) == (2, "cpp", 11, 0)
    assert (config.until, config.timing_budget_s) == ("time", 0.1)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"problem": None}, ConfigError, "needs a column 'problem'"),
        ({"problem": "AllReduc"}, ProblemNotFound, "Did you mean"),
        ({"language": "fortran"}, ConfigError, "(?s)row of problem AllReduce.*language"),
        ({"size": "{"}, ConfigError, "row of problem AllReduce: size is no JSON"),
        ({"style": "long"}, ConfigError, "style must be one of full, standard, brief, got 'long'"),
    ],
)
def test_a_row_that_makes_no_sense_is_refused(rollouts, change, error, words):
    with pytest.raises(error, match=words):
        rollouts.begin(row(**change))


def test_a_rollout_is_paid_its_best_submission(rollouts):
    episode = rollouts.begin(row())
    assert episode.episode_value == 0.0
    assert "PASSED" in asyncio.run(episode.submit("speedup 10"))
    assert "compile_error" in asyncio.run(episode.submit("compile_error"))
    assert "spent" in asyncio.run(episode.submit("speedup 20"))
    assert episode.episode_value == pytest.approx(1.3, abs=1e-3)
    assert [submission.turn.source for submission in episode.submissions] == ["speedup 10", "compile_error"]


def test_answers_are_in_the_style_of_the_row(rollouts):
    episode = rollouts.begin(row(style="brief"))
    assert len(asyncio.run(episode.submit("speedup 10"))) <= 300


def test_without_its_text_feedback_says_no_more_than_that_a_submission_failed(asynchronous):
    episode = Rollouts(asynchronous, find_reward("default"), max_turns=3, feedback="verdict").begin(row())
    assert asyncio.run(episode.submit("compile_error")) == "failed"
    assert asyncio.run(episode.submit("output_mismatch 0.5")) == "failed"
    assert "PASSED" in asyncio.run(episode.submit("speedup 10"))
    assert episode.episode_value == pytest.approx(1.3, abs=1e-3)


def test_a_fault_of_ours_takes_the_rollout_out(rollouts):
    episode = rollouts.begin(row())
    asyncio.run(episode.submit("speedup 2"))
    asyncio.run(episode.submit("infrastructure"))
    assert episode.episode_value is None and episode.values() == [None]
    episode = rollouts.begin(row())
    assert episode.episode_value == 0.0


def test_a_message_has_the_value_of_its_best_submission(rollouts):
    episode = rollouts.begin(row())
    assert episode.values() == [0.0]
    episode.begin_message()  # its call could not be carried out
    episode.begin_message()
    asyncio.run(episode.submit("speedup 1"))
    asyncio.run(episode.submit("compile_error"))
    assert episode.values() == [0.0, 1.0]


@pytest.mark.parametrize(("reward", "value"), [("default", 0.0), ("cuda_agent", -1.0)])
def test_no_submission_has_the_value_of_a_rejected_one(asynchronous, reward, value):
    episode = Rollouts(asynchronous, find_reward(reward)).begin(row())
    assert episode.episode_value == value and episode.values() == [value]
    episode.begin_message()
    episode.begin_message()
    asyncio.run(episode.submit("speedup 2"))
    assert episode.values() == [value, episode.episode_value] and episode.episode_value > value
