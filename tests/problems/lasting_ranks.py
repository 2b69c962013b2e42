"""Rank processes that serve many tests: to fork some from a test process costs more than most references do."""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any

import torch

from pkb_gym.engine.rankside.confine import die_with_parent

Work = Callable[[int, Any], Any]
"""Does what a rank is asked; both are of kinds that `torch.save` takes. What it raises ends all ranks."""


class LastingRanks:
    """Processes that do one thing after another, each as a rank of its own.

    They are stopped in between: gloo looks for messages a hundred times a second, in each of them.

    Args:
        world_size: Number of ranks.
        begin: Function that each rank calls first with its number.
        work: Function that each rank calls with a request.
    """

    def __init__(self, world_size: int, begin: Callable[[int], None], work: Work) -> None:
        torch.set_num_threads(1)  # a forked process has no OpenMP threads, and must not wait for any
        fork = multiprocessing.get_context("fork")
        self._pipes: list[Connection] = []
        self._processes: list[ForkProcess] = []
        for rank in range(world_size):
            mine, theirs = fork.Pipe()
            process = fork.Process(target=_serve, args=(rank, theirs, begin, work), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(mine)
            self._processes.append(process)
        atexit.register(
            self.close
        )  # multiprocessing would wait for them for good: SIGTERM does not end what is stopped

    @property
    def pids(self) -> list[int]:
        """Their numbers."""
        return [process.pid for process in self._processes if process.pid is not None]

    def ask(self, requests: Sequence[Any], deadline_s: float) -> list[Any]:
        """What each rank makes of its own request.

        Raises:
            RuntimeError: a rank raised, died or took too long, which ends all; holds its traceback.
        """
        try:
            self._signal(signal.SIGCONT)
            replies = self._ask(requests, time.monotonic() + deadline_s)
            self._signal(signal.SIGSTOP)
        except BaseException:
            self.close()
            raise
        return replies

    def _signal(self, number: signal.Signals) -> None:
        for pid in self.pids:  # numbers of our children: nobody else has them before they are joined
            os.kill(pid, number)

    def _ask(self, requests: Sequence[Any], deadline: float) -> list[Any]:
        for pipe, request in zip(self._pipes, requests, strict=True):
            pipe.send_bytes(_packed(request))
        replies: dict[int, Any] = {}
        while len(replies) < len(self._pipes):
            waiting = {pipe: rank for rank, pipe in enumerate(self._pipes) if rank not in replies}
            ready = wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                raise RuntimeError(f"{len(waiting)} ranks still run after their deadline")
            for pipe in ready:
                rank = waiting[pipe]  # type: ignore[index]
                try:
                    succeeded, reply = _unpacked(self._pipes[rank].recv_bytes())
                except (EOFError, ConnectionError):
                    raise RuntimeError(f"rank {rank}: its process has ended") from None
                if not succeeded:
                    raise RuntimeError(f"rank {rank}: {reply}")
                replies[rank] = reply
        return [replies[rank] for rank in sorted(replies)]

    def close(self) -> None:
        """Ends them; calling it again changes nothing."""
        atexit.unregister(self.close)
        for process in self._processes:
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()


def _packed(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _unpacked(content: bytes) -> Any:
    return torch.load(io.BytesIO(content), weights_only=False)


def _serve(rank: int, pipe: Connection, begin: Callable[[int], None], work: Work) -> None:
    """One rank: works until nobody can ask any more."""
    try:
        die_with_parent()
        _close_what_is_the_parents(pipe)
        gc.freeze()  # a collection would touch, and so copy, all that the fork shares with the test process
        begin(rank)
        while True:
            request = _unpacked(pipe.recv_bytes())
            try:
                reply = True, work(rank, request)
            except BaseException:
                reply = False, traceback.format_exc()
            pipe.send_bytes(_packed(reply))
    finally:
        os._exit(0)  # no teardown: what the fork copied belongs to the test process


def _close_what_is_the_parents(pipe: Connection) -> None:
    """Whoever waits for the test process to close a connection must not wait for this one too."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != pipe.fileno():
            with contextlib.suppress(OSError):
                os.close(int(name))
