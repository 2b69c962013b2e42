"""The time of a training step by phases."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pkb_gym.engine.hardware import gpus

PhaseName: TypeAlias = Literal["generation", "evaluation", "offload", "ranks", "learning", "other"]
"""The phases of a step: the policy writes; it waits for evaluations; memory is handed to the evaluator and back; it
waits for other ranks; log-probabilities, loss, gradients and optimizer; everything else."""

PHASES: tuple[PhaseName, ...] = ("generation", "evaluation", "offload", "ranks", "learning", "other")

SAMPLE_S = 0.5


@dataclass(frozen=True)
class Lap:
    """One step's time.

    Attributes:
        wall_s: Wall time of the step, in seconds.
        phases_s: Time of each phase in seconds; they add up to `wall_s`.
    """

    wall_s: float
    phases_s: dict[PhaseName, float]


class PhaseClock:
    """Shares out wall time among phases. A phase within another is taken off the outer one; used by one thread.

    Args:
        synchronise: Function called before the clock is read, so that work queued on a GPU counts for the phase that
            queued it.
        now: Clock in seconds.

    Example:
        >>> ticks = iter([0.0, 1.0, 3.0, 4.0, 6.0, 6.5])
        >>> clock = PhaseClock(now=lambda: next(ticks))
        >>> with clock.phase("learning"):
        ...     with clock.phase("generation"):
        ...         pass
        >>> clock.lap().phases_s
        {'generation': 1.0, 'evaluation': 0.0, 'offload': 0.0, 'ranks': 0.0, 'learning': 4.0, 'other': 1.5}
    """

    def __init__(
        self, synchronise: Callable[[], None] = lambda: None, now: Callable[[], float] = time.perf_counter
    ) -> None:
        self._synchronise, self._now = synchronise, now
        self._open: list[PhaseName] = ["other"]
        self._spent_s: dict[PhaseName, float] = dict.fromkeys(PHASES, 0.0)
        self._since = now()

    @contextlib.contextmanager
    def phase(self, name: PhaseName) -> Iterator[None]:
        """Charges what happens inside to a phase."""
        self.charge(self._open[-1])
        self._open.append(name)
        try:
            yield
        finally:
            self.charge(self._open.pop())

    def charge(self, name: PhaseName) -> None:
        """Charges the time since the last phase began or ended."""
        self._synchronise()
        now = self._now()
        self._spent_s[name] += now - self._since
        self._since = now

    def lap(self) -> Lap:
        """The time since the last lap, or since the beginning; to be called outside of phases."""
        self.charge(self._open[-1])
        spent_s, self._spent_s = self._spent_s, dict.fromkeys(PHASES, 0.0)
        return Lap(sum(spent_s.values()), spent_s)


class GpuSampler:
    """Samples how busy this machine's GPUs are, in a thread; without GPUs it does nothing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._samples: list[tuple[float, ...]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pkb-gpu-sampler", daemon=True)
        if gpus.names():
            self._thread.start()

    def means(self) -> tuple[float, ...]:
        """Share of the time in which each GPU ran a kernel, in [0, 1], since this was last asked; empty without any."""
        with self._lock:
            samples, self._samples = self._samples, []
        return tuple(sum(column) / len(samples) for column in zip(*samples, strict=True))

    def close(self) -> None:
        """Ends the thread; calling it again changes nothing."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            sample = gpus.utilisations()
            with self._lock:
                self._samples.append(sample)
