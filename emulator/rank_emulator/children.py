"""Jobs in child processes, where the crash of one costs its own result alone."""

from __future__ import annotations

import multiprocessing
import resource
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import TypeVar

from .errors import EmulatorError
from .interface import Outcome

J = TypeVar("J")
R = TypeVar("R")

_MAX_JOBS = 64
"""Jobs of one process, which keeps the libraries that it has loaded."""


def run_each(
    jobs: Sequence[J],
    run: Callable[[J], R],
    *,
    name: Callable[[J], str],
    is_fine: Callable[[R], bool],
    lost: Callable[[J, Outcome, str], R],
    timeout_s: float,
) -> Iterator[R]:
    """Runs jobs one after the other in a child process; after one that is not fine in a new process.

    Args:
        jobs: Arguments of `run`.
        run: Function that is called in the child process; its result must be picklable.
        name: Name of a job, for messages.
        is_fine: Whether the process of a result may run further jobs.
        lost: Result of a job whose process has died or was ended, of its outcome and a message.
        timeout_s: Wall-clock time of a job in seconds after which its process is ended.

    Yields:
        The result of each job, in their order.

    Raises:
        EmulatorError: `run` has raised an exception; the message has its traceback.
    """
    context = multiprocessing.get_context("fork")
    done = 0
    while done < len(jobs):
        receiver, sender = context.Pipe(duplex=False)
        part = jobs[done : done + _MAX_JOBS]
        child = context.Process(target=_run_all, args=(sender, part, run, is_fine), daemon=True)
        child.start()
        sender.close()
        try:
            for job in part:
                result: R = _receive(receiver, child, job, name, lost, timeout_s)
                done += 1
                yield result
                if not is_fine(result):
                    break
        finally:
            child.kill()
            child.join()
            receiver.close()


def _receive(
    receiver: Connection,
    child: BaseProcess,
    job: J,
    name: Callable[[J], str],
    lost: Callable[[J, Outcome, str], R],
    timeout_s: float,
) -> R:
    """The result of a job, also where its process is silent or dead."""
    if not receiver.poll(timeout_s):
        return lost(job, Outcome.STOPPED, f"the run has not ended within {timeout_s:g} s")
    try:
        received: R | _Raised = receiver.recv()
    except EOFError:
        child.join()
        code = child.exitcode or 0
        ended = f"by {signal.Signals(-code).name}" if code < 0 else f"with status {code}"
        return lost(job, Outcome.CRASHED, f"the process of all ranks has ended {ended}")
    if isinstance(received, _Raised):
        raise EmulatorError(f"{name(job)}: {received}")
    return received


class _Raised(str):
    """The traceback of an exception."""


def _run_all(sender: Connection, jobs: Sequence[J], run: Callable[[J], R], is_fine: Callable[[R], bool]) -> None:
    """Sends a result for each job, until one is not fine, or the traceback of an exception."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for job in jobs:
        try:
            result = run(job)
        except Exception:  # noqa: BLE001  # raised again in the caller's process
            sender.send(_Raised(traceback.format_exc()))
            return
        sender.send(result)
        if not is_fine(result):
            return
