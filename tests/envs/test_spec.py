"""`gym.make(env.spec)` and its JSON rebuild everything; what JSON cannot hold says so."""

from __future__ import annotations

import json
import pickle

import gymnasium as gym
import pytest
from gymnasium.envs.registration import EnvSpec

from pkb_gym.engine.evaluators.remote import RemoteEvaluator
from pkb_gym.envs import ChatObservation, LearningProgress
from pkb_gym.rewards import find_reward
from pkb_gym.rewards.presets import PRESETS

pytestmark = pytest.mark.usefixtures("evaluator")
FAKE = {"evaluator": "fake", "device": "cpu", "world_size": 2}
EVERYTHING = FAKE | {
    "size": {"M": 8, "N": 16},
    "dtype": "float32",
    "language": "cpp",
    "protocol": "published",
    "until": "time",
    "timeout_s": 3.0,
    "race_check": "off",
    "style": "brief",
    "render_mode": "ansi",
    "max_episode_steps": 5,
}


def assert_same(one, other):
    assert one.spec == other.spec
    ours, theirs = one.unwrapped, other.unwrapped
    assert ours.problem is theirs.problem and ours.config == theirs.config
    assert ours._reward == theirs._reward and ours._evaluator == theirs._evaluator
    assert (ours.render_mode, ours.style) == (theirs.render_mode, theirs.style)
    assert one.reset(seed=5)[1] == other.reset(seed=5)[1]
    assert ours.request == theirs.request
    found, again = one.step("speedup 2"), other.step("speedup 2")
    assert found[1:4] == again[1:4] and found[0]["turns_left"] == again[0]["turns_left"]


def copies(spec):
    return spec, pickle.loads(pickle.dumps(spec)), EnvSpec.from_json(spec.to_json())


def test_every_argument_is_rebuilt():
    env = gym.make("PKB/AllReduce-v0", reward="fast_p:1.5", **EVERYTHING)
    for spec in copies(env.spec):
        assert_same(gym.make(spec), env)


@pytest.mark.parametrize("name", PRESETS)
def test_a_reward_object_becomes_its_record(name):
    """It became a dict of its fields, of which nothing could be made."""
    env = gym.make("PKB/AllReduce-v0", reward=find_reward(name), **FAKE)
    for spec in copies(env.spec):
        assert_same(gym.make(spec), env)


def test_a_sampler_object_becomes_its_mapping():
    sampler = LearningProgress(floor=0.5)
    sampler.update("Gather", 1.0)
    env = gym.make("PKB/Suite-v0", split=["AllReduce", "Gather"], sampler=sampler, **FAKE)
    assert env.unwrapped.sampler is sampler
    for spec in copies(env.spec):
        again = gym.make(spec)
        assert again.unwrapped.sampler.probabilities(["AllReduce", "Gather"]).tolist() == pytest.approx([0.25, 0.75])
        assert again.spec == env.spec and again.unwrapped.problem_names == env.unwrapped.problem_names


def test_wrappers_are_rebuilt():
    env = ChatObservation(gym.make("PKB/AllReduce-v0", **FAKE))
    again = gym.make(EnvSpec.from_json(env.spec.to_json()))
    assert isinstance(again, ChatObservation) and again.reset(seed=1)[0] == env.reset(seed=1)[0]


def test_vector_environments_are_rebuilt():
    kwargs = {"reward": find_reward("kevin"), "autoreset_mode": "SameStep", "max_episode_steps": 2}
    envs = gym.make_vec("PKB/AllReduce-v0", 3, **FAKE, **kwargs)
    for spec in copies(envs.spec):
        again = gym.make_vec(spec)
        assert again.spec == envs.spec and again.num_envs == 3 and again.metadata == envs.metadata
        assert [each.config for each in again.bare_envs] == [each.config for each in envs.bare_envs]
        assert again.bare_envs[0]._reward == envs.bare_envs[0]._reward
        again.close()
    envs.close()


def half(feedback):
    """A reward of one's own."""
    return 0.5


def test_a_function_becomes_its_name():
    env = gym.make("PKB/AllReduce-v0", reward=half, **FAKE)
    for spec in copies(env.spec):
        assert gym.make(spec).unwrapped._reward is half


def test_json_refuses_other_objects_and_make_takes_them():
    env = gym.make("PKB/AllReduce-v0", evaluator=RemoteEvaluator("http://127.0.0.1:1"), device="cpu")
    with pytest.raises(TypeError, match="is not JSON serializable"):
        env.spec.to_json()
    assert gym.make(env.spec).spec.kwargs.keys() == env.spec.kwargs.keys()


def test_json_holds_nothing_else():
    env = gym.make("PKB/AllReduce-v0", reward=find_reward("default"), **FAKE)
    kwargs = json.loads(env.spec.to_json())["kwargs"]
    assert kwargs["problem"] == "AllReduce" and json.loads(kwargs["reward"])["schema_version"] == 3
