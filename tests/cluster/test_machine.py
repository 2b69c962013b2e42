"""A pool describes the machine of its gangs: the largest node, with what an autoscaler may add."""

from __future__ import annotations

from types import SimpleNamespace

import gymnasium as gym
import pytest

from pkb_gym.cluster.evaluator import RayEvaluator
from pkb_gym.cluster.inspection import UNKNOWN_GPU, as_gangs_see_it, describe_this_node
from pkb_gym.cluster.records import from_text, to_text
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.machine import Machine
from pkb_gym.engine.stages.execution_environment import this_machine
from tests.cluster.on_cluster import by_make_cluster
from tests.fake_gpus import gpu_node, pretend


def test_gpus_are_those_that_ray_has_or_may_have():
    h200 = "NVIDIA H200"
    assert as_gangs_see_it(gpu_node(8), 4, None).gpu_names == (h200,) * 4
    assert as_gangs_see_it(gpu_node(2), 4, "sm_80").gpu_names == (h200,) * 4
    none = gpu_node(0, gpu_names=(), gpu=None, architecture="sm_90a")
    assert as_gangs_see_it(none, 0, None) == none
    autoscaled = as_gangs_see_it(none, 2, "sm_100a")
    assert autoscaled.gpu_names == (UNKNOWN_GPU,) * 2 and autoscaled.architecture == "sm_100a"
    assert as_gangs_see_it(gpu_node(8), 8, "sm_80").architecture == gpu_node(8).architecture


def test_a_node_describes_itself(monkeypatch):
    pretend(monkeypatch, "NVIDIA H200", "NVIDIA H200")
    assert from_text(Machine, describe_this_node()) == this_machine()


class Pool:
    """The handle of a pool's actor, as far as a client calls it."""

    def __init__(self, machine: Machine) -> None:
        self.asked = 0
        self._text = to_text(machine)
        self.machine = SimpleNamespace(remote=self._machine)

    def _machine(self, wait_s: float) -> str:
        assert wait_s > 0
        self.asked += 1
        return self._text


@pytest.fixture
def evaluator(monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "get", lambda text, timeout: text)
    evaluator = RayEvaluator("ray?pool=described", unreachable_s=0.0)
    yield evaluator
    evaluator._pool = None


def test_the_task_is_about_the_machine_of_the_gangs(evaluator, monkeypatch):
    pretend(monkeypatch)
    evaluator._pool = Pool(gpu_node(8))
    env = gym.make("PKB/AllReduce-v0", evaluator=evaluator, style="full")
    for _ in range(2):
        task = env.reset(seed=0)[0]["task"]
        assert "8 ranks, one process each, each on its own NVIDIA H200." in task and "for sm_100a." in task
    assert env.unwrapped.config.device == "cuda" and evaluator._pool.asked == 1


def test_a_pool_of_an_earlier_version_is_named(evaluator):
    evaluator._pool = SimpleNamespace()
    with pytest.raises(ConfigError, match=r"the pool of ray\?pool=described does not describe its machine.*pkb-gym \d"):
        evaluator.machine()


@by_make_cluster
def test_a_pool_on_this_machine_describes_it(ray_cluster):
    with RayEvaluator("ray?pool=of_this_machine") as evaluator:
        assert evaluator.machine() == this_machine()
