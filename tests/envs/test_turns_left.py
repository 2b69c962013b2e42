"""The observation holds the turns that are left, whoever limits them."""

from __future__ import annotations

import gymnasium as gym
import pytest
from gymnasium.utils.env_checker import check_env

from pkb_gym.envs import ChatObservation, PKBEnv
from pkb_gym.envs.session import SubmissionSession

pytestmark = pytest.mark.usefixtures("evaluator")
FAKE = {"evaluator": "fake", "device": "cpu", "world_size": 2}


def left(observation):
    return int(observation["turns_left"][0]) if observation["is_limited"] else None


def counted(env, steps):
    observation, _ = env.reset(seed=0)
    seen = [left(observation)]
    for _ in range(steps):
        observation, *_ = env.step("speedup 2")
        seen.append(left(observation))
    assert observation in env.observation_space
    return seen


def test_the_default_limit_is_counted_down():
    assert counted(gym.make("PKB/AllReduce-v0", **FAKE), 8) == [8, 7, 6, 5, 4, 3, 2, 1, 0]


def test_the_limit_of_make_counts_and_the_least_of_several():
    env = gym.make("PKB/AllReduce-v0", max_episode_steps=3, **FAKE)
    assert counted(env, 3) == [3, 2, 1, 0] and counted(env, 1) == [3, 2]
    assert counted(gym.wrappers.TimeLimit(env, 2), 2) == [2, 1, 0]
    checked = gym.make("PKB/AllReduce-v0", max_episode_steps=3, disable_env_checker=False, **FAKE)
    assert counted(checked, 1) == [3, 2], "a wrapper that calls through functions lies between"


def test_without_a_limit_there_is_none():
    assert counted(gym.make("PKB/AllReduce-v0", max_episode_steps=-1, **FAKE), 1) == [None, None]
    env = PKBEnv("AllReduce", **FAKE)
    assert counted(env, 1) == [None, None]
    check_env(env, skip_render_check=True)


@pytest.mark.parametrize("vectorization_mode", ["vector_entry_point", "sync"])
def test_vector_environments_count_too(vectorization_mode):
    envs = gym.make_vec("PKB/AllReduce-v0", 2, vectorization_mode, max_episode_steps=3, **FAKE)
    assert envs.reset(seed=0)[0]["turns_left"].tolist() == [[3], [3]]
    assert envs.step(("speedup 2", "speedup 1"))[0]["turns_left"].tolist() == [[2], [2]]
    envs.close()


def test_chat_models_are_told():
    env = ChatObservation(gym.make("PKB/AllReduce-v0", max_episode_steps=2, **FAKE))
    env.reset(seed=0)
    assert env.step("speedup 2")[0].endswith("\n1 submission left.")
    assert env.step("speedup 2")[0].endswith("\n0 submissions left.")
    unlimited = ChatObservation(PKBEnv("AllReduce", **FAKE))
    unlimited.reset(seed=0)
    assert "left." not in unlimited.step("speedup 2")[0]


def test_sessions_count_their_own():
    session = SubmissionSession(["AllReduce"], max_turns=2, **FAKE)
    session.reset("AllReduce")
    assert session.submit("speedup 2").text.endswith("\n1 submission left.")
