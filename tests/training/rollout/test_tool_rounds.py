"""A wrong call is the policy's fault and is answered; an exception of a tool is not, and takes the rollout out."""

from __future__ import annotations

import asyncio

import pytest

from pkb_gym.rewards import find_reward
from pkb_gym.training.evaluation.async_evaluator import AsyncEvaluator
from pkb_gym.training.rollout.episodes import PolicyReply
from pkb_gym.training.rollout.rollout_environment import RolloutEnvironment, Rollouts
from pkb_gym.training.rollout.tool_rounds import ToolBox
from tests.envs.fake_evaluator import FakeEvaluator
from tests.training.scripted import row


@pytest.fixture
def environment():
    evaluator = AsyncEvaluator(FakeEvaluator())
    environment = RolloutEnvironment(Rollouts(evaluator, find_reward("default"), max_turns=3))
    environment.reset(**row())
    yield environment
    evaluator.close()


def play(environment, name="submit", tool=None, **arguments) -> str:
    """One message that calls a tool; returns the answer."""
    episode = environment.episode
    episode.add_reply(PolicyReply("", 1, 1))
    box = ToolBox({"submit": tool or environment.submit}, episode.begin_message, episode.record_fault)
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    (answer,) = asyncio.run(box.answer([call]))
    return answer["content"]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ({"name": "run", "source": "speedup 2"}, "Tool run not found."),
        ({"text": "speedup 2"}, "missing a required argument: 'source'"),
        ({"source": "speedup 2", "more": 1}, "unexpected keyword argument 'more'"),
        ({"source": 5}, "source must be a text, got int"),
    ],
)
def test_a_call_that_cannot_be_carried_out_has_the_empty_value(environment, call, words):
    assert words in play(environment, **call)
    assert environment.episode.values() == [0.0] and environment.episode.submitted() == [False]
    assert environment.get_reward() == 0.0


def test_an_exception_of_a_tool_is_no_reward_of_zero(environment):
    play(environment, source="speedup 1")

    async def submit(source: str) -> str:
        raise KeyError(source)

    assert "evaluator failed" in play(environment, tool=submit, source="speedup 10")
    assert environment.get_reward() is None
    assert environment.episode.values() == [None, None]
    assert environment.episode.submissions[-1].verdict.fault == "crashed"
    assert "nothing more is judged" in play(environment, source="speedup 10")


def test_a_type_error_inside_a_tool_is_not_taken_for_a_wrong_call(environment):
    async def submit(source: str) -> str:
        return len(5)

    play(environment, tool=submit, source="speedup 10")
    assert environment.get_reward() is None


def test_a_reply_without_a_call_is_a_turn_of_its_own(environment):
    play(environment, source="speedup 1")
    environment.episode.add_reply(PolicyReply("<tool_call>{", 1, 1))
    assert environment.episode.values() == [1.0, 0.0]
    assert environment.episode.submitted() == [True, False]
    assert environment.get_reward() == 1.0
