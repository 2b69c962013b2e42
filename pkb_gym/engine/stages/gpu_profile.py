"""What the ranks say of their GPUs, as records; whatever a candidate made them say is checked first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pkb_gym.engine.records.feedback import KernelTime, TraceEvent

MAX_KERNELS = 12
MAX_NAME_CHARS = 200
MAX_TRACE_EVENTS = 2000
"""Of each rank."""

LARGEST = 1e15
"""Of any number that a rank says: more than bytes, microseconds and counts come to."""

LONGEST_TRACE_US = 1e9
NS_PER_US = 1e3
KINDS: tuple[Literal["kernel", "copy", "fill"], ...] = ("kernel", "copy", "fill")


def number(value: object) -> float:
    """A number that a rank said.

    Raises:
        ValueError: it is none, or no time, size or count.
    """
    if not isinstance(value, int | float) or not 0 <= value <= LARGEST:  # NaN fails both comparisons
        raise ValueError(f"no number: {value!r}"[:100])
    return float(value)


def shown_name(value: object) -> str:
    """A name that a rank said, in printable ASCII.

    Raises:
        ValueError: it is no text.
    """
    if not isinstance(value, str):
        raise ValueError("no name")
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in value[:MAX_NAME_CHARS])


def kernel_times(rows: Sequence[Mapping[str, Any]]) -> tuple[KernelTime, ...]:
    """The table of one rank.

    Args:
        rows: {"name", "launches", "total_us"}, longest first.

    Raises:
        KeyError, TypeError, ValueError: they are something else.
    """
    totals = [number(row["total_us"]) for row in rows]
    whole = sum(totals) or 1.0
    return tuple(
        KernelTime(
            name=shown_name(row["name"]),
            launches=round(number(row["launches"])),
            mean_us=total / max(1.0, number(row["launches"])),
            share=total / whole,
        )
        for row, total in zip(rows[:MAX_KERNELS], totals, strict=False)
    )


def trace_events(ranks: Sequence[Mapping[str, Any]]) -> tuple[TraceEvent, ...]:
    """The timeline of all ranks.

    Args:
        ranks: {"slices": calls by the host's clock, "gpu": None, or {"names", "events"}} of each.

    Raises:
        KeyError, TypeError, ValueError, IndexError: they are something else.
    """
    rows = [row for rank, said in enumerate(ranks) for row in (*_calls(rank, said), *_device_events(rank, said))]
    first_us = min((row["start_us"] for row in rows), default=0.0)
    for row in rows:
        row["start_us"] -= first_us
        if row["start_us"] + row["duration_us"] > LONGEST_TRACE_US:
            raise ValueError("a timeline of no end")
    return tuple(TraceEvent(**row) for row in rows)


def _calls(rank: int, said: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for index, (begin_ns, end_ns) in enumerate(said["slices"][:MAX_TRACE_EVENTS]):
        begin_us, end_us = _moment_us(begin_ns, NS_PER_US), _moment_us(end_ns, NS_PER_US)
        row = {"rank": rank, "kind": "call", "name": f"call {index}", "stream": None}
        rows.append(row | {"start_us": begin_us, "duration_us": max(0.0, end_us - begin_us)})
    return rows


def _device_events(rank: int, said: Mapping[str, Any]) -> list[dict[str, Any]]:
    gpu = said.get("gpu")
    if gpu is None:
        return []
    names = [shown_name(name) for name in gpu["names"][:MAX_TRACE_EVENTS]]
    rows = []
    for kind, name, start_us, duration_us, stream, nbytes in gpu["events"][:MAX_TRACE_EVENTS]:
        row = {
            "rank": rank,
            "kind": KINDS[KINDS.index(kind)],
            "name": names[round(number(name))],
            "stream": round(number(stream)),
            "start_us": _moment_us(start_us),
            "duration_us": number(duration_us),
            "nbytes": None if kind == "kernel" else round(number(nbytes)),
        }
        rows.append(row)
    return rows


def _moment_us(value: object, per_us: float = 1.0) -> float:
    """A moment, which may lie before the clock's zero."""
    if not isinstance(value, int | float) or not abs(value) <= LARGEST * per_us:
        raise ValueError("no moment")
    return value / per_us
