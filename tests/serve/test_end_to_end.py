"""Real kernels through the service, and a server that is killed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import gymnasium as gym
import pytest

from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.evaluators.remote import RemoteEvaluator
from pkb_gym.engine.records.feedback import Failure, Stage
from pkb_gym.engine.stages.progress import PREPARING, WAITING
from pkb_gym.envs.evaluator_registry import close_evaluators
from pkb_gym.problems.catalogue import expert_source, find_problem
from tests.serve.fake_owner import ON_TWO, TOKEN, until
from tests.serve.forwarding import Forwarding, serving

PROBLEM = find_problem("AllReduce")
EXPERT = expert_source(PROBLEM)


class Borrowed(Forwarding):
    """The evaluator that all tests share: closing it is not the service's business."""

    def close(self) -> None:
        self.local.resume()


@pytest.fixture
def client(local_evaluator: LocalEvaluator) -> Iterator[RemoteEvaluator]:
    with (
        serving(lambda: Borrowed(local_evaluator), TOKEN) as server,
        RemoteEvaluator(server.url, TOKEN, timeout_s=90) as client,
    ):
        yield client


@pytest.mark.slow
def test_real_kernels(client, monkeypatch):
    feedback = client.evaluate(PROBLEM, EXPERT, ON_TWO)
    assert feedback.passed and feedback.stage is Stage.PROFILE and feedback.speedup > 0, feedback.message
    status = client.status()
    assert {"static", "compile", "check", "time", "profile", PREPARING} <= set(status.durations_s)
    assert status.finished == 1 and status.durations_s["compile"] > 0

    monkeypatch.setenv("PKB_TOKEN", TOKEN)
    try:
        env = gym.make("PKB/AllReduce-v0", evaluator=client.url, device="cpu", world_size=2, size="tiny")
        env.reset(seed=0)
        observation, reward, *_, info = env.step(EXPERT)
        assert info["feedback"].passed and reward > 0.75 and observation["is_timed"] == 1
        observation, *_, info = env.step(EXPERT.replace(";", "", 1))
        assert info["feedback"].failure is Failure.COMPILE_ERROR and "error:" in observation["compiler_log"]
    finally:
        close_evaluators()


@pytest.mark.slow
def test_ranks_rest_while_paused(client, local_evaluator):
    config = ON_TWO.model_copy(update={"until": "check"})
    client.pause()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(client.evaluate, PROBLEM, f"{EXPERT}// another\n", config)
        until(lambda: client.status().waiting == 1)
        assert not waiting.done() and client.status().running == 0
        assert local_evaluator.pause(0), "nothing runs"
        client.resume()
        assert waiting.result().passed


def test_a_closed_evaluator_lets_go_of_who_waits_for_a_pause_to_end(tmp_path):
    evaluator = LocalEvaluator(cache_dir=tmp_path)
    assert evaluator.pause()
    reported: list[str] = []
    began = threading.Event()

    def say(words: str) -> None:
        reported.append(words)
        if words == WAITING:
            began.set()

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(evaluator.evaluate, PROBLEM, EXPERT, ON_TWO, say)
        assert began.wait(60)
        evaluator.close()
        assert waiting.result(10).failure is Failure.INFRASTRUCTURE
    with pytest.raises(InfrastructureError, match="closed"):
        evaluator.evaluate(PROBLEM, EXPERT, ON_TWO)
