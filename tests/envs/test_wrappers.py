"""ChatObservation: the Dict as messages."""

from __future__ import annotations

import doctest

import gymnasium as gym
import pytest

from pkb_gym.envs import ChatAction, ChatObservation, wrappers
from pkb_gym.problems.catalogue import find_problem, reference_source

pytestmark = pytest.mark.usefixtures("evaluator")


@pytest.fixture
def env():
    return ChatObservation(gym.make("PKB/AllReduce-v0", evaluator="fake", device="cpu"))


def test_examples_in_docstrings_hold():
    result = doctest.testmod(wrappers)
    assert result.attempted and not result.failed


def test_the_first_message_is_the_task(env):
    message, _ = env.reset(seed=0)
    assert message == env.unwrapped.reset(seed=0)[0]["task"]
    assert message in env.observation_space


def test_later_messages_are_the_feedback_and_the_standing(env):
    env.reset(seed=0)
    first, *_ = env.step("infrastructure")
    assert first.startswith("Turn 1\n\nFAILED: infrastructure") and first.endswith(
        "No submission counts yet.\n7 submissions left."
    )
    second, *_ = env.step("output_mismatch 0.5")
    assert second.endswith("Best so far: turn 2, value 0.0813.\n6 submissions left.")
    third, *_ = env.step("speedup 2")
    assert third.startswith("Turn 3\n\nPASSED")
    assert third.endswith("Best so far: turn 3, value 1.27, speedup 2.\n5 submissions left.")
    assert third in env.observation_space


def test_the_wrapper_survives_json(env):
    again = gym.make(gym.envs.registration.EnvSpec.from_json(env.spec.to_json()))
    assert isinstance(again, ChatObservation) and isinstance(again.reset(seed=0)[0], str)


def test_a_reply_is_submitted_by_what_it_holds(evaluator):
    env = ChatAction(ChatObservation(gym.make("PKB/AllReduce-v0", evaluator="fake", device="cpu")))
    env.reset(seed=0)
    reply = "<think>```\nno\n```</think>Try this:\n```cpp\nspeedup 2.0\n```"
    message, reward, _, _, info = env.step(reply)
    assert evaluator.requested[-1][1] == "speedup 2.0\n" and reward > 1
    assert (info["taken"], info["reply"]) == ("the fenced block", reply)
    message, reward, _, truncated, info = env.step("I do not know.")
    assert info["taken"].startswith("nothing") and info["reply"] == "I do not know."
    assert "FAILED: rejected" in message and reward == 0.0 and not truncated
    assert "x" * 50 in env.action_space


def test_a_quoted_reference_is_not_what_a_reply_submits(env, evaluator):
    env = ChatAction(env)
    env.reset(seed=0)
    own = "def solution(x):\n    return fast(x)\n"
    env.step(f"```python\n{own}```\nIt replaces this:\n```python\n{reference_source(find_problem('AllReduce'))}\n```")
    assert evaluator.requested[-1][1] == own


def test_a_reply_that_is_no_text_is_wrong_usage(env):
    with pytest.raises(gym.error.InvalidAction, match=r"an action is a model's reply \(str\), got bytes"):
        ChatAction(env).step(b"x")


def test_replies_survive_json(env):
    spec = ChatAction(gym.make("PKB/AllReduce-v0", evaluator="fake", device="cpu")).spec
    again = gym.make(gym.envs.registration.EnvSpec.from_json(spec.to_json()))
    assert isinstance(again, ChatAction)
