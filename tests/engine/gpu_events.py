"""What ran on a GPU, as CUPTI names it."""

from __future__ import annotations

from typing import Literal

from pkb_gym.engine.rankside.cuda_profile import Event

BARRIER = "void pkb::enqueued::barrier<16>(pkb::Device, long, int, unsigned long)"


def event(
    name: str, start_us: float, duration_us: float, kind: Literal["kernel", "copy", "fill"] = "kernel", nbytes: int = 0
) -> Event:
    return Event(kind=kind, name=name, start_us=start_us, duration_us=duration_us, stream=7, nbytes=nbytes)


EVENTS = (
    event("mine(float*)", 1010, 20),
    event("Memcpy PtoP (Device -> Device)", 1020, 20, "copy", 1 << 20),
    event(BARRIER, 1035, 15),
    event("mine(float*)", 1060, 10),
)
"""Of two calls."""
