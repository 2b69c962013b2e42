"""The evaluator's handle on the persistent reference gang of one world size."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pkb_gym.engine.compare.check import RankCheck
from pkb_gym.engine.compare.layout import Workload, align
from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.ranks.failure_attribution import GangFailed
from pkb_gym.engine.ranks.gang import Gang, Processors
from pkb_gym.engine.ranks.heaps import DeviceHeap, SharedHeap, SymmetricHeap
from pkb_gym.engine.ranks.workload import workload_to_json
from pkb_gym.engine.ranks.zygote import Zygote
from pkb_gym.engine.rankside.wire import Json
from pkb_gym.engine.records.config import Device

TIMEOUT_S = 600.0
"""Of one order to the reference gang; its code is trusted, so this only ends what has gone wrong."""

SEGMENT_ALIGNMENT_BYTES = 64 << 20
"""Of device memory: far above what the driver asks for, so that few sizes differ."""


class ReferenceGang:
    """Makes inputs, runs the baseline, compares; see `ranks/reference.py` for its other end.

    Args:
        zygote: the trusted one.
        device: what its ranks run on.
        world_size: number of ranks.
        threads: processor threads that each rank computes with.

    Attributes:
        idle_us: what the slowest rank's device took to answer just before the last block, in microseconds; None on
            the CPU.
    """

    def __init__(self, zygote: Zygote, device: Device, world_size: int, threads: int) -> None:
        self.device: Device = device
        self.world_size = world_size
        self.idle_us: float | None = None
        self._failed = False
        self._device_heaps: tuple[DeviceHeap, DeviceHeap] | None = None
        # Where ranks meet, now and whenever they make a group: a file without a name, gone with the last of them.
        store = os.memfd_create("pkb-rendezvous", os.MFD_CLOEXEC)
        try:
            self._gang = Gang(zygote, "pkb_gym.engine.ranks.reference", world_size, None)
            self._ask({"device": device, "threads": threads}, "ready", fds=(store,))
        finally:
            os.close(store)

    @contextlib.contextmanager
    def heaps(self, segment_bytes: int) -> Iterator[tuple[SymmetricHeap, SymmetricHeap]]:
        """The reference heap and the candidate's, of at least that many bytes a rank.

        On the CPU they are made for one evaluation; device memory is kept from one to the next, and zeroed.
        """
        if self.device == "cpu":
            with (
                SharedHeap(segment_bytes, self.world_size) as mine,
                SharedHeap(segment_bytes, self.world_size) as theirs,
            ):
                self._map(mine, theirs)
                yield mine, theirs
            return
        if self._device_heaps is None or self._device_heaps[0].segment_bytes < segment_bytes:
            self._allocate(segment_bytes)
        else:
            self._device_heaps[1].reset()
            self._ask({"zero": True}, "zeroed")
        assert self._device_heaps is not None
        yield self._device_heaps

    def _allocate(self, segment_bytes: int) -> None:
        """Has each rank allocate a segment of each heap on its device, and map everybody's."""
        segment_bytes = align(segment_bytes, SEGMENT_ALIGNMENT_BYTES)
        self._close_device_heaps()
        try:
            fds = self._gang.ask_for_fds({"allocate": segment_bytes}, "allocated", timeout_s=TIMEOUT_S)
        except GangFailed as failed:
            raise self._fault(str(failed)) from None
        mine, theirs = (DeviceHeap(segment_bytes, [pair[which] for pair in fds]) for which in (0, 1))
        self._device_heaps = mine, theirs
        self._map(mine, theirs)

    def _map(self, mine: SymmetricHeap, theirs: SymmetricHeap) -> None:
        self._ask({"map": mine.segment_bytes}, "mapped", fds=(*mine.fds, *theirs.fds))

    def take(self, workload: Workload, declaration: Path, source: str, scratch_bytes: int) -> None:
        """Hands over what is to be evaluated."""
        order: dict[str, Json] = {
            "workload": workload_to_json(workload, declaration),
            "source": source,
            "scratch_bytes": scratch_bytes,
        }
        self._ask(order, "ready")

    def make(self, trials: Sequence[int], *, timed: bool) -> None:
        """Draws the inputs of a block."""
        self._ask({"make": list(trials), "timed": timed}, "made")

    def stage(self) -> Processors | None:
        """Puts the inputs into the candidate's heap and poisons its outputs.

        Returns:
            The processors of each rank that run at full speed just now; None on the CPU, where ranks need all of them.
        """
        replies = self._ask({"stage": True}, "staged")
        self._note_idle(replies)
        return None if self.device == "cpu" else [reply["processors"] for reply in replies]

    def run(self, calls: int, *, native: bool) -> int:
        """Runs the baseline on the block's inputs; returns nanoseconds by the evaluator's clock."""
        return self._block({"run": calls, "native": native})

    def touch(self) -> int:
        """A block with as little in it as there is; returns nanoseconds by the evaluator's clock."""
        return self._block({"touch": True})

    def capture(self, calls: int) -> bool:
        """Captures the baseline in CUDA graphs, on the inputs of the block's first calls.

        Returns:
            Whether that can be done. Where breaking it off cost a rank its context, the gang is of no further use.
        """
        replies = self._ask({"capture": calls}, "captured")
        if not all(reply["sound"] for reply in replies):
            self._failed = True
            self.close()
        return all(reply["captured"] for reply in replies)

    def replay(self, calls: int) -> int:
        """Launches what was captured, graph after graph; returns nanoseconds by the evaluator's clock."""
        return self._block({"replay": calls})

    @property
    def is_sound(self) -> bool:
        """Whether it can be used."""
        return not self._failed

    def _block(self, order: dict[str, Json]) -> int:
        try:
            nanoseconds, _ = self._gang.run_block([order] * self.world_size, timeout_s=TIMEOUT_S)
            self._note_idle(self._gang.collect("finished", timeout_s=TIMEOUT_S).messages)
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
        return [RankCheck.model_validate(reply["report"]) for reply in self._send(orders, "report")]

    def release(self) -> None:
        """Lets go of heaps and results; a gang that has failed holds none any more."""
        if self._failed:
            return
        self._ask({"release": True}, "released")

    def close(self) -> None:
        """Ends it."""
        self._gang.close()
        self._close_device_heaps()

    def _close_device_heaps(self) -> None:
        for heap in self._device_heaps or ():
            heap.close()
        self._device_heaps = None

    def _note_idle(self, replies: Sequence[Mapping[str, Any]]) -> None:
        said = [reply["idle_us"] for reply in replies]
        self.idle_us = None if None in said else max(said)

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
