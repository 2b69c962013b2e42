"""Failure attribution: which rank failed first, and how, from the reports and the ends of a gang's processes."""

from __future__ import annotations

import signal
from collections.abc import Collection, Mapping

from pkb_gym.engine.records.feedback import Failure
from pkb_gym.engine.wire.orders import Failed

_PEER_GONE = ("Connection closed by peer", "Connection reset by peer", "Read error", "connection was closed")

_HINTS = {
    "SIGSEGV": (
        "an address outside its memory, or not aligned for a vector instruction, was touched, or the stack overflowed"
    ),
    "SIGBUS": "an address beyond the end of a mapping was touched, or /tmp is full",
    "SIGFPE": "an integer was divided by zero, or a floating-point exception was unmasked",
    "SIGILL": "an instruction that this processor lacks, or a failed check of a debug build",
    "SIGABRT": "abort() was called, or an exception left a noexcept function",
    "SIGXFSZ": "a file grew beyond the limit",
    "SIGKILL": "the machine has no record of a reason, so that it counts as the doing of the rank",
}

EVERYONE_WAITS = "every unfinished rank waits for another"

_MAY_BE_NAMED = (
    Failure.LOAD_ERROR,
    Failure.RUNTIME_ERROR,
    Failure.OUT_OF_MEMORY,
    Failure.WRONG_SHAPE_OR_DTYPE,
)
"""Failures that are taken from a rank's own report; a rank that has loaded a candidate can report anything."""


class GangFailed(Exception):
    """Raised when a rank failed or a deadline passed; the gang is of no further use.

    Attributes:
        failure: Kind of failure that is reported.
        rank: Number of the rank that failed first; None where it is unknown.
        killed: Whether a process of the gang was killed, and the machine's records show that it need not be the doing
            of the candidate: the leader, which no rank can reach, or a rank while memory was short.
        by_sigkill: Whether a rank ended by SIGKILL, for whatever reason.
    """

    def __init__(
        self, failure: Failure, rank: int | None, message: str, *, killed: bool = False, by_sigkill: bool = False
    ) -> None:
        super().__init__(message)
        self.failure = failure
        self.rank = rank
        self.killed = killed
        self.by_sigkill = by_sigkill


def cause_is_known(ended: Mapping[int, int], errors: Mapping[int, Failed]) -> bool:
    """Whether anything but complaints about another rank has arrived; arguments as `first_failure`."""
    own_fault = any(not _is_aftermath(error) for error in errors.values())
    return own_fault or any(rank not in errors for rank in ended)


def first_failure(
    ended: Mapping[int, int], errors: Mapping[int, Failed], otherwise: str, *, memory_was_short: bool = False
) -> GangFailed:
    """Attributes a failure to the rank that fell first.

    Args:
        ended: Rank -> exit status, or minus the signal that ended it; of ranks that have ended, in that order.
        errors: Rank -> the error that it reported, in the order of arrival.
        otherwise: The detail of the failure where neither shows the cause.
        memory_was_short: Whether the kernel has ended a process for memory since the gang began.
    """
    crashed = [rank for rank, status in ended.items() if status != 0 and rank not in errors]
    if crashed:
        return _crash(crashed[0], ended[crashed[0]], memory_was_short)
    silent = [rank for rank in ended if rank not in errors]
    own_fault = [rank for rank, error in errors.items() if not _is_aftermath(error)]
    if silent and not own_fault:
        what = f"rank {silent[0]} ended its process (exit status 0) before its work was done"
        return GangFailed(Failure.RUNTIME_ERROR, silent[0], what)
    for rank in own_fault or list(errors):
        failure = next((named for named in _MAY_BE_NAMED if named == errors[rank].kind), Failure.RUNTIME_ERROR)
        return GangFailed(failure, rank, f"rank {rank}: {errors[rank].text}"[:10_000])
    return GangFailed(Failure.RUNTIME_ERROR, None, f"the gang fell silent: {otherwise}", killed=True)


def missed_deadline(places: Mapping[int, str], busy: Collection[int], timeout_s: float) -> GangFailed:
    """Distinguishes a deadlock, where every unfinished rank waits, from a timeout, where one computes on.

    Args:
        places: Unfinished rank -> where it stands, in words; empty where that is unknown.
        busy: Ranks that were seen computing.
        timeout_s: The deadline that has passed.
    """
    waiting = {rank for rank in places if rank not in busy or "waits" in places[rank]}
    failure = Failure.DEADLOCK if waiting == set(places) else Failure.TIMEOUT
    lines = [f"rank {rank}: {place or ('busy' if rank in busy else 'idle')}" for rank, place in places.items()]
    first = min(set(places) - waiting, default=min(places))
    what = EVERYONE_WAITS if failure is Failure.DEADLOCK else "still computing"
    return GangFailed(failure, first, f"no end after {timeout_s:.3g} s, {what}. " + "; ".join(lines))


def deadlocked(places: Mapping[int, str]) -> GangFailed:
    """The deadlock of ranks that were seen to wait for good.

    Args:
        places: Unfinished rank -> where it waits, in words.
    """
    lines = [f"rank {rank}: {place}" for rank, place in places.items()]
    what = f"{EVERYONE_WAITS}, and no thread runs that could signal. {'; '.join(lines)}"
    return GangFailed(Failure.DEADLOCK, min(places), what)


def _crash(rank: int, status: int, memory_was_short: bool) -> GangFailed:
    if status > 0:
        return GangFailed(Failure.RUNTIME_ERROR, rank, f"rank {rank} ended its process with exit status {status}")
    name = signal.Signals(-status).name
    if -status == signal.SIGKILL and memory_was_short:
        cause = f"rank {rank} was killed by the kernel ({name}), which was short of memory"
        return GangFailed(Failure.OUT_OF_MEMORY, rank, cause, killed=True, by_sigkill=True)
    hint = f": {_HINTS[name]}" if name in _HINTS else ""
    what = f"rank {rank} was killed by {name}{hint}"
    return GangFailed(Failure.RUNTIME_ERROR, rank, what, by_sigkill=-status == signal.SIGKILL)


def _is_aftermath(error: Failed) -> bool:
    """Whether an error only reports that another rank is gone."""
    return any(words in error.text for words in _PEER_GONE)
