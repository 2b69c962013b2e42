"""The background evaluator: a service on a socket of one user, started on demand, ended when it has been idle.

It is `pkb serve --socket`, and what asks it is `RemoteEvaluator`. Its socket is named by the caller's `identity`, so
that a command never asks one that would judge otherwise than its own evaluator; another one is started then, and others
of the same folder that have nothing to do are ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pkb_gym.engine.errors import InfrastructureError, PkbError
from pkb_gym.engine.evaluators.connections import SOCKET
from pkb_gym.engine.evaluators.remote import RemoteEvaluator
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.engine.records.service import ServiceStatus
from pkb_gym.engine.stages.progress import Progress
from pkb_gym.engine.support import env_vars
from pkb_gym.engine.support.problem_folders import problem_folders
from pkb_gym.serve.identity import identity
from pkb_gym.serve.ready_line import read_ready
from pkb_gym.serve.token import read_or_make_token
from pkb_gym.serve.user_socket import listener_pid, private_folder

STARTING = "starting the evaluator"
"""Entry of `Feedback.durations_s`: the time until a background evaluator answers."""

START_S = 60.0
STOP_S = 10.0
MAX_STARTS = 3
"""Evaluators that are asked in turn for one evaluation, as each ends in the middle of it."""

UNREACHABLE_S = 1.0
SUFFIX = ".sock"

_PROGRAM = """
import json, os, sys
os.chdir("/")
sys.path[:] = json.loads(sys.argv.pop(1))
from pkb_gym.cli import main
sys.exit(main())
"""
"""It imports from where its caller does."""


@dataclass(frozen=True)
class Running:
    """A background evaluator that listens.

    Attributes:
        socket: Socket that it listens on.
        pid: Id of its process.
        status: State of the service; None where it does not answer.
    """

    socket: Path
    pid: int
    status: ServiceStatus | None

    @property
    def is_idle(self) -> bool:
        """Whether it has nothing to do."""
        at = self.status
        return at is not None and not (at.queued or at.compiling or at.waiting or at.running)


class BackgroundEvaluator:
    """Has sources judged by the background evaluator, which is started where there is none.

    Args:
        replay_key: Secret that, with the seed, fixes the inputs.
        folder: Folder of the sockets.
        idle_s: Seconds without a request after which an evaluator that is started here ends.

    Raises:
        ConfigError: A package is missing, or others can enter the folder.
    """

    def __init__(self, replay_key: bytes, folder: Path, idle_s: float) -> None:
        self._folder, self._idle_s = private_folder(folder), idle_s
        self._socket = self._folder / f"{identity()}{SUFFIX}"
        with _one_at_a_time(self._folder):  # the first to come makes the token
            self._remote = _remote(self._socket, replay_key)
        self._pid: int | None = None
        """Process of the evaluator that was asked last."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def evaluate(self, problem: Problem, source: str, config: EvalConfig, progress: Progress | None = None) -> Feedback:
        """Has one source judged in the background; see `Evaluator.evaluate`.

        Where the evaluator ends meanwhile, by a kill or by `pkb evaluator stop`, another one is started and judges, up
        to `MAX_STARTS` times.

        Raises:
            ConfigError, SizeError: The request makes no sense here.
            InfrastructureError: No evaluator can be started, or it does not answer.
        """
        started_s = 0.0
        for starts_left in reversed(range(MAX_STARTS)):
            started_s += self._start_if_needed(progress)
            if (pid := listener_pid(self._socket)) != self._pid:
                self._remote.close()  # connections to one that is ending, which refuses
                self._pid = pid
            try:
                feedback = self._remote.evaluate(problem, source, config, progress)
            except InfrastructureError:
                if not (starts_left and self._has_ended(pid)):
                    raise
                continue
            # One that is told to end answers what it has in hand by an infrastructure failure.
            if feedback.failure is not Failure.INFRASTRUCTURE or not self._has_ended(pid):
                break
        if not started_s:
            return feedback
        return feedback.model_copy(update={"durations_s": {**feedback.durations_s, STARTING: started_s}})

    def _has_ended(self, pid: int | None) -> bool:
        """Whether the evaluator of that process is no longer the one that listens."""
        return pid is None or listener_pid(self._socket) != pid

    def close(self) -> None:
        """Closes the connections; the evaluator goes on."""
        self._remote.close()

    def _start_if_needed(self, progress: Progress | None) -> float:
        """Seconds until it listens; 0 where it did."""
        if listener_pid(self._socket) is not None:
            return 0.0
        began = time.monotonic()
        if progress is not None:
            progress(STARTING)
        with _one_at_a_time(self._folder):
            if listener_pid(self._socket) is None:
                for other in running(self._folder):
                    if other.is_idle:
                        stop(other)
                _remove_logs(self._folder)
                self._start()
        return time.monotonic() - began

    def _start(self) -> None:
        """Returns when it listens.

        Raises:
            InfrastructureError: It ended, or was not ready within `START_S`.
        """
        self._socket.unlink(missing_ok=True)  # of one that was killed
        log = self._socket.with_suffix(".log")
        own = [str(folder.path) for folder in problem_folders() if not folder.fault]
        words = ["serve", "--socket", str(self._socket), "--token-file", str(_token_file(self._folder))]
        words += ["--idle-timeout", f"{self._idle_s:g}", *(word for path in own for word in ("--problem", path))]
        path = json.dumps([str(Path(entry).absolute()) for entry in sys.path])
        ready, theirs = os.pipe()
        try:
            # Not `subprocess`, which warns of a child that nothing has waited for.
            os.posix_spawn(
                sys.executable,
                [sys.executable, "-c", _PROGRAM, path, *words],
                env_vars.with_changes(),
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, theirs, 1),
                    (os.POSIX_SPAWN_OPEN, 2, str(log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
                ],
                setsid=True,  # Ctrl-C in a terminal reaches the command alone
                setsigdef=(signal.SIGINT, signal.SIGTERM),
            )
            os.close(theirs)
            theirs = -1
            try:
                line = read_ready(ready, START_S)
            except (TimeoutError, ValueError) as error:
                raise InfrastructureError(f"no background evaluator listens: {error}; see {log}") from None
            if line is None:
                raise InfrastructureError(
                    f"no background evaluator could be started (--fresh does without one): {_log_tail(log)}"
                )
        finally:
            os.close(ready)
            if theirs >= 0:
                os.close(theirs)


