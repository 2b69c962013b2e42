"""The ranks' reports on their GPUs as records; whatever a candidate made them report is checked first."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from pkb_gym.engine.records.feedback import KernelTime, TraceEvent
from pkb_gym.engine.support.chat_markers import break_markers
from pkb_gym.engine.wire.messages import MAX_NUMBER
from pkb_gym.engine.wire.orders import KernelTotal, ProfileDone

MAX_KERNELS = 12
MAX_NAME_CHARS = 200
MAX_TRACE_EVENTS = 2000
"""The most events of each rank."""

MAX_TRACE_US = 1e9
NS_PER_US = 1e3
MOMENTS = ("calls_ns", "start_us")
"""Fields of reports that hold moments, which may lie before the clock's zero."""


def check_numbers(report: object) -> None:
    """Refuses times, sizes and counts of a report that are negative, or larger than any can be.

    Raises:
        ValueError: there is one.
    """
    if isinstance(report, tuple):
        for entry in report:
            check_numbers(entry)
    elif dataclasses.is_dataclass(report):
        for field in dataclasses.fields(report):
            if field.name not in MOMENTS:
                check_numbers(getattr(report, field.name))
    elif isinstance(report, int | float) and not 0 <= report <= MAX_NUMBER:
        raise ValueError(f"no time, size or count: {report}")


def shown_name(name: str) -> str:
    """A name that a rank reported, in printable ASCII and without markers of chat templates."""
    return break_markers("".join(c if c.isascii() and c.isprintable() else "?" for c in name[:MAX_NAME_CHARS]))


def kernel_times(totals: Sequence[KernelTotal]) -> tuple[KernelTime, ...]:
    """The table of one rank.

    Args:
        totals: Total times per kernel, longest first.
    """
    whole = sum(total.total_us for total in totals) or 1.0
    return tuple(
        KernelTime(
            name=shown_name(total.name),
            launches=total.launches,
            mean_us=total.total_us / max(1, total.launches),
            share=total.total_us / whole,
        )
        for total in totals[:MAX_KERNELS]
    )


def trace_events(reports: Sequence[ProfileDone]) -> tuple[TraceEvent, ...]:
    """The timeline of all ranks.

    Raises:
        ValueError, IndexError: it is none.
    """
    events = [
        event for rank, report in enumerate(reports) for event in (*_calls(rank, report), *_device_events(rank, report))
    ]
    first_us = min((event.start_us for event in events), default=0.0)
    if any(event.start_us - first_us + event.duration_us > MAX_TRACE_US for event in events):
        raise ValueError("a timeline of no end")
    return tuple(event.model_copy(update={"start_us": event.start_us - first_us}) for event in events)


def _calls(rank: int, report: ProfileDone) -> list[TraceEvent]:
    return [
        TraceEvent(
            rank=rank,
            kind="call",
            name=f"call {index}",
            stream=None,
            start_us=begin_ns / NS_PER_US,
            duration_us=max(0, end_ns - begin_ns) / NS_PER_US,
        )
        for index, (begin_ns, end_ns) in enumerate(report.calls_ns[:MAX_TRACE_EVENTS])
    ]


def _device_events(rank: int, report: ProfileDone) -> list[TraceEvent]:
    if report.device is None:
        return []
    names = [shown_name(name) for name in report.device.names[:MAX_TRACE_EVENTS]]
    return [
        TraceEvent(
            rank=rank,
            kind=event.kind,
            name=names[event.name],
            stream=event.stream,
            start_us=event.start_us,
            duration_us=event.duration_us,
            nbytes=None if event.kind == "kernel" else event.nbytes,
        )
        for event in report.device.events[:MAX_TRACE_EVENTS]
    ]
