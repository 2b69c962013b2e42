"""What ranks report of profiled calls."""

from __future__ import annotations

import dataclasses
from typing import Any

from pkb_gym.engine.rankside.cuda_profile import Event, summary
from pkb_gym.engine.wire.orders import DeviceReport, ProcessUsage, ProfileDone, Transfers


def reported(*events: Event, wall_us: float = 100.0, **changes: Any) -> ProfileDone:
    """Of a rank of the native dialect on a GPU, of two calls."""
    report = ProfileDone(
        wall_ns=round(wall_us * 1e3),
        inside_ns=9000,
        calls_ns=((1_000_000, 1_004_000), (1_005_000, 1_010_000)),
        usage=ProcessUsage(3, 3, 3, 3, user_ns=2000, system_ns=0),
        transfers=Transfers(wait_ns=6000, copy_ns=0, put_bytes=64, got_bytes=0, signals=4, waits=4),
        device=summary(events),
    )
    return dataclasses.replace(report, **changes)


def with_device(report: ProfileDone, **changes: Any) -> ProfileDone:
    """The same, with other fields of its GPU's report."""
    device = report.device
    assert isinstance(device, DeviceReport)
    return dataclasses.replace(report, device=dataclasses.replace(device, **changes))
