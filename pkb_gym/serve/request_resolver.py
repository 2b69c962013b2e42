"""From a request to an evaluation: what it asks for, on the device and with the keys that the service allows."""

from __future__ import annotations

from typing import Literal

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.service import EvaluationRequest
from pkb_gym.problems.catalogue import find_problem
from pkb_gym.serve.current_evaluator import CurrentEvaluator
from pkb_gym.serve.evaluation import Evaluation
from pkb_gym.serve.limits import check_limits


class RequestResolver:
    """Resolves requests.

    Args:
        evaluator: whose machine decides what a request comes to.
        device: the device of the service; "auto" leaves it to the requests.
        takes_keys: whether requests may bring the key of their inputs.
        deadline_s: of an evaluation; None for one client alone, whose requests have no limits (see `limits`).
    """

    def __init__(
        self,
        evaluator: CurrentEvaluator,
        device: Literal["auto", "cpu", "cuda"],
        *,
        takes_keys: bool,
        deadline_s: float | None,
    ) -> None:
        self._evaluator, self._device, self._takes_keys = evaluator, device, takes_keys
        self._deadline_s = deadline_s

    def read(self, request: EvaluationRequest) -> Evaluation:
        """The evaluation of a request.

        Raises:
            ProblemNotFound, ConfigError, SizeError: it makes no sense here.
            InfrastructureError: there is no evaluator, or the service was closed.
        """
        if request.replay_key is not None and not self._takes_keys:
            raise ConfigError("this service draws the inputs by a key of its own; ask without a replay key")
        problem, source = find_problem(request.problem), request.source
        requested = self._on_device(request.config)
        if self._deadline_s is not None:
            check_limits(problem, requested, self._deadline_s)
        resolved = self._evaluator.get().resolve(problem, source, requested)
        equal = EvaluationRequest(
            problem=problem.name, source=source, config=resolved.as_request(), replay_key=request.replay_key
        )
        replay_key = None if request.replay_key is None else bytes.fromhex(request.replay_key)
        return Evaluation(problem, source, requested, resolved, replay_key, equal.key)

    def _on_device(self, config: EvalConfig) -> EvalConfig:
        if self._device == "auto" or config.device == self._device:
            return config
        if config.device == "auto":
            return config.model_copy(update={"device": self._device})
        raise ConfigError(f"this service judges on device {self._device!r}; the request asks for {config.device!r}")
