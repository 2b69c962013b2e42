"""From a request to an evaluation: what the service allows, and what the request resolves to on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from pkb_gym.engine.errors import ConfigError, SizeError
from pkb_gym.engine.hardware import host
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.service import EvaluationRequest
from pkb_gym.problems.catalogue import find_problem
from pkb_gym.serve.current_evaluator import CurrentEvaluator
from pkb_gym.serve.evaluation import Evaluation

TIMES_DECLARED, ANYWAY = 64, 1 << 14
"""A number of a size may be that many times the largest that the problem's own sizes have under this name, or so much
in any case. Laying out an evaluation takes time and memory that grow with some numbers, before its memory is known."""

MAX_NUMBERS = 10_000
"""Maximum count of numbers in one size, lists included."""

MAX_TRIALS = 1000


@dataclass(frozen=True)
class RequestResolver:
    """Resolves requests.

    Attributes:
        evaluator: Evaluator whose machine resolves configurations.
        device: Device of the service; "auto" leaves it to the requests.
        takes_keys: Whether requests may bring the key of their inputs.
        deadline_s: Deadline of an evaluation in seconds; None for a service of one client, whose requests have no
            limits.
    """

    evaluator: CurrentEvaluator
    device: Literal["auto", "cpu", "cuda"]
    takes_keys: bool
    deadline_s: float | None

    def read(self, request: EvaluationRequest) -> Evaluation:
        """The evaluation of a request.

        Raises:
            ProblemNotFound, ConfigError, SizeError: The request makes no sense here.
            InfrastructureError: There is no evaluator, or the service was closed.
        """
        if request.replay_key is not None and not self.takes_keys:
            raise ConfigError("this service draws the inputs by a key of its own; ask without a replay key")
        problem, source = find_problem(request.problem), request.source
        config = self._on_device(request.config)
        if self.deadline_s is not None:
            check_limits(problem, config, self.deadline_s)
        resolved = self.evaluator.get().resolve(problem, source, config)
        equal = EvaluationRequest(
            problem=problem.name, source=source, config=resolved.as_request(), replay_key=request.replay_key
        )
        return Evaluation(
            key=equal.key,
            joinable=request.replay_key is None,
            problem=problem,
            source=source,
            config=config,
            resolved=resolved,
            replay_key=None if request.replay_key is None else bytes.fromhex(request.replay_key),
        )

    def _on_device(self, config: EvalConfig) -> EvalConfig:
        if self.device == "auto" or config.device == self.device:
            return config
        if config.device == "auto":
            return config.model_copy(update={"device": self.device})
        raise ConfigError(f"this service judges on device {self.device!r}; the request asks for {config.device!r}")


def check_limits(problem: Problem, config: EvalConfig, deadline_s: float) -> None:
    """Returns if one evaluation may ask for this much: no request may hold up those of others.

    Args:
        problem: Problem of the request.
        config: Configuration as it was requested.
        deadline_s: Deadline of an evaluation in seconds.

    Raises:
        ConfigError, SizeError: It may not; the message names the field and the limit.
    """
    _check_size(problem, config.size)
    for name in ("timeout_s", "compile_timeout_s", "timing_budget_s"):
        most = max(deadline_s, EvalConfig.model_fields[name].default or 0)
        if (seconds := getattr(config, name)) is not None and seconds > most:
            raise ConfigError(f"{name} is {seconds:g}; this service ends an evaluation after {deadline_s:g} s")
    if config.trials is not None and config.trials > MAX_TRIALS:
        raise ConfigError(f"trials is {config.trials}; this service runs at most {MAX_TRIALS}")
    most = host.memory_total_bytes()
    if config.memory_bytes is not None and config.memory_bytes > most:
        raise ConfigError(f"memory_bytes is {config.memory_bytes}; the machine of this service has {most}")


def _check_size(problem: Problem, size: object) -> None:
    if not isinstance(size, dict):
        return
    left = MAX_NUMBERS
    for name, value in size.items():
        numbers = list(islice(_numbers(value), left + 1))
        left -= len(numbers)
        if left < 0:
            raise SizeError(f"{problem.name}: a size of more than {MAX_NUMBERS} numbers; this service takes no more")
        declared = max((abs(n) for own in problem.sizes.values() for n in _numbers(own.get(name))), default=0)
        most = max(ANYWAY, TIMES_DECLARED * declared)
        if any(abs(number) > most for number in numbers):
            raise SizeError(f"{problem.name}: this service takes numbers up to {most:g} for {name}")


def _numbers(value: object) -> Iterator[float]:
    """The numbers of an axis, those in nested lists included."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, tuple | list):
            waiting += one
        elif isinstance(one, int | float):
            yield one
