"""Evaluators by name; those that are started here are shared by all environments of a process and closed at its end."""

from __future__ import annotations

import atexit
import importlib
import os
import threading
from collections.abc import Callable
from types import ModuleType

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.evaluators.evaluator import Evaluator
from pkb_gym.engine.evaluators.remote import RemoteEvaluator, check_url
from pkb_gym.engine.support.suggestions import did_you_mean


def _local() -> Evaluator:
    from pkb_gym.engine.evaluators.local import LocalEvaluator

    return LocalEvaluator()


def _cluster() -> ModuleType:
    """The module for addresses of clusters; it lies above this package and is imported when an address is given."""
    return importlib.import_module("pkb_gym.cluster.evaluator")


def is_cluster_address(text: str) -> bool:
    """Whether a text means a Ray cluster, well formed or not."""
    return text.partition("?")[0] == "ray" or text.startswith("ray://")


_factories: dict[str, Callable[[], Evaluator]] = {"local": _local}
_started: dict[tuple[int, str], Evaluator] = {}
_lock = threading.Lock()


def add_evaluator(name: str, factory: Callable[[], Evaluator]) -> None:
    """Registers an evaluator for environments of this process: `evaluator=name` survives JSON, an object would not.

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
    """Refuses what `find_evaluator` does not know; starts nothing.

    Raises:
        ConfigError: there is no such evaluator, the url or address is none, or the object is no evaluator.
    """
    if not isinstance(evaluator, str):
        if isinstance(evaluator, type):
            raise ConfigError(f"an evaluator is an object; make one: {evaluator.__name__}(...)")
        if not isinstance(evaluator, Evaluator):
            raise ConfigError(f"an evaluator is a name, a url or an object with evaluate and close, got {evaluator!r}")
        return
    if evaluator in _factories:
        return
    if is_cluster_address(evaluator):
        _cluster().RayEvaluator(evaluator)  # which connects when it is first used
        return
    if "://" not in evaluator:
        known, hint = ", ".join(_factories), did_you_mean(evaluator, _factories)
        message = f"no evaluator {evaluator!r}; there are {known}, ray, urls of services, and Evaluator objects.{hint}"
        raise ConfigError(message)
    check_url(evaluator)


def evaluates_here(evaluator: str | Evaluator) -> bool:
    """Whether it judges on this machine; False for an evaluator by url."""
    return not isinstance(evaluator, RemoteEvaluator) and (evaluator in _factories or not isinstance(evaluator, str))


def find_evaluator(evaluator: str | Evaluator) -> Evaluator:
    """The evaluator of that name, url or address, started if need be; an object is handed back as it is.

    Raises:
        ConfigError: there is no such evaluator, or what it needs is not installed.
        InfrastructureError: it could not be started.
    """
    check_evaluator(evaluator)
    if not isinstance(evaluator, str):
        return evaluator
    key = (os.getpid(), evaluator)  # a forked child must not use its parent's processes
    with _lock:
        if key not in _started:
            _started[key] = _open(evaluator)
        return _started[key]


def _open(evaluator: str) -> Evaluator:
    if evaluator in _factories:
        return _factories[evaluator]()
    if is_cluster_address(evaluator):
        opened: Evaluator = _cluster().RayEvaluator(evaluator)
        return opened
    return RemoteEvaluator(evaluator)


def close_evaluators() -> None:
    """Ends what `find_evaluator` started in this process; what is asked for later is started anew."""
    with _lock:
        mine = [key for key in _started if key[0] == os.getpid()]
        evaluators = [_started.pop(key) for key in mine]
    for evaluator in evaluators:
        evaluator.close()


atexit.register(close_evaluators)
