"""A wrong call is the policy's fault and is answered; an exception of a tool is not, and takes the rollout out."""

from __future__ import annotations

import asyncio

import pytest

from pkb_gym.rewards import find_reward
from pkb_gym.training.evaluation.async_evaluator import AsyncEvaluator
from pkb_gym.training.rollout.episodes import PolicyReply
from pkb_gym.training.rollout.rollouts import Rollouts
from pkb_gym.training.rollout.tool_rounds import ToolBox
from tests.envs.fake_evaluator import FakeEvaluator
from tests.training.scripted import row


@pytest.fixture
def episode():
    evaluator = AsyncEvaluator(FakeEvaluator())
    yield Rollouts(evaluator, find_reward("default"), max_turns=3).begin(row())
    evaluator.close()


def play(episode, name="submit", tool=None, **arguments) -> str:
    """One message that calls a tool; returns the answer."""
    episode.add_reply(PolicyReply("", 1, 1))
    box = ToolBox({"submit": tool or episode.submit}, episode.begin_message, episode.record_fault)
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
def test_a_call_that_cannot_be_carried_out_has_the_empty_value(episode, call, words):
    assert words in play(episode, **call)
    assert episode.values() == [0.0] and episode.submitted() == [False]
    assert episode.episode_value == 0.0


def test_an_exception_of_a_tool_is_no_reward_of_zero(episode):
    play(episode, source="speedup 1")

    async def submit(source: str) -> str:
        raise KeyError(source)

    assert "evaluator failed" in play(episode, tool=submit, source="speedup 10")
    assert episode.episode_value is None
    assert episode.values() == [None, None]
    assert episode.submissions[-1].verdict.fault == "crashed"
    assert "nothing more is judged" in play(episode, source="speedup 10")


def test_a_type_error_inside_a_tool_is_not_taken_for_a_wrong_call(episode):
    async def submit(source: str) -> str:
        return len(5)

    play(episode, tool=submit, source="speedup 10")
    assert episode.episode_value is None


def test_a_reply_without_a_call_is_a_turn_of_its_own(episode):
    play(episode, source="speedup 1")
    episode.add_reply(PolicyReply("<tool_call>{", 1, 1))
    assert episode.values() == [1.0, 0.0]
    assert episode.submitted() == [True, False]
    assert episode.episode_value == 1.0
