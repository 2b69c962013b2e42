"""The symmetric heap as the evaluator sees it: sealed anonymous memory that it hands to two gangs."""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import Self

from pkb_gym.engine.rankside import abi

_F_ADD_SEALS, _F_SEAL_SEAL, _F_SEAL_SHRINK, _F_SEAL_GROW = 1033, 1, 2, 4


class SharedHeap:
    """Memory for all ranks' segments; pages exist once touched, and are gone with the last process that maps them.

    Attributes:
        fd: descriptor to hand to the ranks.
        segment_bytes: of each rank.
    """

    def __init__(self, segment_bytes: int, world_size: int) -> None:
        self.segment_bytes = segment_bytes
        self.world_size = world_size
        self.fd = os.memfd_create("pkb-heap", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, segment_bytes * world_size)
        # A candidate that could shrink it would have every reader of the rest killed by SIGBUS.
        fcntl.fcntl(self.fd, _F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_GROW | _F_SEAL_SEAL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def place(self, rank: int) -> str:
        """Where a rank says it stands, in words."""
        with mmap.mmap(self.fd, self.segment_bytes * self.world_size, prot=mmap.PROT_READ) as view:
            begin = rank * self.segment_bytes + abi.PLACE_OFFSET
            place = abi.Place.from_buffer_copy(view[begin : begin + 64])
            words = rank * self.segment_bytes + abi.SIGNAL_OFFSET
            slot = place.slot if 0 <= place.slot < abi.USER_SIGNALS + abi.BARRIER_SIGNALS else 0
            has = int.from_bytes(view[words + 8 * slot : words + 8 * slot + 8], "little")
        if place.state == abi.State.WAITING:
            if slot >= abi.USER_SIGNALS:
                peer = (slot - abi.USER_SIGNALS) % abi.MAX_RANKS
                return f"waits in barrier {place.want} of call {place.call} for place {peer} of the group"
            return f"waits in call {place.call} for signal {slot} to be at least {place.want}; it is {has}"
        names = {abi.State.LOADING: "loading", abi.State.AT_GATE: "before its first call", abi.State.DONE: "done"}
        return names.get(abi.State(place.state) if place.state <= 5 else abi.State.IDLE, f"in call {place.call}")
