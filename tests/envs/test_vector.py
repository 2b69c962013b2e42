"""The vector environment: side by side, in order, one evaluator."""

from __future__ import annotations

import threading

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.envs import PKBVectorEnv, SuiteVectorEnv

pytestmark = pytest.mark.usefixtures("evaluator")


def make_vec(env_id="PKB/AllReduce-v0", num_envs=3, **kwargs):
    return gym.make_vec(env_id, num_envs=num_envs, evaluator="fake", device="cpu", **kwargs)


@pytest.fixture
def envs():
    made = make_vec()
    yield made
    made.close()


def test_make_vec_gives_our_own(envs):
    assert isinstance(envs, PKBVectorEnv) and envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert envs.num_envs == 3 and envs.spec.id == "PKB/AllReduce-v0"


def test_a_step_outside_of_an_episode_is_refused(envs):
    """It was a TypeError of the time limit, or a RuntimeError of the threads."""
    with pytest.raises(gym.error.ResetNeeded, match=r"before calling env\.reset"):
        envs.step(["speedup 2"] * 3)
    envs.reset(seed=0)
    envs.step(["speedup 2"] * 3)
    envs.close()
    with pytest.raises(gym.error.ClosedEnvironmentError, match=r"env\.step\(\) after"):
        envs.step(["speedup 2"] * 3)
    with pytest.raises(gym.error.ClosedEnvironmentError, match=r"env\.reset\(\) after"):
        envs.reset()


def test_an_action_that_is_no_text_leaves_the_others_unjudged(envs):
    """They were judged, and their results lost: a second try found them judged before."""
    envs.reset(seed=0)
    with pytest.raises(gym.error.InvalidAction, match=r"action 1: source text \(str\) is needed, got int"):
        envs.step(["speedup 2", 5, "speedup 3"])
    assert [len(env.episode.turns) for env in envs.bare_envs] == [0, 0, 0]
    envs.step(["speedup 2", "speedup 2", "speedup 3"])
    assert [env.episode.best.speedup for env in envs.bare_envs] == [2, 2, 3]


def test_observations_are_batched_inside_the_space(envs):
    observations, infos = envs.reset(seed=0)
    assert observations in envs.observation_space
    assert infos["problem"].tolist() == ["AllReduce"] * 3
    observations, *_ = envs.step(["speedup 2", "compile_error", "x" * 2**21])
    assert observations in envs.observation_space
    assert observations["is_timed"].tolist() == [1, 0, 0]


def test_results_come_in_the_order_of_the_actions(envs):
    envs.reset(seed=0)
    _, rewards, terminated, truncated, infos = envs.step(["speedup 1", "infrastructure", "runtime_error"])
    assert rewards.tolist() == [1.0, 0.0, 0.03]
    assert terminated.tolist() == [False] * 3 and truncated.tolist() == [False, True, False]
    assert infos["reward_valid"].tolist() == [True, False, True]
    assert [feedback.failure for feedback in infos["feedback"]] == [None, "infrastructure", "runtime_error"]


def test_submissions_are_evaluated_at_the_same_time(envs, evaluator):
    """Each evaluation waits until all three have begun."""
    evaluator.meet = threading.Barrier(3)
    envs.reset(seed=0)
    assert envs.step(["speedup 1"] * 3)[1].tolist() == [1.0] * 3


def test_seeds_count_up_or_are_given(envs):
    counted = envs.reset(seed=4)[1]["input_seed"].tolist()
    assert envs.reset(seed=[4, 5, 6])[1]["input_seed"].tolist() == counted
    assert len(set(envs.reset()[1]["input_seed"].tolist() + counted)) == 6
    assert envs.reset(seed=[4, 4, 4])[1]["input_seed"].tolist() == [counted[0]] * 3


def test_an_episode_that_ended_begins_anew_with_the_next_step(evaluator):
    envs = make_vec(num_envs=2, max_episode_steps=2)
    envs.reset(seed=0)
    envs.step(["speedup 1", "speedup 1"])
    assert envs.step(["speedup 1", "speedup 1"])[3].tolist() == [True, True]
    requested = len(evaluator.requested)
    observations, rewards, terminated, truncated, infos = envs.step(["speedup 1", "speedup 1"])
    assert len(evaluator.requested) == requested
    assert observations["turn"].tolist() == [[0], [0]] and rewards.tolist() == [0, 0]
    assert not terminated.any() and not truncated.any() and "input_seed" in infos
    assert envs.step(["speedup 1", "speedup 1"])[1].tolist() == [1, 1]
    envs.close()


def test_only_what_ended_begins_anew(envs):
    envs.reset(seed=0)
    envs.step(["speedup 1", "infrastructure", "speedup 1"])
    observations, *_ = envs.step(["speedup 1"] * 3)
    assert observations["turn"].tolist() == [[2], [0], [2]]


def test_what_was_returned_is_not_changed_later(envs):
    first, _ = envs.reset(seed=0)
    turns = first["turn"].copy()
    envs.step(["speedup 1"] * 3)
    np.testing.assert_array_equal(first["turn"], turns)


@pytest.mark.parametrize("actions", [["speedup 1"], "abc"])
def test_a_wrong_number_of_actions_is_refused(envs, actions):
    envs.reset(seed=0)
    with pytest.raises(ValueError, match="expected a sequence of 3 sources"):
        envs.step(actions)


def test_a_wrong_number_of_seeds_is_refused(envs):
    with pytest.raises(ValueError, match="expected 3 seeds, one per sub-environment, got 2"):
        envs.reset(seed=[1, 2])


def test_an_evaluator_that_breaks_is_reported(envs, evaluator, monkeypatch):
    def broken(*_):
        raise InfrastructureError("no sandbox")

    envs.reset(seed=0)
    monkeypatch.setattr(type(evaluator), "evaluate", broken)
    with pytest.raises(InfrastructureError, match="no sandbox"):
        envs.step(["speedup 1"] * 3)


def test_closing_ends_the_threads(envs):
    envs.reset(seed=0)
    envs.step(["speedup 1"] * 3)
    envs.close()
    envs.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("pkb-vector")]


def test_the_suite_draws_a_problem_for_each():
    envs = make_vec("PKB/Suite-v0", num_envs=8, split=["AllReduce", "Gather"])
    assert isinstance(envs, SuiteVectorEnv)
    observations, infos = envs.reset(seed=0)
    assert set(infos["problem"]) == {"AllReduce", "Gather"}
    assert [task.splitlines()[0] for task in observations["task"]] == [f"# {name}" for name in infos["problem"]]
    envs.close()


def test_each_renders_its_own():
    envs = make_vec(num_envs=2, render_mode="ansi")
    envs.reset(seed=0)
    envs.step(["speedup 2", "compile_error"])
    fast, wrong = envs.render()
    assert "2x" in fast and "compile_error" in wrong
    envs.close()
