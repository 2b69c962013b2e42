"""Kills of gangs that stand by, in the fault drill; on the CPU, gangs that are prepared ahead stand in for GPUs'."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager

from pkb_gym.engine.evaluators.gang_pool import GangKind, GangPool
from pkb_gym.engine.gangs.candidate_gang import CandidateGang
from pkb_gym.engine.records.config import ResolvedConfig
from tests.faults.resources import Fault
from tests.faults.targets import gangs

LATEST_S = 0.5
"""The latest moment of a kill after an evaluation: the stock is being refilled meanwhile, or whole."""

APPEAR_S = 30.0
"""The longest time until a gang stands by."""

LOOK_S = 0.02


class CpuGangsStandBy(GangPool):
    """Gangs of the CPU are prepared ahead and kept as those of GPUs are."""

    def candidate_gang(self, config: ResolvedConfig, source: str) -> AbstractContextManager[CandidateGang]:
        """A gang for the candidate, as from `GangPool`."""
        del source  # streams are GPUs'
        return self._gpu_gang(GangKind(config.world_size, config.dialect, allow_processes=False))

    def _start_gpu_gang(self, kind: GangKind) -> CandidateGang:
        gang = CandidateGang(self.zygote(trusted=False), "cpu", kind.world_size)
        try:
            gang.prepare(kind.dialect)
        except BaseException:
            gang.close()
            raise
        return gang


class FallenStandby(Fault):
    """Kills gangs that stand by, while nothing is judged: those that the next evaluation would take, or all.

    Args:
        target: Target whose gangs stand by.
        through: Kind of the target.
    """

    name, compiles = "standby gang killed", False

    @contextlib.contextmanager
    def taken_away(self, draw: random.Random) -> Iterator[None]:
        """Kills the gangs that stand by.

        Raises:
            TimeoutError: no gang stands by.
        """
        time.sleep(draw.uniform(0, LATEST_S))
        for leader, ranks in self._chosen(draw):
            with contextlib.suppress(ProcessLookupError):
                os.kill(draw.choice([leader, *ranks]), signal.SIGKILL)
        yield

    def _chosen(self, draw: random.Random) -> list[tuple[int, list[int]]]:
        deadline = time.monotonic() + APPEAR_S
        while not (found := gangs(self.target.pid, "candidate")):
            if time.monotonic() > deadline:
                raise TimeoutError(f"no gang stands by after {APPEAR_S:g} s")
            time.sleep(LOOK_S)
        newest_first = sorted(found.items(), reverse=True)
        return newest_first[: draw.choice((1, 1, 2, len(found)))]
