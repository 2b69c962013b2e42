"""Compiled on a machine without GPUs: neither passed nor failed, not paid, and nobody's fault."""

from __future__ import annotations

import warnings

import gymnasium as gym
import pytest

from pkb_gym.engine.records.feedback import Failure, Stage
from pkb_gym.envs.episode import Episode
from pkb_gym.envs.evaluator_registry import evaluates_here
from pkb_gym.envs.render import card_text
from pkb_gym.envs.text.brief import brief_feedback
from pkb_gym.envs.text.feedback import feedback_text
from pkb_gym.problems.catalogue import find_problem
from pkb_gym.rewards import BestSoFar, LadderThenPerformance, PaidForCompiling, find_reward
from pkb_gym.rewards.examples import CONFIG, failed, timed
from pkb_gym.rewards.presets import PRESETS
from tests.fake_gpus import pretend

pytestmark = pytest.mark.usefixtures("evaluator")

COMPILED = failed("compiled_only", message="compiled for sm_90a; this machine has no GPU, so it was not run")


def test_it_is_not_passed():
    """It had no failure, and so counted as passed wherever failures were counted."""
    assert (COMPILED.stage, COMPILED.failure, COMPILED.passed) == (Stage.COMPILE, Failure.COMPILED_ONLY, False)


@pytest.mark.parametrize("name", PRESETS)
def test_no_reward_pays_for_it(name):
    assert find_reward(name)(COMPILED) is None


def test_a_reward_may_say_that_it_pays_for_it():
    reward = PaidForCompiling(LadderThenPerformance(), compiled=0.3)
    assert (reward(COMPILED), reward.parts(COMPILED), reward.bounds()) == (0.3, {"compiled": 0.3}, (-0.35, 1.3))
    assert reward(timed(speedup=1.0)) == 1.0 and reward(failed("infrastructure")) is None


def make(**kwargs):
    return gym.make("PKB/AllReduce-v0", **{"evaluator": "fake", "device": "cpu"} | kwargs)


def test_a_step_is_not_paid_and_the_episode_goes_on():
    env = make()
    env.reset(seed=0)
    _, reward, terminated, truncated, info = env.step("compiled_only")
    assert (reward, terminated, truncated, info["reward_valid"]) == (0.0, False, False, False)
    assert "value" not in info and env.unwrapped.episode.refusal is None
    _, reward, _, _, info = env.step("compile_error")
    assert info["reward_valid"] and reward == pytest.approx(0.01)


def test_an_episode_with_one_has_no_value():
    episode = Episode(find_reward("default"))
    episode.record("a", failed("compile_error"))
    assert episode.episode_value == 0.01
    episode.record("b", COMPILED)
    assert episode.episode_value is None and episode.refusal is None
    paid = Episode(BestSoFar(PaidForCompiling(LadderThenPerformance(), compiled=0.3)))
    paid.record("b", COMPILED)
    assert paid.episode_value == 0.3


def test_texts_say_neither_passed_nor_failed():
    assert feedback_text(COMPILED).startswith("COMPILED, NOT RUN: compiled for sm_90a; this machine has no GPU")
    assert brief_feedback(COMPILED, None).startswith("compiled_only: compiled for sm_90a; ")
    shown = card_text(find_problem("AllReduce"), CONFIG, COMPILED, None)
    assert "compiled_only: compiled for sm_90a" in shown and "✗" not in shown


def test_asking_for_gpus_where_there_are_none_warns(monkeypatch):
    pretend(monkeypatch)
    for arguments in ({"device": "cuda"}, {"device": "auto", "language": "triton"}):
        with pytest.warns(UserWarning, match="no GPU: CUDA sources are compiled and not run"):
            make(**arguments)


def test_nothing_warns_where_kernels_run(monkeypatch):
    """A service by url may have the GPUs that this machine lacks."""
    pretend(monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(device="auto")
        make(device="cuda", evaluator="http://node:8000")
        pretend(monkeypatch, "NVIDIA H200")
        make(device="cuda", world_size=1)


def test_urls_evaluate_elsewhere():
    assert evaluates_here("local") and evaluates_here("fake") and not evaluates_here("http://node:8000")
