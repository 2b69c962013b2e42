"""Evaluators by name; those that are started here are shared by all environments of a process and closed at its end."""

from __future__ import annotations

import atexit
import os
import pkgutil
import threading
from collections.abc import Callable

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.evaluators.evaluator import DescribedEvaluator, Evaluator, machine_of
from pkb_gym.engine.evaluators.remote import RemoteEvaluator, check_url
from pkb_gym.engine.records.machine import Machine
from pkb_gym.engine.stages.execution_environment import this_machine
from pkb_gym.engine.support.suggestions import did_you_mean
from pkb_gym.envs.registration import evaluator_entry_points


def _local() -> Evaluator:
    from pkb_gym.engine.evaluators.local import LocalEvaluator

    return LocalEvaluator()


def evaluator_by_address(text: str) -> Callable[[str], Evaluator] | None:
    """The kind of evaluator that a text is an address of, well formed or not, by its scheme.

    Returns:
        Maker of an evaluator from an address, as `register_evaluator` describes it; None for other texts.
    """
    scheme = text.partition("?")[0].partition("://")[0]
    if scheme not in evaluator_entry_points:
        return None
    found: Callable[[str], Evaluator] = pkgutil.resolve_name(evaluator_entry_points[scheme])
    return found


_factories: dict[str, Callable[[], Evaluator]] = {"local": _local}
_elsewhere: set[str] = set()
_started: dict[tuple[int, str], Evaluator] = {}
_lock = threading.Lock()


def add_evaluator(name: str, factory: Callable[[], Evaluator], *, elsewhere: bool = False) -> None:
    """Registers an evaluator for environments of this process: `evaluator=name` survives JSON, an object would not.

    Args:
        name: New name, or one that no environment has used yet.
        factory: Maker of the evaluator, called when it is first needed.
        elsewhere: Whether it judges on another machine, which a `DescribedEvaluator` is asked for at the first reset.

    Raises:
        ConfigError: An evaluator of that name is already at work.
    """
    with _lock:
        if (os.getpid(), name) in _started:
            raise ConfigError(f"evaluator {name!r} is already at work in this process")
        _factories[name] = factory
        (_elsewhere.add if elsewhere else _elsewhere.discard)(name)


def check_evaluator(evaluator: str | Evaluator) -> None:
    """Refuses what `find_evaluator` does not know; starts nothing.

    Raises:
        ConfigError: There is no such evaluator, the url or address is none, or the object is no evaluator.
    """
    if not isinstance(evaluator, str):
        if isinstance(evaluator, type):
            raise ConfigError(f"an evaluator is an object; make one: {evaluator.__name__}(...)")
        if not isinstance(evaluator, Evaluator):
            raise ConfigError(f"an evaluator is a name, a url or an object with evaluate and close, got {evaluator!r}")
        return
    if evaluator in _factories:
        return
    if (kind := evaluator_by_address(evaluator)) is not None:
        kind(evaluator)  # connects on first use
        return
    if "://" not in evaluator:
        known, hint = ", ".join([*_factories, *evaluator_entry_points]), did_you_mean(evaluator, _factories)
        message = f"no evaluator {evaluator!r}; there are {known}, urls of services, and Evaluator objects.{hint}"
        raise ConfigError(message)
    check_url(evaluator)


def evaluates_here(evaluator: str | Evaluator) -> bool:
    """Whether it judges on this machine; False for urls and addresses."""
    if isinstance(evaluator, str):
        return evaluator in _factories and evaluator not in _elsewhere
    return not isinstance(evaluator, DescribedEvaluator)


def find_machine(evaluator: str | Evaluator) -> Machine:
    """The machine that an evaluator judges on; one elsewhere is asked, and none of this machine is started for it.

    Raises:
        ConfigError: There is no such evaluator, or it cannot describe its machine.
        InfrastructureError: It could not be started, or not be reached.
    """
    return this_machine() if evaluates_here(evaluator) else machine_of(find_evaluator(evaluator))


def find_evaluator(evaluator: str | Evaluator) -> Evaluator:
    """The evaluator of that name, url or address, started if need be; an object is handed back as it is.

    Raises:
        ConfigError: There is no such evaluator, or a package that it needs is not installed.
        InfrastructureError: It could not be started.
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
    return (evaluator_by_address(evaluator) or RemoteEvaluator)(evaluator)


def close_evaluators() -> None:
    """Ends what `find_evaluator` started in this process; what is asked for later is started anew."""
    with _lock:
        mine = [key for key in _started if key[0] == os.getpid()]
        evaluators = [_started.pop(key) for key in mine]
    for evaluator in evaluators:
        evaluator.close()


atexit.register(close_evaluators)
