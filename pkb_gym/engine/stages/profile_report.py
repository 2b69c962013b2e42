"""The profile as a record, from the ranks' untrusted reports and the links' counters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from pkb_gym.engine.hardware.gpus import NvlinkBytes
from pkb_gym.engine.records.compiler_report import InstructionCounts
from pkb_gym.engine.records.feedback import HotSpot, Profile, RankProfile
from pkb_gym.engine.records.mechanisms import Mechanism, transfer_mechanisms
from pkb_gym.engine.stages.gpu_profile import check_numbers, kernel_times, shown_name, trace_events
from pkb_gym.engine.wire.orders import DeviceReport, OperatorTime, ProcessUsage, ProfileDone, Transfers

NO_TRANSFERS = Transfers()
MAX_HOT_SPOTS = 8


class _Process(TypedDict):
    """The resources that the process of a rank used."""

    user_us: float
    system_us: float
    minor_page_faults: int
    major_page_faults: int
    voluntary_switches: int
    involuntary_switches: int


def make_profile(
    calls: int,
    reports: Sequence[ProfileDone],
    *,
    on_gpus: bool = False,
    links: Sequence[NvlinkBytes | None] = (),
    code: InstructionCounts | None = None,
    trace: bool = False,
) -> Profile | None:
    """All ranks' profiles, or None where a candidate made its rank report nonsense or a GPU could not be watched.

    Args:
        calls: Number of calls that were measured.
        reports: Profile of each rank.
        on_gpus: Whether the ranks ran on GPUs, where one more call precedes the measured ones.
        links: Traffic of each rank's links during the measurement, the additional call included; empty on the CPU.
        code: Instruction counts of a native source's kernels.
        trace: Whether the timeline is kept.
    """
    try:
        for report in reports:
            check_numbers(report)
        events = trace_events(reports) if trace else ()
    except (ValueError, IndexError):
        return None
    if not on_gpus:
        profiles = tuple(rank_profile(rank, calls, report) for rank, report in enumerate(reports))
        return Profile(ranks=profiles, hot_spots=_hot_spots(reports[0].operators), trace=events)
    devices = [report.device for report in reports if report.device is not None]
    if len(devices) < len(reports):
        return None
    moved = [None if link is None else link.per_call(calls + 1) for link in links]
    return Profile(
        ranks=tuple(
            _gpu_rank(rank, calls, report, device, moved[rank])
            for rank, (report, device) in enumerate(zip(reports, devices, strict=True))
        ),
        kernels=kernel_times(devices[0].kernels),
        mechanisms=_mechanisms(calls, devices, moved, code),
        trace=events,
    )


def rank_profile(rank: int, calls: int, report: ProfileDone) -> RankProfile:
    """One rank's profile on the CPU, per call."""
    transfers = report.transfers or NO_TRANSFERS
    moved_bytes = transfers.put_bytes + transfers.got_bytes
    per_call = 1e-3 / calls
    return RankProfile(
        rank=rank,
        calls=calls,
        wall_us=report.wall_ns * per_call,
        compute_us=max(0, report.inside_ns - transfers.wait_ns - transfers.copy_ns) * per_call,
        communication_us=transfers.copy_ns * per_call,
        waiting_us=transfers.wait_ns * per_call,
        host_us=max(0, report.wall_ns - report.inside_ns) * per_call,
        put_bytes=transfers.put_bytes // calls,
        got_bytes=transfers.got_bytes // calls,
        link_bytes_per_s=moved_bytes / (transfers.copy_ns * 1e-9) if moved_bytes and transfers.copy_ns else None,
        **_process(calls, report.usage),
    )


def _gpu_rank(
    rank: int, calls: int, report: ProfileDone, device: DeviceReport, link: NvlinkBytes | None
) -> RankProfile:
    busy_us = device.busy_us / calls
    wall_us = max(report.wall_ns / 1e3 / calls, busy_us)
    counted = report.transfers or NO_TRANSFERS  # of the native dialect alone
    return RankProfile(
        rank=rank,
        calls=calls,
        wall_us=wall_us,
        compute_us=device.compute_us / calls,
        communication_us=device.communication_us / calls,
        waiting_us=device.waiting_us / calls,
        host_us=wall_us - busy_us,
        busy_us=busy_us,
        overlap_us=device.overlap_us / calls,
        waits=None if report.transfers is None else counted.waits / calls,
        mean_wait_us=counted.wait_ns / 1e3 / counted.waits if counted.waits else None,
        put_bytes=counted.put_bytes // calls,
        got_bytes=counted.got_bytes // calls,
        copied_bytes=device.peer_copied_bytes // calls,
        link_bytes_per_s=None,
        sent_bytes=None if link is None else link.sent_bytes,
        received_bytes=None if link is None else link.received_bytes,
        **_process(calls, report.usage),
    )


def _process(calls: int, usage: ProcessUsage) -> _Process:
    return _Process(
        user_us=usage.user_ns * 1e-3 / calls,
        system_us=usage.system_ns * 1e-3 / calls,
        minor_page_faults=usage.minor_page_faults,
        major_page_faults=usage.major_page_faults,
        voluntary_switches=usage.voluntary_switches,
        involuntary_switches=usage.involuntary_switches,
    )


def _hot_spots(operators: Sequence[OperatorTime]) -> tuple[HotSpot, ...]:
    return tuple(
        HotSpot(name=shown_name(operator.name), calls=operator.calls, self_us=operator.self_us)
        for operator in operators[:MAX_HOT_SPOTS]
    )


def _mechanisms(
    calls: int, devices: Sequence[DeviceReport], links: Sequence[NvlinkBytes | None], code: InstructionCounts | None
) -> tuple[Mechanism, ...]:
    if len(devices) == 1:
        return ()
    counted = [link.sent_bytes for link in links if link is not None]
    return transfer_mechanisms(
        code,
        peer_copied_bytes=sum(device.peer_copied_bytes for device in devices),
        own_copied_bytes=sum(device.own_copied_bytes for device in devices),
        nccl=any(device.nccl_kernels > 0 for device in devices),
        moved_bytes=calls * sum(counted) if len(counted) == len(devices) else None,
    )
