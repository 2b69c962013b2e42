"""Limits of a single request: no client's may hold up those of others, by intent or by a slip of the keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from pkb_gym.engine.errors import ConfigError, SizeError
from pkb_gym.engine.hardware import host
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig

TIMES_DECLARED, ANYWAY = 64, 1 << 14
"""A number of a size may be that many times the largest that the problem's own sizes have under this name, or so much
in any case. Laying out an evaluation takes time and memory that grow with some numbers, before its memory is known."""

MOST_NUMBERS = 10_000
"""In one size, lists included."""

MOST_TRIALS = 1000


def check_limits(problem: Problem, config: EvalConfig, deadline_s: float) -> None:
    """Returns if one evaluation may ask for this much.

    Args:
        problem: to be solved.
        config: as it was asked for.
        deadline_s: of an evaluation.

    Raises:
        ConfigError, SizeError: it may not; the message names the field and the limit.
    """
    _check_size(problem, config.size)
    for name in ("timeout_s", "compile_timeout_s", "timing_budget_s"):
        most = max(deadline_s, EvalConfig.model_fields[name].default or 0)
        if (seconds := getattr(config, name)) is not None and seconds > most:
            raise ConfigError(f"{name} is {seconds:g}; this service ends an evaluation after {deadline_s:g} s")
    if config.trials is not None and config.trials > MOST_TRIALS:
        raise ConfigError(f"trials is {config.trials}; this service runs at most {MOST_TRIALS}")
    most = host.memory_total_bytes()
    if config.memory_bytes is not None and config.memory_bytes > most:
        raise ConfigError(f"memory_bytes is {config.memory_bytes}; the machine of this service has {most}")


def _check_size(problem: Problem, size: object) -> None:
    if not isinstance(size, dict):
        return
    left = MOST_NUMBERS
    for name, value in size.items():
        numbers = list(islice(_numbers(value), left + 1))
        left -= len(numbers)
        if left < 0:
            raise SizeError(f"{problem.name}: a size of more than {MOST_NUMBERS} numbers; this service takes no more")
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