def running(folder: Path) -> Iterator[Running]:
    """The background evaluators of a folder; the sockets of those that were killed are removed."""
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        pid = listener_pid(path)
        if pid is None:
            path.unlink(missing_ok=True)
            continue
        status = None
        with contextlib.suppress(PkbError), contextlib.closing(_remote(path)) as remote:
            status = remote.status()
        yield Running(path, pid, status)


def stop(evaluator: Running) -> bool:
    """Has a background evaluator end; whether it has, after `STOP_S` at most."""
    try:
        process = os.pidfd_open(evaluator.pid)
    except ProcessLookupError:
        return True
    try:
        if listener_pid(evaluator.socket) != evaluator.pid:
            return True
        signal.pidfd_send_signal(process, signal.SIGTERM)
        return bool(select.select([process], [], [], STOP_S)[0])
    finally:
        os.close(process)


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Lets one of two commands that find no evaluator start it, and the other find it."""
    with (folder / "lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _remote(path: Path, replay_key: bytes | None = None) -> RemoteEvaluator:
    token = read_or_make_token(_token_file(path.parent))
    return RemoteEvaluator(f"{SOCKET}{path}", token, unreachable_s=UNREACHABLE_S, replay_key=replay_key)


def _token_file(folder: Path) -> Path:
    return folder / "token"


def _remove_logs(folder: Path) -> None:
    """Removes the logs of evaluators that have ended."""
    for log in folder.glob("*.log"):
        if not log.with_suffix(SUFFIX).exists():
            log.unlink(missing_ok=True)


def _log_tail(log: Path) -> str:
    """The end of a log."""
    with contextlib.suppress(OSError):
        return log.read_text(errors="replace")[-1000:].strip()
    return "its log cannot be read"
