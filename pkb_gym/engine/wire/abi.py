"""Mirror of `include/pkb/comm.h`, and the layout of a rank's segment of the symmetric heap.

A segment holds: control page | signal pad | scratch | argument and output sets.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum

MAGIC, VERSION = 0x504B4243, 3
MAX_RANKS, MAX_GROUPS = 16, 4
USER_SIGNALS = 1024
BARRIER_SIGNALS = (MAX_GROUPS + 1) * MAX_RANKS

CONTROL_BYTES = 4096
PLACE_OFFSET, HOLD_OFFSET, STATS_OFFSET, BARRIER_COUNTS_OFFSET, PROGRESS_OFFSET = 0, 32, 64, 128, 256
MAILBOX_BYTES = 12288
"""The size of `wire/mailbox.h`."""
MEETING_OFFSET = 512
"""A word for each rank, of null blocks; as `kMeetingOffset` of wire/mailbox.h."""
HOST_CONTROL_BYTES = CONTROL_BYTES + MAILBOX_BYTES
"""The part of each rank in the control file of a heap in device memory: its control page, then its mailbox."""
SIGNAL_OFFSET = CONTROL_BYTES
MAX_BLOCKS = 1024
SIGNAL_BYTES = 36 * 4096
SCRATCH_OFFSET = SIGNAL_OFFSET + SIGNAL_BYTES

assert (USER_SIGNALS + BARRIER_SIGNALS + (MAX_BLOCKS + 1) * MAX_RANKS) * 8 <= SIGNAL_BYTES


class State(IntEnum):
    """pkb::State."""

    IDLE, LOADING, AT_GATE, IN_CALL, WAITING, DONE = range(6)


class Place(ctypes.Structure):
    """pkb::Place."""

    _fields_ = [
        ("state", ctypes.c_uint32),
        ("slot", ctypes.c_int32),
        ("want", ctypes.c_uint64),
        ("call", ctypes.c_uint64),
    ]


class Hold(ctypes.Structure):
    """pkb::Hold."""

    _fields_ = [("number", ctypes.c_uint64), ("released", ctypes.c_uint64)]

    @property
    def is_on(self) -> bool:
        """Whether the rank stands still."""
        return bool(self.number % 2)


class Progress(ctypes.Structure):
    """Progress of a rank of the reference gang in conducting a block; in the reference heap alone."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("reached", "arrived", "waits_for_all", "stood_still", "gives_way")]


STATS_FIELDS = ("wait_ns", "copy_ns", "put_bytes", "got_bytes", "signals", "waits")


class Stats(ctypes.Structure):
    """pkb::Stats."""

    _fields_ = [(name, ctypes.c_uint64) for name in STATS_FIELDS]


class GroupData(ctypes.Structure):
    """pkb::Group."""

    _fields_ = [("size", ctypes.c_int32), ("rank", ctypes.c_int32), ("ranks", ctypes.c_int32 * MAX_RANKS)]


class CommData(ctypes.Structure):
    """pkb::CommData."""

    _fields_ = [
        ("magic", ctypes.c_uint32),
        ("version", ctypes.c_uint32),
        ("rank", ctypes.c_int32),
        ("world_size", ctypes.c_int32),
        ("num_groups", ctypes.c_int32),
        ("oversubscribed", ctypes.c_int32),
        ("epoch", ctypes.c_uint64),
        ("stream", ctypes.c_void_p),
        ("segment_bytes", ctypes.c_uint64),
        ("scratch_offset", ctypes.c_uint64),
        ("scratch_bytes", ctypes.c_uint64),
        ("signal_offset", ctypes.c_uint64),
        ("barrier_counts", ctypes.c_void_p),
        ("stats", ctypes.c_void_p),
        ("place", ctypes.c_void_p),
        ("hold_ns", ctypes.c_uint64),
        ("segments", ctypes.c_void_p * MAX_RANKS),
        ("groups", GroupData * MAX_GROUPS),
    ]
