"""Ways to reset, side by side with Gymnasium's own vector environment, and to wait, by `send` and `recv`."""

from __future__ import annotations

import pickle
import threading

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode

from pkb_gym.engine.errors import ConfigError, InfrastructureError

pytestmark = pytest.mark.usefixtures("evaluator")
FAKE = {"evaluator": "fake", "device": "cpu", "world_size": 2}
PATIENCE_S = 30.0


def make_vec(env_id="PKB/AllReduce-v0", num_envs=3, **kwargs):
    return gym.make_vec(env_id, num_envs=num_envs, **FAKE, **kwargs)


def pair(mode, env_id="PKB/AllReduce-v0", **kwargs):
    """Ours, and Gymnasium's."""
    sync = {"vectorization_mode": "sync", "vector_kwargs": {"autoreset_mode": mode}}
    return make_vec(env_id, autoreset_mode=mode, **kwargs), make_vec(env_id, **sync, **kwargs)


def assert_equal(ours, theirs, where=""):
    """Like `data_equivalence`, and through arrays of objects."""
    assert type(ours) is type(theirs), (where, ours, theirs)
    if isinstance(ours, dict):
        assert list(ours) == list(theirs), where
        for key, value in ours.items():
            assert_equal(value, theirs[key], f"{where}.{key}")
    elif isinstance(ours, tuple) or (isinstance(ours, np.ndarray) and ours.dtype == object):
        for each, other in zip(ours, theirs, strict=True):
            assert_equal(each, other, where)
    else:
        assert data_equivalence(ours, theirs) or ours == theirs, (where, ours, theirs)


ACTIONS = [
    ("speedup 2", "compile_error", "infrastructure"),
    ("speedup 3", "race", "speedup 1"),
    ("speedup 2.5", "speedup 2", "speedup 4"),
    ("speedup 1", "speedup 2", "speedup 3"),
]


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("problem", ["PKB/AllReduce-v0", "PKB/Suite-v0"])
def test_modes_do_as_gymnasiums_own(mode, problem):
    split = {"split": ["AllReduce", "Gather"]} if "Suite" in problem else {}
    ours, theirs = pair(mode, problem, max_episode_steps=2, **split)
    assert ours.metadata["autoreset_mode"] is theirs.metadata["autoreset_mode"] is mode
    assert_equal(ours.reset(seed=4), theirs.reset(seed=4))
    for actions in ACTIONS:
        assert_equal(ours.step(actions), theirs.step(actions))
    for envs in (ours, theirs):
        envs.close()


def test_the_last_observation_is_kept_in_the_same_step():
    envs = make_vec(autoreset_mode="SameStep", max_episode_steps=1)
    envs.reset(seed=0)
    observations, rewards, _, truncated, infos = envs.step(["speedup 2", "compile_error", "speedup 3"])
    assert truncated.all() and observations["turn"].tolist() == [[0]] * 3
    assert [each["turn"][0] for each in infos["final_obs"]] == [1] * 3
    assert infos["final_info"]["feedback"][1].failure == "compile_error" and rewards[0] > rewards[1]
    assert infos["problem"].tolist() == ["AllReduce"] * 3
    envs.close()


def test_a_mask_resets_some_as_gymnasiums_own():
    ours, theirs = pair(AutoresetMode.DISABLED, max_episode_steps=2)
    assert_equal(ours.reset(seed=1), theirs.reset(seed=1))
    for actions in ACTIONS[1:3]:
        assert_equal(ours.step(actions), theirs.step(actions))
    with pytest.raises(gym.error.ResetNeeded, match=r"sub-environments \[0, 1, 2\] have ended; .*reset_mask"):
        ours.step(ACTIONS[0])
    mask = np.array([True, False, True])
    options = {"reset_mask": mask}
    found = ours.reset(seed=[7, 8, 9], options=options)
    assert options == {"reset_mask": mask}, "Gymnasium takes it out of the caller's dict"
    assert_equal(found, theirs.reset(seed=[7, 8, 9], options=options))
    assert found[0]["turn"].tolist() == [[0], [2], [0]]
    with pytest.raises(gym.error.ResetNeeded, match=r"sub-environments \[1\] have ended"):
        ours.step(ACTIONS[0])
    ours.send(["speedup 2", "speedup 3"], [2, 0])
    assert sorted(ours.recv(2)[-1]["env_id"].tolist()) == [0, 2]
    for envs in (ours, theirs):
        envs.close()


@pytest.mark.parametrize("mask", [[True, False, True], np.zeros(3, np.bool_), np.ones(2, np.bool_), np.ones(3)])
def test_masks_that_are_none(mask):
    envs = make_vec()
    envs.reset(seed=0)
    with pytest.raises(ConfigError, match=r"options\['reset_mask'\] is a numpy array of 3 booleans, at least one"):
        envs.reset(options={"reset_mask": mask})
    envs.close()


