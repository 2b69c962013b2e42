"""Evaluators by name; those that are started here are shared by all environments of a process and closed at its end."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.evaluator import Evaluator


def _local() -> Evaluator:
    from pkb_gym.engine.local import LocalEvaluator

    return LocalEvaluator()


_factories: dict[str, Callable[[], Evaluator]] = {"local": _local}
_started: dict[tuple[int, str], Evaluator] = {}
_lock = threading.Lock()


def add_evaluator(name: str, factory: Callable[[], Evaluator]) -> None:
    """Lets environments of this process say `evaluator=name`, which survives JSON where an object would not.

    Args:
        name: a new name, or one that no environment has used yet.
        factory: makes the evaluator when it is first needed.

    Raises:
        ConfigError: an evaluator of that name is already at work.
    """
    with _lock:
        if (os.getpid(), name) in _started:
            raise ConfigError(f"evaluator {name!r} is already at work in this process")
        _factories[name] = factory


def check_evaluator(evaluator: str | Evaluator) -> None:
    """Refuses a name that `find_evaluator` does not know; starts nothing.

    Raises:
        ConfigError: there is no such evaluator.
    """
    if isinstance(evaluator, str) and evaluator not in _factories:
        if "://" in evaluator:
            raise ConfigError(f"evaluator {evaluator!r}: this version has no client of an evaluation service")
        raise ConfigError(f"no evaluator {evaluator!r}; there are {', '.join(_factories)}, or an Evaluator object")


def find_evaluator(evaluator: str | Evaluator) -> Evaluator:
    """The evaluator of that name, started if need be; an object is handed back as it is.

    Raises:
        ConfigError: there is no such evaluator.
        InfrastructureError: it could not be started.
    """
    check_evaluator(evaluator)
    if not isinstance(evaluator, str):
        return evaluator
    key = (os.getpid(), evaluator)  # a forked child must not use its parent's processes
    with _lock:
        if key not in _started:
            _started[key] = _factories[evaluator]()
        return _started[key]


def close_evaluators() -> None:
    """Ends what `find_evaluator` started in this process; what is asked for later is started anew."""
    with _lock:
        mine = [key for key in _started if key[0] == os.getpid()]
        evaluators = [_started.pop(key) for key in mine]
    for evaluator in evaluators:
        evaluator.close()


atexit.register(close_evaluators)
