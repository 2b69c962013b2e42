"""The client: an evaluator like any other, and never a wait without end."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import gymnasium as gym
import pytest

from pkb_gym.engine.errors import ConfigError, InfrastructureError, ProblemNotFound, ServiceBusy, SizeError
from pkb_gym.engine.evaluators.remote import RemoteEvaluator
from pkb_gym.engine.records.feedback import Failure
from pkb_gym.engine.support.source_digest import source_sha256
from pkb_gym.envs.evaluator_registry import close_evaluators, find_evaluator
from pkb_gym.problems.catalogue import find_problem
from pkb_gym.serve.server import HttpServer
from tests.serve.fake_owner import ON_TWO, TOKEN, answer, ask, make_service
from tests.waiting import PATIENCE_S, until

PROBLEM = find_problem("AllReduce")


def test_it_answers_as_the_evaluator_does(client, service):
    feedback = client.evaluate(PROBLEM, "speedup 3", ON_TWO)
    assert feedback == answer(service, ask(service, "speedup 3"))
    assert feedback.config.size_argument == "tiny" and feedback.timing.speedup_low == 3.0


def test_sizes_cross_the_wire(client):
    size = {"M": 8, "N": 16}
    feedback = client.evaluate(PROBLEM, "speedup 3", ON_TWO.model_copy(update={"size": size}))
    assert feedback.config.size_argument == size


def test_a_source_of_any_length_is_judged(client):
    """The service closed the connection on it: a source so long was not judged, where others have no reward."""
    source = "rejected " + "\udcff" * (17 << 20)
    feedback = client.evaluate(PROBLEM, source, ON_TWO)
    assert feedback.failure is Failure.REJECTED and feedback.source_sha256 == source_sha256(source)


def test_lone_surrogates_are_rejected_and_no_error(client):
    assert client.evaluate(PROBLEM, "\ud800", ON_TWO).failure is Failure.REJECTED


def test_what_was_begun_ahead_is_joined(client, owners):
    begun = client.submit(PROBLEM, "run", ON_TWO)
    assert client.submit(PROBLEM, "run", ON_TWO) == begun
    until(lambda: client.status().running)
    threading.Timer(0.1, owners.opened[0].goes_on.set).start()
    assert client.evaluate(PROBLEM, "run", ON_TWO).passed
    assert len(owners.requested) == 1 and client.status().joined == 2


def test_stages_are_reported(client, owners):
    reported: list[str] = []
    threading.Timer(0.1, owners().goes_on.set).start()
    client.submit(PROBLEM, "run", ON_TWO)
    until(lambda: client.status().running)
    owners.opened[-1].goes_on.set()
    client.evaluate(PROBLEM, "run", ON_TWO, reported.append)
    assert set(reported) <= {"preparing ranks"}


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"size": "huge"}, SizeError, "no size 'huge'"),
        ({"language": "cuda"}, ConfigError, "does not run on device"),
    ],
)
def test_the_service_s_refusals_are_raised_here(client, changes, error, words):
    with pytest.raises(error, match=words):
        client.evaluate(PROBLEM, "speedup 1", ON_TWO.model_copy(update=changes))


def test_a_problem_that_the_service_lacks(client):
    with pytest.raises(ProblemNotFound, match="no problem 'Renamed'"):
        client.evaluate(dataclasses.replace(PROBLEM, name="Renamed"), "speedup 1", ON_TWO)


def test_what_the_evaluator_refuses_is_raised_here(client):
    with pytest.raises(ConfigError, match="no such thing here"):
        client.evaluate(PROBLEM, "refuse", ON_TWO)


def test_the_token_comes_from_the_environment(server, monkeypatch):
    with RemoteEvaluator(server.url) as client:
        with pytest.raises(ConfigError, match=r"a token is needed.*PKB_TOKEN"):
            client.evaluate(PROBLEM, "speedup 1", ON_TWO)
        monkeypatch.setenv("PKB_TOKEN", "wrong")
        with pytest.raises(ConfigError, match="the token is wrong"):
            client.status()
        monkeypatch.setenv("PKB_TOKEN", TOKEN)
        assert client.evaluate(PROBLEM, "speedup 1", ON_TWO).passed


@pytest.mark.parametrize("make_copy", [lambda client: pickle.loads(pickle.dumps(client)), copy.deepcopy])
def test_it_can_be_copied_while_connected(client, make_copy):
    client.status()
    with make_copy(client) as copied:
        assert copied.evaluate(PROBLEM, "speedup 1", ON_TWO).passed
    assert client.status().finished == 1


def test_many_threads_share_it(client, owners):
    with ThreadPoolExecutor(16) as threads:
        sources = [f"speedup {1 + number % 8}" for number in range(48)]
        found = list(threads.map(lambda source: client.evaluate(PROBLEM, source, ON_TWO), sources))
    assert [feedback.timing.speedup_low for feedback in found] == [1 + number % 8 for number in range(48)]
    assert len(owners.requested) == 8


def test_it_waits_while_the_queue_is_full(owners):
    with make_service(owners, max_queued=1, max_begun=1) as service, HttpServer(service, TOKEN) as server:
        client = RemoteEvaluator(server.url, TOKEN, timeout_s=PATIENCE_S)
        client.submit(PROBLEM, "run", ON_TWO), client.submit(PROBLEM, "speedup 1", ON_TWO)
        with pytest.raises(ServiceBusy, match="1 evaluations wait already"):
            client.submit(PROBLEM, "speedup 2", ON_TWO)
        threading.Timer(0.15, owners.opened[0].goes_on.set).start()
        assert client.evaluate(PROBLEM, "speedup 2", ON_TWO).passed
        client.close()


def test_an_evaluation_has_a_deadline(server, service):
    with RemoteEvaluator(server.url, TOKEN, timeout_s=0.3) as client:
        with pytest.raises(InfrastructureError, match=r"has not judged it within 0.3 s; its state is: preparing ranks"):
            client.evaluate(PROBLEM, "run", ON_TWO)
        assert service.find(ask(service, "run")).interest.total() == 1, "the client gave up"


def test_a_pause_has_a_deadline(client, owners):
    client.submit(PROBLEM, "run", ON_TWO)
    until(lambda: client.status().running)
    with pytest.raises(InfrastructureError, match="still runs something"):
        client.pause(timeout_s=0.1)
    owners.opened[0].goes_on.set()
    client.pause(timeout_s=PATIENCE_S)
    assert client.status().paused
    client.resume()
    assert not client.status().paused


def test_a_service_that_is_not_there(server):
    server.__exit__()
    began = time.monotonic()
    client = RemoteEvaluator(server.url, TOKEN, unreachable_s=0.4)
    with client, pytest.raises(InfrastructureError, match="cannot be reached: ConnectionRefusedError"):
        client.evaluate(PROBLEM, "speedup 1", ON_TWO)
    assert 0.1 < time.monotonic() - began < 2


def test_a_service_that_is_started_anew_is_asked_again(owners):
    with make_service(owners) as first, HttpServer(first, TOKEN) as server:
        client = RemoteEvaluator(server.url, TOKEN, timeout_s=PATIENCE_S)
        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(client.evaluate, PROBLEM, "run", ON_TWO)
            until(lambda: first.status().running)
            server.__exit__()
            port = int(server.url.rpartition(":")[2])
            with make_service(owners) as second, HttpServer(second, TOKEN, port=port):
                until(lambda: second.status().running)
                owners.opened[1].goes_on.set()
                assert waiting.result(PATIENCE_S).passed
        client.close()


def test_what_answers_must_be_such_a_service(server):
    client = RemoteEvaluator(f"{server.url}/v1/health?", TOKEN)
    with client, pytest.raises(InfrastructureError, match="answers with no ServiceStatus"):
        client.status()


@pytest.mark.parametrize("url", ["ftp://node:1", "http://", "node:8900", "http://node:port", "unix:relative"])
def test_urls_without_sense(url):
    with pytest.raises(ConfigError, match="is no url of an evaluation service"):
        RemoteEvaluator(url)


def test_environments_take_a_url(server, monkeypatch):
    monkeypatch.setenv("PKB_TOKEN", TOKEN)
    try:
        env = gym.make("PKB/AllReduce-v0", evaluator=server.url, device="cpu", world_size=2, size="tiny")
        assert gym.make(gym.envs.registration.EnvSpec.from_json(env.spec.to_json())).spec.kwargs == env.spec.kwargs
        env.reset(seed=1)
        *_, info = env.step("speedup 2")
        assert info["feedback"].passed and info["value"] > 1
        assert find_evaluator(server.url) is find_evaluator(server.url), "one for all environments"
    finally:
        close_evaluators()
