"""Ranks in processes of their own, as torchrun starts them, that measure kernels without the evaluator."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Self

from benchmarks.rivals.messages import Begin, Begun, Kernel, KernelTimes, Measure, Measured
from pkb_gym.engine.gangs.heaps import DeviceHeap, SharedHeap, memory_file
from pkb_gym.engine.hardware.host import threads_per_rank
from pkb_gym.engine.reference.orders import MapHeaps, Ready
from pkb_gym.engine.wire.frames import Wire, pair
from pkb_gym.engine.wire.messages import WireError, WireMessage
from pkb_gym.engine.wire.orders import DeviceName

START_TIMEOUT_S = 120.0
TIMEOUT_S = 60.0
"""Deadline in seconds of what a rank does between two messages."""

REPOSITORY = Path(__file__).resolve().parents[2]


class GangEnded(Exception):
    """Raised when a rank has ended, or has not answered in time.

    Attributes:
        kernel: Name of the kernel that was in hand; None where none was.
    """

    def __init__(self, kernel: str | None, reason: str) -> None:
        super().__init__(reason)
        self.kernel = kernel


class PlainGang:
    """Ranks that measure; a context manager that ends them.

    Args:
        device: Kind of device.
        world_size: Number of ranks.
        segment_bytes: Size of each rank's segment of the symmetric heap in bytes.

    Raises:
        GangEnded: a rank could not be started.
    """

    def __init__(self, device: DeviceName, world_size: int, segment_bytes: int) -> None:
        with contextlib.ExitStack() as resources:
            folder = resources.enter_context(tempfile.TemporaryDirectory(prefix="pkb-rivals-"))
            rendezvous = os.memfd_create("pkb-rendezvous")
            resources.callback(os.close, rendezvous)
            self._output = resources.enter_context(tempfile.TemporaryFile("w+", dir=folder))
            self._wires: list[Wire] = []
            for rank in range(world_size):
                wire, theirs = pair()
                self._wires.append(wire)
                resources.callback(wire.close)
                with contextlib.closing(theirs):
                    process = subprocess.Popen(
                        [sys.executable, "-m", "benchmarks.rivals.plain_rank", str(theirs.fileno())],
                        cwd=REPOSITORY,
                        env=os.environ | {"TMPDIR": folder, "GLOO_SOCKET_IFNAME": "lo"},
                        pass_fds=(theirs.fileno(),),
                        stdin=subprocess.DEVNULL,
                        stdout=self._output,
                        stderr=subprocess.STDOUT,
                    )
                resources.callback(process.wait)
                resources.callback(process.kill)
                begin = Begin(device, rank, world_size, threads_per_rank(world_size), segment_bytes)
                wire.send(begin, fds=(rendezvous,))
            segments = [fd for rank in range(world_size) for fd in self._receive(rank, (Ready,), START_TIMEOUT_S)[1]]
            heap: DeviceHeap | SharedHeap
            if device == "cuda":
                heap = DeviceHeap(segment_bytes, segments)
                resources.callback(heap.close)
            else:
                heap = resources.enter_context(SharedHeap(segment_bytes, world_size))
            for wire in self._wires:
                wire.send(MapHeaps(segment_bytes), fds=heap.fds)
            for rank in range(world_size):
                self._receive(rank, (Ready,), START_TIMEOUT_S)
            self._resources = resources.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._resources.close()

    def measure(self, order: Measure, libraries: Sequence[bytes]) -> list[KernelTimes]:
        """Measures kernels in turn.

        Args:
            order: Kernels and their arguments.
            libraries: Compiled libraries of the native kernels, in order.

        Returns:
            The times of each kernel by the slowest rank of every block, or the first rank's obstacle.

        Raises:
            GangEnded: a rank is gone, or did not answer in time.
        """
        fds = [memory_file("kernel", library) for library in libraries]
        try:
            for wire in self._wires:
                wire.send(order, fds=fds)
        finally:
            for fd in fds:
                os.close(fd)
        ranks = [self._measured(rank).kernels for rank in range(len(self._wires))]
        return [_slowest(of_kernel) for of_kernel in zip(*ranks, strict=True)]

    def _measured(self, rank: int) -> Measured:
        kernel = None
        while True:
            message = self._receive(rank, (Begun, Measured), TIMEOUT_S, kernel)[0]
            if isinstance(message, Measured):
                return message
            assert isinstance(message, Begun)
            kernel = message.kernel

    def _receive(
        self, rank: int, kinds: tuple[type[WireMessage], ...], timeout_s: float, kernel: str | None = None
    ) -> tuple[WireMessage, list[int]]:
        wire = self._wires[rank]
        wire.sock.settimeout(timeout_s)
        try:
            message, _, fds = wire.receive_with_fds(*kinds)
        except (WireError, TimeoutError) as error:
            self._output.seek(0)
            written = [line for line in self._output.read().splitlines() if line.strip()]
            raise GangEnded(kernel, written[-1][:300] if written else f"rank {rank}: {error}") from None
        return message, fds


def _slowest(ranks: Sequence[KernelTimes]) -> KernelTimes:
    obstacle = next((times.obstacle for times in ranks if times.obstacle is not None), None)
    if obstacle is not None:
        own = [times.obstacle for times in ranks if times.obstacle and "another rank" not in times.obstacle]
        return replace(ranks[0], calls_us=(), obstacle=own[0] if own else obstacle)
    slowest = tuple(map(max, zip(*(times.calls_us for times in ranks), strict=True)))
    errors = [times.relative_error for times in ranks if times.relative_error is not None]
    return replace(ranks[0], calls_us=slowest, relative_error=max(errors, default=None))


@dataclass(frozen=True)
class PlainTime:
    """The plain time of a kernel.

    Attributes:
        call_us: Median over blocks of the microseconds a call, each by its slowest rank; None where not measured.
        low_us, high_us: Quartiles of the same.
        obstacle: Reason why it was not measured; None where it was.
    """

    call_us: float | None
    low_us: float | None = None
    high_us: float | None = None
    obstacle: str | None = None

    @classmethod
    def of(cls, times: KernelTimes) -> PlainTime:
        """The time that the blocks of a kernel amount to."""
        if not times.calls_us:
            return cls(None, obstacle=times.obstacle)
        ordered = sorted(times.calls_us)
        quarter = len(ordered) // 4
        return cls(median(ordered), ordered[quarter], ordered[-1 - quarter])


def measure_all(
    new_gang: Callable[[], PlainGang], order: Measure, libraries: dict[str, bytes]
) -> tuple[dict[str, PlainTime], PlainGang | None]:
    """Measures kernels side by side; one that ends a gang is left out, and the others begin again.

    Args:
        new_gang: Function that gives the gang in hand, or starts one.
        order: Kernels and their arguments.
        libraries: Compiled libraries of native kernels, by name.

    Returns:
        The time of each kernel, and whether the gang still stands: the gang, or None.
    """
    found: dict[str, PlainTime] = {}
    while True:
        left = tuple(kernel for kernel in order.kernels if kernel.name not in found)
        if not left:
            return found, None
        gang = new_gang()
        try:
            wanted = [libraries[kernel.name] for kernel in left if kernel.dialect == "native"]
            times = gang.measure(replace(order, kernels=left), wanted)
        except GangEnded as ended:
            gang.__exit__(None, None, None)
            if ended.kernel is None:
                return found | {kernel.name: PlainTime(None, obstacle=str(ended)) for kernel in left}, None
            found[ended.kernel] = PlainTime(None, obstacle=f"it ended its ranks: {ended}")
            continue
        return found | {one.name: PlainTime.of(one) for one in times}, gang


__all__ = ["GangEnded", "Kernel", "PlainGang", "PlainTime", "measure_all"]
