"""An evaluator that owns nothing: it answers, waits, refuses or breaks as the source says."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from pkb_gym.engine.errors import ConfigError, InfrastructureError, PkbError
from pkb_gym.engine.evaluators.arbiter import DeviceArbiter
from pkb_gym.engine.hardware import host
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig, ResolvedConfig, resolve
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.engine.records.machine import Machine
from pkb_gym.engine.records.service import EvaluationRequest
from pkb_gym.engine.stages.execution_environment import this_machine
from pkb_gym.engine.stages.progress import PREPARING, WAITING, Progress
from pkb_gym.serve.clients import SOLE, Client
from pkb_gym.serve.service import EvaluationService
from tests.envs.fake_evaluator import FakeEvaluator
from tests.waiting import PATIENCE_S, until

TOKEN = "a token of these tests"
ON_TWO = EvalConfig(device="cpu", world_size=2, size="tiny")


@dataclass
class Owner(FakeEvaluator):
    """`FakeEvaluator`'s words, and: `compile` and `run` wait for `goes_on` there; `refuse`, `break`, `stop` raise.

    Attributes:
        goes_on: Event that waiting words wait for.
        described: Machine that it judges on; None for this one.
    """

    goes_on: threading.Event = field(default_factory=threading.Event)
    arbiter: DeviceArbiter = field(default_factory=DeviceArbiter)
    replay_keys: list[bytes | None] = field(default_factory=list)
    described: Machine | None = None

    def machine(self) -> Machine:
        return self.described or this_machine()

    def resolve(self, problem: Problem, source: str, config: EvalConfig) -> ResolvedConfig:
        total = host.memory_total_bytes()
        return resolve(config, problem, language="cpp", device="cpu", memory_total_bytes=total)

    def evaluate(
        self,
        problem: Problem,
        source: str,
        config: EvalConfig,
        progress: Progress | None = None,
        *,
        replay_key: bytes | None = None,
    ) -> Feedback:
        assert progress is not None
        self.replay_keys.append(replay_key)
        word = source.split(" ")[0]
        progress("compile")
        if word == "compile":
            assert self.goes_on.wait(PATIENCE_S)
        if word == "refuse":
            raise ConfigError("no such thing here")
        if word == "stop":
            raise InfrastructureError("the machine is on fire")
        if word == "break":
            raise ZeroDivisionError("a mistake of ours")
        progress(WAITING)
        self.arbiter.acquire()
        try:
            progress(PREPARING)
            if word == "run":
                assert self.goes_on.wait(PATIENCE_S)
            return super().evaluate(problem, "speedup 2" if word in ("compile", "run") else source, config)
        finally:
            self.arbiter.release()

    def pause(self, timeout_s: float | None = None) -> bool:
        return self.arbiter.pause(timeout_s)

    def resume(self) -> None:
        self.arbiter.resume()

    def close(self) -> None:
        super().close()
        self.goes_on.set()


@dataclass
class Owners:
    """Opens evaluators; all that were opened."""

    opened: list[Owner] = field(default_factory=list)
    error: Exception | None = None
    described: Machine | None = None

    def __call__(self) -> Owner:
        if self.error is not None:
            raise self.error
        self.opened.append(Owner(described=self.described))
        return self.opened[-1]

    @property
    def requested(self) -> list[str]:
        """Sources that were judged to the end, by any of them."""
        return [source for owner in self.opened for _, source, _ in owner.requested]


def ask(service: EvaluationService, source: str, **changes: object) -> str:
    request = EvaluationRequest(problem="AllReduce", source=source, config=ON_TWO.model_copy(update=changes))
    return service.submit(request).id


def answer(service: EvaluationService, evaluation_id: str, client: Client = SOLE) -> Feedback:
    """Waits for an answer; raises the error in its place."""
    evaluation = service.find(evaluation_id, client)
    until(lambda: evaluation.answer is not None)
    if isinstance(evaluation.answer, PkbError):
        raise evaluation.answer
    return evaluation.answer


def stays_unanswered(service: EvaluationService, evaluation_id: str, seconds: float = 0.05) -> bool:
    time.sleep(seconds)
    return service.find(evaluation_id).answer is None


@contextlib.contextmanager
def make_service(owners: Owners, **arguments: object) -> Iterator[EvaluationService]:
    """A service whose evaluators let go of everything at the end."""
    with EvaluationService(owners, **arguments) as service:  # type: ignore[arg-type]
        yield service
        for owner in owners.opened:
            owner.goes_on.set()
            owner.arbiter.resume()
