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
from pkb_gym.engine.gangs.sandbox import bubblewrap_works
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure, Feedback, Stage
from pkb_gym.engine.stages.progress import PREPARING, WAITING, Progress
from pkb_gym.envs.evaluator_registry import close_evaluators
from pkb_gym.problems.catalogue import expert_source, find_problem
from pkb_gym.serve.clients import Client, Clients
from pkb_gym.serve.server import HttpServer
from pkb_gym.serve.service import EvaluationService
from tests.engine.candidates import FOLDER, read
from tests.serve.fake_owner import ON_TWO, TOKEN
from tests.serve.forwarding import Borrowed, serving
from tests.waiting import PATIENCE_S, until

PROBLEM = find_problem("AllReduce")
EXPERT = expert_source(PROBLEM)
HOSTILE = ("floods_the_connection.py", "kills_everyone.cpp", "forges_infrastructure.py")


@pytest.fixture
def client(local_evaluator: LocalEvaluator) -> Iterator[RemoteEvaluator]:
    with (
        serving(lambda: Borrowed(local_evaluator), TOKEN) as server,
        RemoteEvaluator(server.url, TOKEN, timeout_s=PATIENCE_S) as client,
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


class InTurns(Borrowed):
    """Begins when `may_begin` is set, and notes what has begun.

    Attributes:
        may_begin: Event that evaluations wait for.
        begun: Sources that have begun, in order.
    """

    def __init__(self, local: LocalEvaluator) -> None:
        super().__init__(local)
        self.may_begin = threading.Event()
        self.begun: list[str] = []

    def evaluate(
        self,
        problem: Problem,
        source: str,
        config: EvalConfig,
        progress: Progress | None = None,
        *,
        replay_key: bytes | None = None,
    ) -> Feedback:
        assert self.may_begin.wait(60)
        self.begun.append(source)
        return super().evaluate(problem, source, config, progress, replay_key=replay_key)


@pytest.mark.slow
@pytest.mark.skipif(not bubblewrap_works(), reason="a hostile candidate could harm the machine without bubblewrap")
def test_an_honest_client_beside_a_hostile_one_has_its_turns_and_its_verdicts(local_evaluator):
    hostile = [read(FOLDER / "hostile" / name) for name in HOSTILE]
    honest = [(f"{EXPERT}// of an honest client, {number}\n", number % 2 == 0) for number in range(2)]
    honest = [
        (source if is_right else source.replace("sums[i] +=", "sums[i] -="), is_right) for source, is_right in honest
    ]
    evaluator = InTurns(local_evaluator)
    clients = Clients(((Client("hostile", max_running=1), TOKEN), (Client("honest"), TOKEN[::-1])))
    with (
        EvaluationService(lambda: evaluator, clients=list(clients), max_begun=1) as service,
        HttpServer(service, clients) as server,
        RemoteEvaluator(server.url, TOKEN, timeout_s=PATIENCE_S) as bad,
        RemoteEvaluator(server.url, TOKEN[::-1], timeout_s=PATIENCE_S) as good,
        ThreadPoolExecutor(8) as threads,
    ):
        attacks = [threads.submit(bad.evaluate, PROBLEM, each.source, each.config) for each in hostile]
        until(lambda: service.status().queued == len(hostile) - 1)
        config = ON_TWO.model_copy(update={"until": "check"})
        answers = [threads.submit(good.evaluate, PROBLEM, source, config) for source, _ in honest]
        until(lambda: service.status().queued == len(hostile) - 1 + len(honest))
        evaluator.may_begin.set()
        for candidate, attack in zip(hostile, attacks, strict=True):
            candidate.assert_as_expected(attack.result())
        for (_, is_right), answer in zip(honest, answers, strict=True):
            expected = None if is_right else Failure.OUTPUT_MISMATCH
            assert answer.result().failure is expected, answer.result().message
    of_honest = {source for source, _ in honest}
    assert [source in of_honest for source in evaluator.begun] == [False, False, True, False, True]


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


def test_a_closed_evaluator_lets_go_of_who_waits_for_a_pause_to_end(compiled_before):
    evaluator = LocalEvaluator(cache_dir=compiled_before)
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
        assert waiting.result(PATIENCE_S).failure is Failure.INFRASTRUCTURE
    with pytest.raises(InfrastructureError, match="closed"):
        evaluator.evaluate(PROBLEM, EXPERT, ON_TWO)
