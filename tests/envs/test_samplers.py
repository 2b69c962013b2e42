"""Samplers: who is drawn how often, and that nothing but the generator and the updates decides it."""

from __future__ import annotations

import doctest
import pickle
from collections import Counter

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

import pkb_gym.envs.samplers
from pkb_gym.engine.errors import ConfigError
from pkb_gym.envs.samplers import SAMPLERS, LearningProgress, Uniform, find_sampler
from pkb_gym.envs.suite import SuiteEnv
from tests.envs.test_suite import drawn, suite

pytestmark = pytest.mark.usefixtures("evaluator")
SPLIT = ["AllReduce", "Scatter", "Gather"]  # in upstream order


def probabilities(sampler, names=SPLIT):
    return dict(zip(names, sampler.probabilities(names).tolist(), strict=True))


def shares(sampler, draws=4000):
    rng = np.random.default_rng(0)
    counts = Counter(sampler.choose(SPLIT, rng) for _ in range(draws))
    return {name: counts[name] / draws for name in SPLIT}


class RoundRobin:
    """Any object with both methods will do."""

    def __init__(self):
        self.rewards = []

    def choose(self, names, rng):
        return names[len(self.rewards) % len(names)]

    def update(self, name, reward):
        self.rewards.append((name, reward))


def test_examples_in_docstrings_hold():
    result = doctest.testmod(pkb_gym.envs.samplers)
    assert result.attempted and not result.failed


def test_before_the_first_update_all_are_equally_likely():
    assert set(probabilities(LearningProgress()).values()) == {1 / 3}


def test_draws_follow_the_probabilities():
    sampler = LearningProgress(floor=0.3)
    sampler.update("Gather", 2.0)
    sampler.update("Scatter", 1.0)
    wanted = probabilities(sampler)
    assert wanted == pytest.approx({"AllReduce": 0.1, "Gather": 0.1 + 0.7 * 2 / 3, "Scatter": 0.1 + 0.7 / 3})
    assert shares(sampler) == pytest.approx(wanted, abs=0.03)


def test_what_rises_or_falls_is_drawn_more_often_than_what_stays():
    sampler = LearningProgress()
    for turn in range(60):
        for name, reward in (("AllReduce", 1.0), ("Gather", float(turn >= 55)), ("Scatter", float(turn < 55))):
            sampler.update(name, reward)
    found = probabilities(sampler)
    assert found["Gather"] > 5 * found["AllReduce"] and found["Scatter"] > 5 * found["AllReduce"]
    assert found["AllReduce"] >= sampler.floor / 3


def test_progress_is_that_of_the_moving_averages():
    """By hand: fast 0.5, 0.25 + 1 = 1.25; slow 0.1, 0.09 + 0.2 = 0.29."""
    sampler = LearningProgress(fast_rate=0.5, slow_rate=0.1)
    for reward in (1.0, 2.0):
        sampler.update("Gather", reward)
    assert sampler.averages["Gather"] == pytest.approx((1.25, 0.29))
    assert sampler.progress("Gather") == pytest.approx(0.96) and sampler.progress("Scatter") == 0


@pytest.mark.parametrize("rewards", [(1e-300, 2e-300), (1e300, 1e300), (-1.0, 1.0)])
def test_probabilities_are_finite_whatever_the_scale(rewards):
    sampler = LearningProgress()
    for name, reward in zip(SPLIT, rewards, strict=False):
        sampler.update(name, reward)
    found = list(probabilities(sampler).values())
    assert sum(found) == pytest.approx(1) and min(found) >= sampler.floor / 3 - 1e-12


def test_a_problem_outside_the_split_changes_nothing_of_it():
    sampler = LearningProgress()
    sampler.update("HyenaCP", 2.0)
    assert set(probabilities(sampler).values()) == {1 / 3}


def test_with_a_floor_of_1_all_are_equally_likely_after_all():
    sampler = LearningProgress(floor=1.0)
    sampler.update("Gather", 1.0)
    assert probabilities(sampler) == pytest.approx(dict.fromkeys(SPLIT, 1 / 3))


@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers_pickle_with_what_they_learnt(name):
    sampler = find_sampler(name)
    sampler.update("Gather", 1.0)
    again = pickle.loads(pickle.dumps(sampler))
    assert again == sampler and shares(again, 50) == shares(sampler, 50)


