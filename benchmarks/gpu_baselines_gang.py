"""The ranks of `gpu_baselines`: started once, kept warm over all problems, ended when one of them hangs.

The parent's side. It imports no torch: a rank that brings down its CUDA context, or waits in NCCL for ever, costs one
problem and a new gang.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from benchmarks.gpu_baselines_records import BaselineOutcome, BaselineTask

START_DEADLINE_S = 120.0
GRACE_S = 5.0
"""Wait in seconds, after the first rank has failed, for the others to fail as well; those that wait for it never
would."""

END_S = 20.0

WITHOUT_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
"""Environment without NVLink multicast, as for the published figures, and as some machines demand."""


def _run_rank(connection: Connection, device: str, rank: int, world_size: int, rendezvous: str) -> None:
    from benchmarks.gpu_baselines_rank import Rank

    Rank(connection, device, rank, world_size, rendezvous).serve()


class BaselineGang:
    """`world_size` processes with one process group.

    Attributes:
        about: Device and versions that rank 0 reports.
        last_failed: Whether the last task failed, so that a failure of the next may be a consequence.
    """

    def __init__(self, device: str, world_size: int) -> None:
        os.environ.update(WITHOUT_MULTICAST)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are here, and a machine may have no other network
        self.last_failed = False
        self._folder = tempfile.TemporaryDirectory(prefix="gpu-baselines-")
        rendezvous = str(Path(self._folder.name) / "rendezvous")
        context = multiprocessing.get_context("spawn")
        self._connections: list[Connection] = []
        self._processes = []
        for rank in range(world_size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_run_rank, args=(theirs, device, rank, world_size, rendezvous), daemon=True, name=f"rank {rank}"
            )
            process.start()
            theirs.close()
            self._connections.append(ours)
            self._processes.append(process)
        started = self._collect(START_DEADLINE_S)
        if started.error is not None:
            self.close()
            raise RuntimeError(f"the ranks did not start: {started.error}")
        self.about = started.row

    def run(self, task: BaselineTask, deadline_s: float) -> BaselineOutcome:
        """Has all ranks measure one task."""
        try:
            for connection in self._connections:
                connection.send(task)
        except OSError as error:
            return BaselineOutcome(error=f"a rank has ended: {error}", usable=False)
        outcome = self._collect(deadline_s)
        self.last_failed = outcome.error is not None
        return outcome

    def _collect(self, deadline_s: float) -> BaselineOutcome:
        """Listens until every rank is idle, or the time is up."""
        outcome = BaselineOutcome()
        deadline = time.monotonic() + deadline_s
        busy = dict(zip(self._connections, range(len(self._connections)), strict=True))
        while busy:
            ready = wait(list(busy), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                late = f"ranks {sorted(busy.values())} were not done in time"
                outcome.error, outcome.usable = outcome.error or late, False
                return outcome
            for connection in ready:
                assert isinstance(connection, Connection)
                rank = busy[connection]
                try:
                    message: dict[str, Any] = connection.recv()
                except (EOFError, OSError):
                    outcome.error, outcome.usable = outcome.error or f"rank {rank} ended", False
                    return outcome
                outcome.row |= message.get("row", {})
                if "failed" in message:
                    outcome.error = outcome.error or f"rank {rank}: {message['failed']}"
                    deadline = min(deadline, time.monotonic() + GRACE_S)
                if "idle" in message:
                    outcome.usable &= message["idle"]
                    del busy[connection]
        return outcome

    def close(self) -> None:
        """Ends all ranks, whatever they do."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join(END_S)
        for connection in self._connections:
            connection.close()
        self._folder.cleanup()