def test_unknown_modes_are_refused():
    with pytest.raises(ConfigError, match="must be one of 'NextStep', 'SameStep', 'Disabled', got 'same'"):
        make_vec(autoreset_mode="same")


class Gate:
    """Has sources that begin with "late" wait."""

    def __init__(self, evaluator, monkeypatch):
        self.opened, evaluate = threading.Event(), type(evaluator).evaluate

        def gated(judge, problem, source, *rest):
            if source.startswith("late "):
                assert self.opened.wait(PATIENCE_S)
            return evaluate(judge, problem, source.removeprefix("late "), *rest)

        monkeypatch.setattr(type(evaluator), "evaluate", gated)


def test_nobody_waits_for_the_slowest(evaluator, monkeypatch):
    gate, envs = Gate(evaluator, monkeypatch), make_vec()
    envs.reset(seed=0)
    envs.send(["late speedup 2", "speedup 3", "compile_error"])
    observations, rewards, terminated, truncated, infos = envs.recv(2)
    assert sorted(infos["env_id"].tolist()) == [1, 2]
    by_id = dict(zip(infos["env_id"].tolist(), rewards.tolist(), strict=True))
    assert by_id[1] > 1 > by_id[2] and len(observations["task"]) == len(terminated) == len(truncated) == 2
    assert [each.failure for each in infos["feedback"]] == [
        None if i == 1 else "compile_error" for i in infos["env_id"]
    ]
    for _ in range(2):  # the fast one goes on while the slow one is judged
        envs.send(["speedup 4"], np.array([1]))
        assert envs.recv()[-1]["env_id"].tolist() == [1]
    with pytest.raises(ConfigError, match=r"recv\(2\): results of 1 sub-environments are under way"):
        envs.recv(2)
    gate.opened.set()
    observations, *_, infos = envs.recv()
    assert infos["env_id"].tolist() == [0] and observations["turn"].tolist() == [[1]]
    with pytest.raises(ConfigError, match=r"recv\(\): results of 0 sub-environments"):
        envs.recv()
    envs.close()


def test_send_refuses_what_is_under_way(evaluator, monkeypatch):
    gate, envs = Gate(evaluator, monkeypatch), make_vec()
    with pytest.raises(gym.error.ResetNeeded, match=r"env\.send\(\) before"):
        envs.send(["speedup 1"] * 3)
    envs.reset(seed=0)
    envs.send(["late speedup 2"], [1])
    for call in (lambda: envs.send(["speedup 1"], [1]), lambda: envs.step(["speedup 1"] * 3), envs.reset):
        with pytest.raises(ConfigError, match=r"results of sub-environments \[1\] are under way; recv\(\) takes them"):
            call()
    with pytest.raises(TypeError, match="recv"):
        pickle.dumps(envs)
    for env_ids in ([0, 0], [3], [-1], ["0"], [True]):
        with pytest.raises(ConfigError, match="env_ids are"):
            envs.send(["speedup 1"] * len(env_ids), env_ids)
    with pytest.raises(ConfigError, match="expected a sequence of 2 sources"):
        envs.send(["speedup 1"], [0, 2])
    with pytest.raises(gym.error.InvalidAction, match="action 2"):
        envs.send(["speedup 1", 5], [0, 2])
    gate.opened.set()
    assert envs.recv(1)[-1]["env_id"].tolist() == [1]
    envs.close()
    with pytest.raises(gym.error.ClosedEnvironmentError):
        envs.recv()


@pytest.mark.parametrize(("mode", "turns"), [("NextStep", [1, 2, 0, 1]), ("SameStep", [1, 0, 1, 0])])
def test_ended_episodes_are_reset_with_send_too(mode, turns, evaluator):
    envs = make_vec(autoreset_mode=mode, max_episode_steps=2)
    envs.reset(seed=0)
    seen = []
    for _ in range(4):
        envs.send(["speedup 2"], [2])
        observations, *_, infos = envs.recv()
        seen.append(int(observations["turn"][0, 0]))
        assert len(infos["env_id"]) == 1 and ("final_obs" in infos) == (mode == "SameStep" and seen[-1] == 0)
    assert seen == turns
    envs.close()


def test_an_evaluator_that_breaks_leaves_the_other_results(evaluator, monkeypatch):
    evaluate = type(evaluator).evaluate

    def broken(judge, problem, source, *rest):
        if source == "broken":
            raise InfrastructureError("no sandbox")
        return evaluate(judge, problem, source, *rest)

    monkeypatch.setattr(type(evaluator), "evaluate", broken)
    envs = make_vec()
    envs.reset(seed=0)
    envs.send(["speedup 1", "broken", "speedup 2"])
    with pytest.raises(InfrastructureError, match="no sandbox"):
        envs.recv(3)
    assert sorted(envs.recv(2)[-1]["env_id"].tolist()) == [0, 2]
    envs.close()
