"""Preemption of a candidate's rank: it stands still in a call that it has begun, when its peers begin theirs.

It waits for them as a rule. A peer that departs without waiting for it, or that uses again what the rank still needs,
does so while it stands still.
"""

from __future__ import annotations

import signal
from typing import Protocol

from pkb_gym.engine.reference.gpu_pulses import spin
from pkb_gym.engine.support.pidfds import send, stat

MAX_PREEMPTION_S = 10e-3
"""Time in seconds in which a rank stands still, at most: some slices of a GPU's time."""


class Preemption(Protocol):
    """A preemption at a time.

    Attributes:
        is_immediate: Whether it begins within microseconds.
    """

    is_immediate: bool

    def begin(self, duration_s: float) -> None:
        """Has the rank stand still, as soon as that can be.

        Args:
            duration_s: Time in seconds that it stands still, where it cannot be told to go on.
        """

    def has_begun(self) -> bool:
        """Whether it stands still, or has done so."""

    def end(self) -> None:
        """Tells it to go on."""


class StoppedProcess:
    """The processes of the CPU.

    Args:
        pidfd: Process descriptor of the rank.
    """

    is_immediate = True

    def __init__(self, pidfd: int) -> None:
        self._pidfd = pidfd

    def begin(self, duration_s: float) -> None:  # noqa: ARG002  # it is told to go on
        """Stops it."""
        send(self._pidfd, signal.SIGSTOP)

    def has_begun(self) -> bool:
        """Whether it has been stopped, or has ended."""
        return stat(self._pidfd)[0] in "TZX"

    def end(self) -> None:
        """Continues it."""
        send(self._pidfd, signal.SIGCONT)


class GpuPreemption:
    """A kernel of this process, for which the rank's kernels on the GPU stand still once their slice of time is over.

    Args:
        device: Name of the GPU in torch.
    """

    is_immediate = False

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
            spin(0)
            self._begun.record()
            spin(int(1e6 * duration_s))

    def has_begun(self) -> bool:
        """Whether the kernel before it has ended, which is over at once."""
        return bool(self._begun.query())  # type: ignore[no-untyped-call]  # unannotated

    def end(self) -> None:
        """Nothing: the kernel ends by itself."""
