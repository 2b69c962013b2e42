"""Stage profile: what each rank says of where its time went, as a record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pkb_gym.engine.hardware.gpus import LinkBytes
from pkb_gym.engine.records.compiler_report import InstructionCounts
from pkb_gym.engine.records.feedback import HotSpot, Profile, RankProfile
from pkb_gym.engine.records.mechanisms import Mechanism, transfer_mechanisms
from pkb_gym.engine.stages.gpu_profile import kernel_times, number, trace_events

MAX_CALLS = 16
"""Calls that are profiled."""


def make_profile(
    calls: int,
    ranks: Sequence[Mapping[str, Any]],
    *,
    on_gpus: bool = False,
    links: Sequence[LinkBytes | None] = (),
    code: InstructionCounts | None = None,
    trace: bool = False,
) -> Profile | None:
    """All ranks' profiles, or None where a candidate made its rank say nonsense or a GPU could not be watched.

    Args:
        calls: that were measured.
        ranks: what each says.
        on_gpus: whether they ran on GPUs, where one more call came before those that were measured.
        links: what crossed each rank's links meanwhile, that call included; empty on the CPU.
        code: instructions of a native source's kernels.
        trace: whether to keep the timeline.
    """
    try:
        events = trace_events(ranks) if trace else ()
        if not on_gpus:
            profiles = tuple(rank_profile(rank, calls, said) for rank, said in enumerate(ranks))
            return Profile(ranks=profiles, hot_spots=_hot_spots(ranks[0]), trace=events)
        if any(said["gpu"] is None for said in ranks):
            return None
        moved = [None if link is None else link.per_call(calls + 1) for link in links]
        return Profile(
            ranks=tuple(_gpu_rank(rank, calls, said, moved[rank]) for rank, said in enumerate(ranks)),
            kernels=kernel_times(ranks[0]["gpu"]["kernels"]),
            mechanisms=_mechanisms(calls, ranks, moved, code),
            trace=events,
        )
    except (KeyError, TypeError, ValueError, OverflowError, IndexError, AttributeError):
        return None


def rank_profile(rank: int, calls: int, said: Mapping[str, Any]) -> RankProfile:
    """One rank's profile on the CPU, per call.

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
        **_process(calls, said),
    )


def _gpu_rank(rank: int, calls: int, said: Mapping[str, Any], link: LinkBytes | None) -> RankProfile:
    gpu = said["gpu"]
    busy = number(gpu["busy_us"]) / calls
    wall = max(number(said["wall_ns"]) / 1e3 / calls, busy)
    native = "waits" in said  # the only dialect whose waits are counted
    waits = number(said["waits"]) if native else 0.0
    return RankProfile(
        rank=rank,
        calls=calls,
        wall_us=wall,
        compute_us=number(gpu["compute_us"]) / calls,
        communication_us=number(gpu["communication_us"]) / calls,
        waiting_us=number(gpu["waiting_us"]) / calls,
        host_us=wall - busy,
        busy_us=busy,
        overlap_us=number(gpu["overlap_us"]) / calls,
        waits=waits / calls if native else None,
        mean_wait_us=number(said["wait_ns"]) / 1e3 / waits if waits else None,
        put_bytes=int(number(said["put_bytes"]) / calls) if native else 0,
        got_bytes=int(number(said["got_bytes"]) / calls) if native else 0,
        copied_bytes=int(number(gpu["peer_copied_bytes"]) / calls),
        link_bytes_per_s=None,
        sent_bytes=None if link is None else link.sent_bytes,
        received_bytes=None if link is None else link.received_bytes,
        **_process(calls, said),
    )


def _process(calls: int, said: Mapping[str, Any]) -> dict[str, Any]:
    """What the rank's process used."""
    counts = ("minor_page_faults", "major_page_faults", "voluntary_switches", "involuntary_switches")
    return {
        "user_us": int(said["user_ns"]) * 1e-3 / calls,
        "system_us": int(said["system_ns"]) * 1e-3 / calls,
        **{name: int(said[name]) for name in counts},
    }


def _hot_spots(said: Mapping[str, Any]) -> tuple[HotSpot, ...]:
    return tuple(
        HotSpot(name=str(spot["name"])[:80], calls=int(spot["calls"]), self_us=float(spot["self_us"]))
        for spot in said["kernels"][:8]
    )


def _mechanisms(
    calls: int, ranks: Sequence[Mapping[str, Any]], links: Sequence[LinkBytes | None], code: InstructionCounts | None
) -> tuple[Mechanism, ...]:
    if len(ranks) == 1:
        return ()
    counted = [link.sent_bytes for link in links if link is not None]
    return transfer_mechanisms(
        code,
        peer_copied_bytes=sum(number(said["gpu"]["peer_copied_bytes"]) for said in ranks),
        own_copied_bytes=sum(number(said["gpu"]["own_copied_bytes"]) for said in ranks),
        nccl=any(number(said["gpu"]["nccl_kernels"]) > 0 for said in ranks),
        moved_bytes=calls * sum(counted) if len(counted) == len(ranks) else None,
    )
