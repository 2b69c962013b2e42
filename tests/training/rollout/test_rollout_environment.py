"""The environment that TRL drives, and what a row of the prompts comes to."""

from __future__ import annotations

import asyncio
import doctest
import inspect

import pytest
from transformers.utils import get_json_schema

from pkb_gym.engine.errors import ConfigError, ProblemNotFound
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.problems.catalogue import find_problem, reference_source
from pkb_gym.rewards import find_reward
from pkb_gym.training.evaluation.async_evaluator import AsyncEvaluator
from pkb_gym.training.inputs.chat import submit_tools
from pkb_gym.training.rollout import rollout_environment
from pkb_gym.training.rollout.rollout_environment import RolloutEnvironment, Rollouts, submitted_source
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
def environment(asynchronous):
    base = EvalConfig(until="time", timing_budget_s=0.1)
    return RolloutEnvironment(Rollouts(asynchronous, find_reward("default"), max_turns=2, base=base))


def test_examples_in_docstrings_hold():
    result = doctest.testmod(rollout_environment)
    assert result.attempted and not result.failed


def test_its_tool_is_the_one_that_models_are_taught(environment):
    """TRL makes a tool of every public function of the class but `reset` and `get_reward`."""
    tools = {name for name, _ in inspect.getmembers(RolloutEnvironment, inspect.isfunction) if not name.startswith("_")}
    assert tools == {"reset", "submit", "get_reward"}
    assert inspect.iscoroutinefunction(environment.submit)
    assert (get_json_schema(environment.submit),) == submit_tools()


def test_a_row_decides_how_submissions_are_judged(environment, evaluator):
    assert environment.reset(**row(size='{"M": 64, "N": 32}', seed=11)) is None
    asyncio.run(environment.submit("speedup 2"))
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
def test_a_row_that_makes_no_sense_is_refused(environment, change, error, words):
    with pytest.raises(error, match=words):
        environment.reset(**row(**change))


def test_a_rollout_is_paid_its_best_submission(environment):
    environment.reset(**row())
    assert environment.get_reward() == 0.0
    assert "PASSED" in asyncio.run(environment.submit("speedup 10"))
    assert "compile_error" in asyncio.run(environment.submit("compile_error"))
    assert "spent" in asyncio.run(environment.submit("speedup 20"))
    assert environment.get_reward() == pytest.approx(1.3, abs=1e-3)
    assert [submission.turn.source for submission in environment.episode.submissions] == ["speedup 10", "compile_error"]


def test_answers_are_in_the_style_of_the_row(environment):
    environment.reset(**row(style="brief"))
    assert len(asyncio.run(environment.submit("speedup 10"))) <= 300


def test_without_its_text_feedback_says_no_more_than_that_a_submission_failed(asynchronous):
    environment = RolloutEnvironment(Rollouts(asynchronous, find_reward("default"), max_turns=3, feedback="verdict"))
    environment.reset(**row())
    assert asyncio.run(environment.submit("compile_error")) == "failed"
    assert asyncio.run(environment.submit("output_mismatch 0.5")) == "failed"
    assert "PASSED" in asyncio.run(environment.submit("speedup 10"))
    assert environment.get_reward() == pytest.approx(1.3, abs=1e-3)


def test_a_fault_of_ours_takes_the_rollout_out(environment):
    environment.reset(**row())
    asyncio.run(environment.submit("speedup 2"))
    asyncio.run(environment.submit("infrastructure"))
    assert environment.get_reward() is None and environment.episode.values() == [None]
    environment.reset(**row())
    assert environment.get_reward() == 0.0


def test_a_message_has_the_value_of_its_best_submission(environment):
    environment.reset(**row())
    episode = environment.episode
    assert episode.values() == [0.0]
    episode.begin_message()  # its call could not be carried out
    episode.begin_message()
    asyncio.run(environment.submit("speedup 1"))
    asyncio.run(environment.submit("compile_error"))
    assert episode.values() == [0.0, 1.0]


@pytest.mark.parametrize(("reward", "value"), [("default", 0.0), ("cuda_agent", -1.0)])
def test_no_submission_has_the_value_of_a_rejected_one(asynchronous, reward, value):
    episode = Rollouts(asynchronous, find_reward(reward)).begin(row())
    assert episode.episode_value == value and episode.values() == [value]
    episode.begin_message()
    episode.begin_message()
    asyncio.run(episode.submit("speedup 2"))
    assert episode.values() == [value, episode.episode_value] and episode.episode_value > value


@pytest.mark.parametrize(
    ("completion", "source"),
    [
        ("no code", None),
        ("```cpp\nunfinished", None),
        ("```\na\n```", "a\n"),
        ([{"role": "assistant", "content": "```cuda\nfirst\n```\nor\n```cuda\n`second`\n```"}], "`second`\n"),
    ],
)
def test_the_last_block_of_code_is_submitted(completion, source):
    assert submitted_source(completion, PROBLEM) == source


def test_a_quoted_reference_is_not_submitted():
    own = "def solution(x):\n    return fast(x)\n"
    completion = f"```python\n{own}```\nin place of\n```python\n{reference_source(PROBLEM)}```"
    assert submitted_source(completion, PROBLEM) == own
