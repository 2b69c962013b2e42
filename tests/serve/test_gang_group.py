"""Several gangs of one node behind one evaluator: shares, requests, pauses, starts."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from pkb_gym.engine.errors import ConfigError, InfrastructureError
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.problems.catalogue import find_problem
from pkb_gym.serve import gang_group
from pkb_gym.serve.gang_group import GangGroup, open_gang_group
from pkb_gym.serve.server import HttpServer
from pkb_gym.serve.shares import Share, share_out_node
from tests.fake_gpus import gpu_node, pretend_gpus
from tests.serve.fake_owner import ON_TWO, TOKEN, Owners, make_service
from tests.waiting import PATIENCE_S, until

PROBLEM = find_problem("AllReduce")
H200 = "NVIDIA H200"


@dataclass
class Started:
    """A service of a gang that is in this process.

    Attributes:
        owners: Evaluators of the service.
    """

    url: str
    owners: Owners
    token: str = TOKEN
    closed: int = 0
    on_restart: Any = field(default=lambda: None)


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Started]]:
    """Two services, each of a node with two GPUs."""
    monkeypatch.setattr(gang_group.ServiceProcess, "close", lambda one: setattr(one, "closed", one.closed + 1))
    with contextlib.ExitStack() as stack:
        started = []
        for _ in range(2):
            owners = Owners(described=gpu_node(2))
            server = stack.enter_context(HttpServer(stack.enter_context(make_service(owners)), TOKEN))
            started.append(Started(server.url, owners))
        yield started


def running(services: list[Started]) -> list[int]:
    """The evaluators that judge something just now, of each service."""
    return [sum(owner.arbiter._held for owner in one.owners.opened) for one in services]


def on_processors(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(count)))


def test_gangs_share_out_gpus_and_processors_of_their_node(monkeypatch: pytest.MonkeyPatch):
    pretend_gpus(monkeypatch, *[H200] * 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    on_processors(monkeypatch, 17)
    shares, left = share_out_node(2)
    assert shares == [Share(("0", "1"), tuple(range(1, 9))), Share(("2", "3"), tuple(range(9, 17)))]
    assert left == (0,), "the service that spreads requests takes no processor from a timing"


def test_gpus_are_shared_out_by_the_names_that_this_process_sees_them_by(monkeypatch: pytest.MonkeyPatch):
    pretend_gpus(monkeypatch, *[H200] * 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-5f, 3")
    on_processors(monkeypatch, 2)
    assert share_out_node(2) == ([Share(("GPU-5f",), (0,)), Share(("3",), (1,))], ())
    with pytest.raises(ConfigError, match="2 GPUs cannot be divided equally among 3"):
        share_out_node(3)
    pretend_gpus(monkeypatch)
    assert [share.gpus for share in share_out_node(2)[0]] == [(), ()]
    with pytest.raises(ConfigError, match="3 evaluation services need a processor each; there are 2"):
        share_out_node(3)


def test_each_gang_judges_one_candidate_at_a_time(services: list[Started]):
    group = GangGroup(services, most_in_hand=2)
    seen: list[list[str]] = [[] for _ in range(5)]
    try:
        with ThreadPoolExecutor(5) as threads:
            asked = [
                threads.submit(group.evaluate, PROBLEM, f"run {number}", ON_TWO, seen[number].append)
                for number in range(5)
            ]
            until(lambda: running(services) == [1, 1])
            until(
                lambda: sum("waiting for its turn" in states for states in seen) == 3, "two in gangs, one before them"
            )
            for service in services:
                until(lambda service=service: service.owners.opened)
                service.owners.opened[0].goes_on.set()
            assert all(one.result(PATIENCE_S).passed for one in asked)
        assert sorted(len(one.owners.requested) for one in services) == [2, 3]
    finally:
        group.close()
    assert [one.closed for one in services] == [1, 1]


def test_requests_resolve_on_the_share_of_a_gang(services: list[Started]):
    group = GangGroup(services)
    config = EvalConfig(device="cuda", size="tiny", language="python", until="check")
    resolved = group.resolve(PROBLEM, "import torch", config)
    assert resolved.world_size == 2 and group.machine().gpu_names == (H200, H200)
    with pytest.raises(ConfigError):
        group.resolve(PROBLEM, "import torch", config.model_copy(update={"world_size": 4}))
    group.close()


def test_a_pause_reaches_every_gang_and_those_that_are_started_anew(services: list[Started]):
    group = GangGroup(services)
    for remote in group._remotes:
        remote.machine()  # opens its evaluator
    assert group.pause(PATIENCE_S)
    assert all(one.owners.opened[0].arbiter._shut for one in services)
    services[1].owners.opened[0].arbiter.resume()  # as a service that was started anew
    services[1].on_restart()
    assert services[1].owners.opened[0].arbiter._shut
    group.resume()
    assert not any(one.owners.opened[0].arbiter._shut for one in services)
    services[1].on_restart()
    assert not services[1].owners.opened[0].arbiter._shut
    group.close()


SHARES = [Share(("0",), (0, 1)), Share(("1",), (2, 3))]


def test_services_get_their_shares_and_one_key(monkeypatch: pytest.MonkeyPatch):
    asked: list[object] = []

    def start(gpus: object, processors: object, options: object, replay_key: object) -> SimpleNamespace:
        asked.append((gpus, processors, options, replay_key))
        return SimpleNamespace(url="http://127.0.0.1:1", token=TOKEN, close=lambda: asked.append("closed"))

    monkeypatch.setattr(gang_group, "ServiceProcess", start)
    monkeypatch.setattr(gang_group, "measure_processors", lambda _: asked.append(()))
    open_gang_group(SHARES, b"key", ("--device", "auto"))
    assert "closed" not in asked
    assert sorted(asked) == [
        (("0",), (0, 1), ("--device", "auto"), b"key"),
        (("1",), (2, 3), ("--device", "auto"), b"key"),
    ]


def test_a_service_that_does_not_start_ends_the_others(monkeypatch: pytest.MonkeyPatch):
    closed: list[object] = []

    def start(gpus: object, **_: object) -> SimpleNamespace:
        if gpus == ("1",):
            raise InfrastructureError("no room")
        return SimpleNamespace(url="http://127.0.0.1:1", token=TOKEN, close=lambda: closed.append(gpus))

    monkeypatch.setattr(gang_group, "ServiceProcess", start)
    with pytest.raises(InfrastructureError, match="no room"):
        open_gang_group(SHARES, b"key")
    assert closed == [("0",)]
