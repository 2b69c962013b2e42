"""Services over a real evaluator, which a double stands before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig, ResolvedConfig
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.engine.stages.progress import Progress
from pkb_gym.serve.evaluation import OwningEvaluator
from pkb_gym.serve.server import HttpServer
from pkb_gym.serve.service import EvaluationService


@dataclass
class Forwarding:
    """Has everything done by a local evaluator; doubles override a method of it.

    Attributes:
        local: Evaluator that judges.
    """

    local: LocalEvaluator

    def resolve(self, problem: Problem, source: str, config: EvalConfig) -> ResolvedConfig:
        return self.local.resolve(problem, source, config)

    def evaluate(
        self,
        problem: Problem,
        source: str,
        config: EvalConfig,
        progress: Progress | None = None,
        *,
        replay_key: bytes | None = None,
    ) -> Feedback:
        return self.local.evaluate(problem, source, config, progress, replay_key=replay_key)

    def pause(self, timeout_s: float | None = None) -> bool:
        return self.local.pause(timeout_s)

    def resume(self) -> None:
        self.local.resume()

    def close(self) -> None:
        self.local.close()


class Borrowed(Forwarding):
    """The evaluator that all tests share: closing it is not the service's business."""

    def close(self) -> None:
        self.local.resume()


@contextmanager
def serving(open_evaluator: Callable[[], OwningEvaluator], token: str, **arguments: object) -> Iterator[HttpServer]:
    """A service over such an evaluator on a free port.

    Args:
        open_evaluator: Function that makes the evaluator.
        token: Token of its one client.
        **arguments: Arguments of `EvaluationService`.
    """
    with (
        EvaluationService(open_evaluator, **arguments) as service,  # type: ignore[arg-type]
        HttpServer(service, token) as server,
    ):
        yield server
