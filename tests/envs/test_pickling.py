"""Environments go through pickle, and through Gymnasium's own vector environments and wrappers or say why not."""

from __future__ import annotations

import copy
import pickle

import gymnasium as gym
import pytest
from gymnasium.utils.env_checker import data_equivalence

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.envs import ChatAction, ChatObservation, KernelTool
from pkb_gym.envs.registration import env_ids
from tests.whole_tables import sampled

pytestmark = pytest.mark.usefixtures("evaluator")
FAKE = {"evaluator": "fake", "device": "cpu", "world_size": 2}


def again(thing):
    return pickle.loads(pickle.dumps(thing))


@pytest.mark.parametrize("env_id", sampled(sorted(set(env_ids()) - {"PKB/Path-v0"}), 4))  # that one needs a path
def test_every_environment_pickles(env_id):
    """Declarations hold lambdas, which no pickle takes."""
    env = gym.make(env_id, **FAKE)
    copied = again(env)
    assert copied.unwrapped.problem is env.unwrapped.problem and copied.unwrapped.config == env.unwrapped.config


def test_a_copy_goes_on_where_the_original_was():
    env = ChatAction(ChatObservation(gym.make("PKB/Suite-v0", split=["AllReduce", "Gather"], **FAKE)))
    env.reset(seed=3)
    env.step("```\nspeedup 2.0\n```")
    for copied in (again(env), copy.deepcopy(env)):
        assert data_equivalence(
            copied.step("```\nspeedup 1.5\n```")[:4], copy.deepcopy(env).step("```\nspeedup 1.5\n```")[:4]
        )
        assert copied.reset()[1] == copy.deepcopy(env).reset()[1]


def test_vector_environments_and_tools_pickle():
    envs = gym.make_vec("PKB/AllReduce-v0", num_envs=2, **FAKE)
    envs.reset(seed=1)
    envs.step(["speedup 2.0", "compile_error"])
    copied = again(envs)
    assert (
        copied.step(["speedup 2.0", "speedup 3.0"])[1].tolist() == envs.step(["speedup 2.0", "speedup 3.0"])[1].tolist()
    )
    for each in (envs, copied):
        each.close()
    tool = KernelTool(split=["AllReduce"], **FAKE)
    tool.reset(problem="AllReduce")
    tool.submit("speedup 2.0")
    assert again(tool).get_reward() == tool.get_reward() > 1


def test_an_evaluator_that_owns_processes_refuses_to_pickle_with_the_reason():
    with LocalEvaluator() as evaluator:
        env = gym.make("PKB/AllReduce-v0", device="cpu", evaluator=evaluator)
        with pytest.raises(TypeError, match="owns processes of this machine and cannot be pickled; name it"):
            pickle.dumps(env)
        assert copy.deepcopy(evaluator) is evaluator


def test_processes_of_their_own_need_no_shared_memory():
    """The error was `KeyError: '#'` in a worker, for the first character of the task."""
    with pytest.raises(
        ConfigError, match=r'texts do not lie in shared memory; .*vector_kwargs=\{"shared_memory": False\}'
    ):
        gym.make_vec("PKB/AllReduce-v0", num_envs=2, vectorization_mode="async", **FAKE)


def test_asynchronous_environments_work_without_shared_memory():
    envs = gym.make_vec(
        "PKB/AllReduce-v0", 2, vectorization_mode="async", vector_kwargs={"shared_memory": False}, **FAKE
    )
    try:
        observations, _ = envs.reset(seed=1)
        assert [task.splitlines()[0] for task in observations["task"]] == ["# AllReduce"] * 2
        observations, rewards, *_ = envs.step(("speedup 2.0", "compile_error"))
        assert rewards[0] > 1 > rewards[1] > 0
        assert "PASSED" in observations["feedback"][0] and "compile_error" in observations["feedback"][1]
    finally:
        envs.close()


def test_synchronous_environments_work():
    envs = gym.make_vec("PKB/AllReduce-v0", 2, vectorization_mode="sync", **FAKE)
    envs.reset(seed=1)
    assert envs.step(("speedup 2.0", "compile_error"))[1][0] > 1
    envs.close()


def test_texts_are_not_flattened():
    """The error was `KeyError: '#'` at the first reset."""
    with pytest.raises(ConfigError, match=r"texts of any characters are no array of numbers; take .*ChatObservation"):
        gym.wrappers.FlattenObservation(gym.make("PKB/AllReduce-v0", **FAKE))


def test_numbers_alone_are_flattened():
    env = gym.make("PKB/AllReduce-v0", **FAKE)
    env = gym.wrappers.FlattenObservation(gym.wrappers.FilterObservation(env, ["times_us", "speedup", "stage"]))
    env.reset(seed=0)
    observation, *_ = env.step("speedup 2.0")
    assert observation in env.observation_space and observation.sum() > 100
