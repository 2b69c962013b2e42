"""A profile's timeline in the Trace Event Format, which chrome://tracing and https://ui.perfetto.dev open."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pkb_gym.engine.records.feedback import TraceEvent

CALLS_THREAD = 0
"""Streams come after it: their numbers, plus one."""


def chrome_trace(events: Sequence[TraceEvent], title: str) -> str:
    """The timeline as JSON: one process for each rank, in it one thread for calls and one for each stream.

    Args:
        events: Events of all ranks, with times in microseconds, as in the format.
        title: Name of the run.
    """
    threads = sorted({(event.rank, _thread(event)) for event in events})
    named: list[dict[str, object]] = []
    for rank in sorted({rank for rank, _ in threads}):
        named.append(_name("process", rank, CALLS_THREAD, f"rank {rank}"))
        named.append({"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}})
    named += [_name("thread", rank, thread, _thread_name(thread)) for rank, thread in threads]
    slices = [_slice(event) for event in events]
    whole = {"traceEvents": [*named, *slices], "displayTimeUnit": "ns", "otherData": {"title": title}}
    return json.dumps(whole, separators=(",", ":"), allow_nan=False)


def _thread(event: TraceEvent) -> int:
    return CALLS_THREAD if event.stream is None else event.stream + 1


def _thread_name(thread: int) -> str:
    return "calls of solution" if thread == CALLS_THREAD else f"stream {thread - 1}"


def _name(what: str, rank: int, thread: int, name: str) -> dict[str, object]:
    return {"ph": "M", "name": f"{what}_name", "pid": rank, "tid": thread, "args": {"name": name}}


def _slice(event: TraceEvent) -> dict[str, object]:
    return {
        "ph": "X",
        "cat": event.kind,
        "name": event.name,
        "pid": event.rank,
        "tid": _thread(event),
        "ts": round(event.start_us, 3),
        "dur": round(event.duration_us, 3),
        "args": {} if event.nbytes is None else {"bytes": event.nbytes},
    }
