"""Addresses of clusters, and the settings that they carry."""

from __future__ import annotations

import gymnasium as gym
import pytest

from pkb_gym.cluster.address import ClusterAddress
from pkb_gym.cluster.evaluator import RayEvaluator
from pkb_gym.cluster.settings import PoolSettings, differing
from pkb_gym.engine.errors import ConfigError
from pkb_gym.envs.evaluator_registry import evaluator_by_address


def test_the_cluster_of_this_process():
    address = ClusterAddress.parse("ray")
    assert address.client_url is None and address.settings == PoolSettings()
    assert not address.settings.model_fields_set


def test_settings_follow_a_question_mark():
    address = ClusterAddress.parse("ray?exclusive_most=3&deadline_s=1.5&problems=/a&problems=/b&architecture=sm_100a")
    settings = address.settings
    assert (settings.exclusive_most, settings.deadline_s, settings.problems) == (3, 1.5, ("/a", "/b"))
    assert settings.model_fields_set == {"exclusive_most", "deadline_s", "problems", "architecture"}


def test_ray_client():
    address = ClusterAddress.parse("ray://head:10001?pool=mine")
    assert address.client_url == "ray://head:10001" and address.settings.pool == "mine"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ray://", "expected one like ray://head:10001"),
        ("ray://head", "expected one like ray://head:10001"),
        ("ray://head:port", "expected one like ray://head:10001"),
        ("ray://me@head:1", "expected one like ray://head:10001"),
        ("ray://head:1/path", "expected one like ray://head:10001"),
        ("rays", "expected 'ray' or 'ray://host:port'"),
        ("http://head:1", "expected 'ray' or 'ray://host:port'"),
        ("ray?exclusive_most", "expected settings as NAME=VALUE"),
        ("ray?exclusive_max=3", "no pool setting 'exclusive_max'. Did you mean 'exclusive_most'"),
        ("ray?xyzzy=3", "no pool setting 'xyzzy'. There are pool, shared_least"),
        ("ray?exclusive_most=many", "pool setting exclusive_most='many': Input should be a valid integer"),
        ("ray?exclusive_most=0", "pool setting exclusive_most='0': Input should be greater than or equal to 1"),
        ("ray?exclusive_most=1&exclusive_most=2", "exclusive_most is given 2 times: 1, 2"),
        ("ray?shared_least=3&shared_most=2", "shared_least=3 is more than shared_most=2"),
        ("ray?architecture=hopper", "pool setting architecture='hopper'"),
    ],
)
def test_addresses_without_sense(text, words):
    with pytest.raises(ConfigError) as refused:
        RayEvaluator(text)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("text", "is_one"), [("ray", True), ("ray?a=b", True), ("ray://h", True), ("array", False), ("local", False)]
)
def test_what_means_a_cluster(text, is_one):
    assert evaluator_by_address(text) == (RayEvaluator if is_one else None)


def test_settings_that_a_running_pool_has_otherwise():
    running = PoolSettings(exclusive_most=2)
    assert differing(PoolSettings(exclusive_most=2), running) == []
    assert differing(PoolSettings(), running) == [], "a client that asks for nothing takes what there is"
    assert differing(PoolSettings(exclusive_most=3), running) == ["exclusive_most=3 (the pool has 2)"]


def test_environments_refuse_an_address_when_they_are_made():
    with pytest.raises(ConfigError, match="no pool setting 'gangs'"):
        gym.make("PKB/AllReduce-v0", evaluator="ray?gangs=2", device="cpu", world_size=2)
    env = gym.make("PKB/AllReduce-v0", evaluator="ray?exclusive_most=2", device="cpu", world_size=2)
    again = gym.make(gym.envs.registration.EnvSpec.from_json(env.spec.to_json()))
    assert again.spec.kwargs["evaluator"] == "ray?exclusive_most=2"


def test_without_ray_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'pkb-gym\[ray\]'"):
        RayEvaluator("ray")
