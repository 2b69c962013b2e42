"""Stage profile: what each rank says of where its time went, as a record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pkb_gym.engine.feedback import HotSpot, Profile, RankProfile

MAX_CALLS = 16
"""Calls that are profiled."""


def rank_profile(rank: int, calls: int, said: Mapping[str, Any]) -> RankProfile:
    """One rank's profile, per call.

    Raises:
        KeyError, TypeError, ValueError: the rank said something else than its program would.
    """
    inside, wall = int(said["inside_ns"]), int(said["wall_ns"])
    waiting, copying = int(said["wait_ns"]), int(said["copy_ns"])
    moved = int(said["put_bytes"]) + int(said["got_bytes"])
    per_call = 1e-3 / calls
    return RankProfile(
        rank=rank,
        calls=calls,
        wall_us=wall * per_call,
        compute_us=max(0, inside - waiting - copying) * per_call,
        communication_us=copying * per_call,
        waiting_us=waiting * per_call,
        host_us=max(0, wall - inside) * per_call,
        put_bytes=int(said["put_bytes"]) // calls,
        got_bytes=int(said["got_bytes"]) // calls,
        link_bytes_per_s=moved / (copying * 1e-9) if moved and copying else None,
        user_us=int(said["user_ns"]) * per_call,
        system_us=int(said["system_ns"]) * per_call,
        minor_page_faults=int(said["minor_page_faults"]),
        major_page_faults=int(said["major_page_faults"]),
        voluntary_switches=int(said["voluntary_switches"]),
        involuntary_switches=int(said["involuntary_switches"]),
    )


def make_profile(calls: int, ranks: Sequence[Mapping[str, Any]]) -> Profile | None:
    """All ranks' profiles, or None where a candidate made its rank say nonsense."""
    try:
        hot = [
            HotSpot(name=str(spot["name"])[:80], calls=int(spot["calls"]), self_us=float(spot["self_us"]))
            for spot in ranks[0]["kernels"][:8]
        ]
        return Profile(
            ranks=tuple(rank_profile(rank, calls, said) for rank, said in enumerate(ranks)), hot_spots=tuple(hot)
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
