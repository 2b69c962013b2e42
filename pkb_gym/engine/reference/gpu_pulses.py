"""Kernels of another process, for which a candidate's kernels on its GPU stand still.

A GPU gives each process slices of about two milliseconds while both have kernels to run: a candidate's kernel can be
stopped at any instruction, for as long as the other's runs. Kernels that keep the call contract are slower then, others
can be wrong.
"""

from __future__ import annotations

import threading
import time

CYCLES_PER_US = 2000
"""About as many as a GPU has."""

PULSE_US = 2000
"""Length of a pulse in microseconds. Shorter ones end before peers have begun their next call."""

PAUSE_S = 200e-6


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
                    spin(PULSE_US)
                    stream.synchronize()


def spin(us: int) -> None:
    """Launches a kernel of so many microseconds on the current stream."""
    import torch

    torch.cuda._sleep(us * CYCLES_PER_US)  # type: ignore[no-untyped-call]  # unannotated