def test_an_object_is_handed_back_as_it_is():
    sampler = RoundRobin()
    assert find_sampler(sampler) is sampler


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        ("unifrom", "no sampler 'unifrom'. Did you mean 'uniform'\\? There are uniform, learning_progress"),
        ({"floor": 0.1}, "no sampler None"),
        ({"name": "learning_progress", "flor": 0.1}, "sampler 'learning_progress': .*unexpected keyword argument 'flo"),
        ({"name": "learning_progress", "floor": 2}, "floor is a share of the draws, 0 to 1, got 2"),
        ({"name": "learning_progress", "fast_rate": 0.1}, "slow_rate < fast_rate"),
        (3, "a sampler is a name, a mapping or an object with choose and update, got 3"),
    ],
)
def test_samplers_that_do_not_exist_are_refused(sampler, message):
    with pytest.raises(ConfigError, match=message):
        find_sampler(sampler)


def test_a_reward_that_is_not_finite_is_refused():
    with pytest.raises(ValueError, match="Gather: a reward must be finite, got nan"):
        LearningProgress().update("Gather", float("nan"))


def test_the_suite_draws_uniformly_by_default():
    env = suite(SPLIT)
    rng, names = np.random.default_rng(7), []
    for _ in range(12):  # the problem, then the inputs' seed
        names.append(SPLIT[int(rng.integers(3))])
        rng.integers(2**31 - 1)
    assert env.sampler == Uniform() and drawn(env, 7) == names


def test_the_sampler_gets_the_best_of_each_episode_at_the_next_reset():
    sampler = RoundRobin()
    env = suite(SPLIT, sampler=sampler)
    env.reset(seed=0)
    for action in ("compile_error", "speedup 1", "runtime_error"):
        env.step(action)
    assert sampler.rewards == []
    assert env.reset()[1]["problem"] == "Scatter"
    env.reset()  # nothing was submitted: no reward to learn from
    env.step("infrastructure")
    env.reset(options={"problem": "HyenaCP"})
    env.step("compile_error")
    env.reset()
    assert sampler.rewards == [("AllReduce", 1.0), ("HyenaCP", 0.01)]


def test_an_episode_is_reported_once_though_the_next_could_not_begin():
    sampler = RoundRobin()
    env = suite(SPLIT, sampler=sampler)
    env.reset(seed=0)
    env.step("speedup 1")
    with pytest.raises(Exception, match="no problem 'HyenaPC'"):
        env.reset(options={"problem": "HyenaPC"})
    env.reset()
    assert sampler.rewards == [("AllReduce", 1.0)]


def episodes(env, seed, count=20):
    """Problems drawn where only Gather is ever solved."""
    names = []
    for episode in range(count):
        name = env.reset(seed=seed if episode == 0 else None)[1]["problem"]
        names.append(name)
        env.step("speedup 2" if name == "Gather" else "rejected")
    return names


def test_the_seed_fixes_what_learning_progress_draws():
    first, again, other = (episodes(suite(SPLIT, sampler="learning_progress"), seed) for seed in (1, 1, 2))
    assert first == again != other
    assert first.count("Gather") > 2 * 20 / 3


def test_the_sampler_survives_json_by_name_and_with_parameters():
    requested = {"name": "learning_progress", "floor": 0.5}
    env = gym.make("PKB/Suite-v0", split=SPLIT, sampler=requested, evaluator="fake", device="cpu")
    again = gym.make(EnvSpec.from_json(env.spec.to_json()))
    assert again.unwrapped.sampler == env.unwrapped.sampler == LearningProgress(floor=0.5)


def test_environments_by_name_share_nothing():
    first, second = (SuiteEnv(SPLIT, "learning_progress", evaluator="fake", device="cpu") for _ in range(2))
    first.sampler.update("Gather", 1.0)
    assert second.sampler == LearningProgress()


def vector_episodes(steps=30):
    envs = gym.make_vec(
        "PKB/Suite-v0",
        num_envs=3,
        split=SPLIT,
        sampler="learning_progress",
        max_episode_steps=1,
        evaluator="fake",
        device="cpu",
    )
    names = list(envs.reset(seed=0)[1]["problem"])
    for _ in range(steps):
        actions = ["speedup 2" if env.problem.name == "Gather" else "rejected" for env in envs.bare_envs]
        infos = envs.step(actions)[4]
        names += list(infos.get("problem", ()))
    samplers = [env.sampler for env in envs.bare_envs]
    envs.close()
    return names, samplers


def test_a_vector_environment_has_one_sampler_that_gets_all_in_order():
    names, samplers = vector_episodes()
    assert all(sampler is samplers[0] for sampler in samplers)
    again, others = vector_episodes()
    assert names == again and samplers[0] == others[0]
    assert set(samplers[0].averages) == set(SPLIT)
