"""The choice of a command's evaluator: the background evaluator, processes of its own, a service, or a cluster."""

from __future__ import annotations

import argparse
import importlib.util
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.support import env_vars

from .command import Session, stderr
from .serve import NEEDS

if TYPE_CHECKING:
    from pkb_gym.engine.evaluators.evaluator import Evaluator
    from pkb_gym.engine.problem import Problem
    from pkb_gym.engine.records.config import EvalConfig
    from pkb_gym.engine.records.feedback import Feedback
    from pkb_gym.engine.records.machine import Machine
    from pkb_gym.engine.stages.progress import Progress

ASKING = "asking the evaluator"
"""Entry of `Feedback.durations_s`: the time to the answer that the evaluator does not account for."""


def add_evaluator_options(parser: argparse.ArgumentParser) -> None:
    """Adds `--fresh`, `--service` and `--evaluator`, which `open_chosen` reads."""
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument(
        "--fresh", action="store_true", help="start processes for this command alone, not the background evaluator"
    )
    add_elsewhere_options(chosen)


def add_elsewhere_options(chosen: argparse._MutuallyExclusiveGroup) -> None:
    """Adds `--service` and `--evaluator`, by which others judge; `open_chosen` reads them."""
    chosen.add_argument(
        "--service", metavar="URL", help="evaluate on the `pkb serve` at this url, with the token in PKB_TOKEN"
    )
    chosen.add_argument(
        "--evaluator",
        metavar="ADDRESS",
        help="evaluate on a Ray cluster: ray, or ray://HOST:PORT (docs/scaling.md)",
    )


def judged_here(args: argparse.Namespace) -> bool:
    """Whether this machine judges."""
    return args.service is None and args.evaluator is None


def open_chosen(args: argparse.Namespace, session: Session, key: bytes | None) -> Evaluator:
    """The evaluator of a command.

    Args:
        args: Values of the options of `add_evaluator_options`.
        session: Session of the command.
        key: Key of the inputs; None where a service draws them.

    Raises:
        ConfigError: the url or address is none, a package is missing, or the folder that PKB_RUNTIME_DIR names cannot
            be used.
    """
    if args.service is not None:
        from pkb_gym.engine.evaluators.remote import RemoteEvaluator

        return Accounted(RemoteEvaluator(args.service, replay_key=key))
    if args.evaluator is not None:
        from pkb_gym.cluster.evaluator import RayEvaluator

        return Accounted(RayEvaluator(args.evaluator, replay_key=key))
    if key is None or args.fresh or not env_vars.background_evaluator():
        return session.open_evaluator(key)
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        stderr().print(
            f"without a background evaluator, which needs {', '.join(missing)}: pip install 'pkb-gym[serve]'",
            soft_wrap=True,
        )
        return session.open_evaluator(key)
    folder, idle_s = env_vars.runtime_dir(), env_vars.evaluator_idle_s()
    if (fault := _fault_of(folder)) and not env_vars.runtime_dir_is_named():
        stderr().print(
            f"without a background evaluator: {folder} cannot hold its socket: {fault}; PKB_RUNTIME_DIR names another",
            soft_wrap=True,
        )
        return session.open_evaluator(key)
    if fault:
        raise ConfigError(f"PKB_RUNTIME_DIR names {folder}, which cannot hold sockets: {fault}")
    from pkb_gym.serve.background import BackgroundEvaluator

    return Accounted(BackgroundEvaluator(key, folder, idle_s))


def _fault_of(folder: Path) -> str:
    """Why nothing can be written into a folder, which is made where it is missing; empty where it can."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        return error.strerror or str(error)
    return "" if os.access(folder, os.W_OK | os.X_OK) else "it cannot be written"


class Accounted:
    """An evaluator in another process, whose feedback accounts for all the time that the answer took.

    Args:
        evaluator: Evaluator to ask.
    """

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator

    def evaluate(self, problem: Problem, source: str, config: EvalConfig, progress: Progress | None = None) -> Feedback:
        """Judges one source; see `Evaluator.evaluate`."""
        began = time.monotonic()
        feedback = self._evaluator.evaluate(problem, source, config, progress)
        rest_s = time.monotonic() - began - sum(feedback.durations_s.values())
        # Less than nothing where the service had judged an equal request before.
        return feedback.model_copy(update={"durations_s": {**feedback.durations_s, ASKING: max(0.0, rest_s)}})

    def machine(self) -> Machine:
        """The machine of its evaluator; see `machine_of`."""
        from pkb_gym.engine.evaluators.evaluator import machine_of

        return machine_of(self._evaluator)

    def close(self) -> None:
        """Closes the evaluator."""
        self._evaluator.close()
