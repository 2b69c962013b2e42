"""Disturbs a GPU with short kernels of another process, so that a candidate's kernels on it stand still now and then.

A GPU gives each process slices of milliseconds while both have kernels to run: a candidate's kernel can be stopped at
any instruction, for about 0.3 ms. Kernels that keep the call contract are slower then, others can be wrong.
"""

from __future__ import annotations

import threading
import time

PULSE_CYCLES = 40_000
"""About 20 microseconds."""

PAUSE_S = 200e-6


class GpuPulses:
    """Short kernels, one after the other, from a thread of this process.

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
                    torch.cuda._sleep(PULSE_CYCLES)  # type: ignore[no-untyped-call]  # unannotated
                    stream.synchronize()
