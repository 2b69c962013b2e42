"""The evaluator's handle on the persistent reference gang of one world size."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pkb_gym.engine.check import RankCheck
from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.layout import Workload
from pkb_gym.engine.ranks.gang import Gang, GangFailed
from pkb_gym.engine.ranks.shared_heap import SharedHeap
from pkb_gym.engine.ranks.workload import workload_to_json
from pkb_gym.engine.ranks.zygote import Zygote
from pkb_gym.engine.rankside.wire import Json

TIMEOUT_S = 600.0
"""Of one order to the reference gang; its code is trusted, so this only ends what has gone wrong."""


class ReferenceGang:
    """Makes inputs, runs the baseline, compares; see `ranks/reference.py` for its other end.

    Args:
        zygote: the trusted one.
        world_size: number of ranks.
        threads: processor threads that each rank computes with.
    """

    def __init__(self, zygote: Zygote, world_size: int, threads: int) -> None:
        self.world_size = world_size
        self._failed = False
        # Where ranks meet, now and whenever they make a group: a file without a name, gone with the last of them.
        store = os.memfd_create("pkb-rendezvous", os.MFD_CLOEXEC)
        try:
            self._gang = Gang(zygote, "pkb_gym.engine.ranks.reference", world_size, None)
            self._ask({"threads": threads}, "ready", fds=(store,))
        finally:
            os.close(store)

    def take(
        self,
        workload: Workload,
        declaration: Path,
        source: str,
        scratch_bytes: int,
        mine: SharedHeap,
        theirs: SharedHeap,
    ) -> None:
        """Hands over what is to be evaluated, and both heaps."""
        order: dict[str, Json] = {
            "workload": workload_to_json(workload, declaration),
            "source": source,
            "scratch_bytes": scratch_bytes,
            "segment_bytes": mine.segment_bytes,
        }
        self._ask(order, "ready", fds=(mine.fd, theirs.fd))

    def make(self, trials: Sequence[int], *, timed: bool) -> None:
        """Draws the inputs of a block."""
        self._ask({"make": list(trials), "timed": timed}, "made")

    def stage(self) -> None:
        """Puts the inputs into the candidate's heap and poisons its outputs."""
        self._ask({"stage": True}, "staged")

    def run(self, calls: int, *, native: bool) -> int:
        """Runs the baseline on the block's inputs; returns nanoseconds by the evaluator's clock."""
        try:
            order: dict[str, Json] = {"run": calls, "native": native}
            nanoseconds, _ = self._gang.run_block([order] * self.world_size, timeout_s=TIMEOUT_S)
            self._gang.collect("finished", timeout_s=TIMEOUT_S)
        except GangFailed as failed:
            raise self._fault(str(failed)) from None
        return nanoseconds

    def warm(self, calls: int) -> None:
        """Runs the baseline without looking at the clock or keeping results."""
        self._ask({"warm": calls}, "warmed")

    def compare(self, claims: Sequence[Sequence[object]], *, native: bool) -> list[RankCheck]:
        """Judges the candidate's outputs of the block.

        Args:
            claims: per rank and call, what the candidate says it returned.
            native: whether it is of the native dialect.
        """
        orders: list[Any] = [{"compare": claim, "native": native} for claim in claims]
        return [
            RankCheck.model_validate(report) for reply in self._send(orders, "report") for report in reply["report"]
        ]

    def release(self) -> None:
        """Lets go of heaps and results; a gang that has failed holds none any more."""
        if self._failed:
            return
        self._ask({"release": True}, "released")

    def close(self) -> None:
        """Ends it."""
        self._gang.close()

    def _ask(self, order: Mapping[str, Json], expect: str, fds: Sequence[int] = ()) -> list[dict[str, Any]]:
        return self._send([order] * self.world_size, expect, fds)

    def _send(self, orders: Sequence[Mapping[str, Json]], expect: str, fds: Sequence[int] = ()) -> list[dict[str, Any]]:
        try:
            return self._gang.ask(orders, expect, timeout_s=TIMEOUT_S, fds=fds)
        except GangFailed as failed:
            raise self._fault(str(failed)) from None

    def _fault(self, text: str) -> InfrastructureError:
        self._failed = True
        self.close()
        return InfrastructureError(f"the reference gang failed: {text}\n{self._gang.output}".strip())
