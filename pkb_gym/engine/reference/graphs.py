"""The baseline as CUDA graphs, one call each: what it takes when the host has launched its kernels ahead.

Work whose host waits for the device (a `.item()`, sizes that are only known there) cannot be captured.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch.cuda import _POOL_HANDLE

WAITED = "called a synchronizing CUDA operation"
"""Text in the warnings of torch's `set_sync_debug_mode`."""


def host_wait(call: Callable[[], object]) -> str | None:
    """The place where a call makes the host wait for the device, which no capture survives; None if nowhere."""
    import torch

    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for warning in caught:
        if WAITED in str(warning.message):
            return f"the host waits for the device ({Path(warning.filename).name}:{warning.lineno})"
    return None


def capture(
    call: Callable[[int], object],
    calls: int,
    stream: torch.cuda.Stream | None = None,
    pool: _POOL_HANDLE | None = None,
) -> tuple[list[torch.cuda.CUDAGraph], str | None]:
    """Captures one graph a call, after the first has been run once, as libraries make workspaces for each stream.

    Args:
        call: Makes the call of that index, on arguments of its own, which its graph reads and writes in place.
        calls: Number of calls, at least 1, the same on all ranks.
        stream: Stream that is captured; by default a new one.
        pool: Pool that captured calls allocate from, whose free memory belongs to the stream; by default a new one.

    Returns:
        The graphs, and None; or none, and why.
    """
    import torch

    graphs: list[torch.cuda.CUDAGraph] = []
    failures: list[str] = []
    pool = pool or torch.cuda.graph_pool_handle()
    stream = stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]  # unannotated
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        call(0)
        torch.cuda.synchronize()
        for index in range(calls):
            graph = torch.cuda.CUDAGraph()
            # "thread_local": NCCL's watchdog thread must not break the capture.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                call(index)
            except Exception as error:  # noqa: BLE001  # whatever cannot be captured
                failures.append(f"{type(error).__name__}: {error}")
            try:
                graph.capture_end()
            except RuntimeError as error:
                failures.append(str(error))
            if failures:
                return [], failures[0].strip().splitlines()[0][:300]
            graphs.append(graph)
    return graphs, None


def context_is_sound() -> bool:
    """Whether the device can still be used: not after some captures that were broken off."""
    import torch

    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except RuntimeError:
        return False
    return True
