"""Kernels of another process that a candidate's kernels on its GPU stand still for.

A GPU gives each process slices of about two milliseconds while both have kernels to run: a candidate's kernel can be
stopped at any instruction, for as long as the other's runs. Kernels that keep the call contract are slower then, others
can be wrong.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

CYCLES_PER_US = 2000
"""About as many as a GPU has."""

PULSE_US = 2000
"""Length of a pulse in microseconds. Shorter ones end before peers have begun their next call."""

PAUSE_S = 200e-6

MAX_PREEMPTION_S = 10e-3
"""Time in seconds for which a preemption is waited for: some slices."""


class GpuPulses:
    """Kernels of milliseconds, one after the other, from a thread of this process.

    Args:
        device: Name of the GPU in torch.
        duration_us: Time after which the pulses end by themselves, in microseconds.
    """

    def __init__(self, device: str, duration_us: int) -> None:
        self._device, self._duration_s = device, duration_us * 1e-6
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pkb-pulses")

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def stop(self) -> None:
        """Ends them, and waits for the last."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        import torch

        with torch.cuda.device(self._device):
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # unannotated
            end = time.monotonic() + self._duration_s
            with torch.cuda.stream(stream):
                while time.monotonic() < end and not self._stopped.wait(PAUSE_S):
                    _spin(PULSE_US)
                    stream.synchronize()


class Preemption(Protocol):
    """A kernel at a time that a candidate's kernels stand still for."""

    def begin(self, duration_s: float) -> None:
        """Launches it, for so many seconds; it runs once the candidate's slice of time is over."""

    def has_begun(self) -> bool:
        """Whether it runs, or has run."""


class GpuPreemption:
    """A kernel of this process; see `Preemption`.

    Args:
        device: Name of the GPU in torch.
    """

    def __init__(self, device: str) -> None:
        import torch

        self._device = device
        with torch.cuda.device(device):
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # unannotated
        self._begun = torch.cuda.Event()  # type: ignore[no-untyped-call]  # unannotated

    def begin(self, duration_s: float) -> None:
        """Launches the kernel."""
        import torch

        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            _spin(0)
            self._begun.record()
            _spin(int(1e6 * duration_s))

    def has_begun(self) -> bool:
        """Whether the kernel before it has ended, which is over at once."""
        return bool(self._begun.query())  # type: ignore[no-untyped-call]  # unannotated


def _spin(us: int) -> None:
    import torch

    torch.cuda._sleep(us * CYCLES_PER_US)  # type: ignore[no-untyped-call]  # unannotated
