"""Messages between `plain_gang` and its ranks."""

from __future__ import annotations

from dataclasses import dataclass

from pkb_gym.engine.reference.workload_spec import WorkloadSpec
from pkb_gym.engine.wire.messages import WireMessage
from pkb_gym.engine.wire.orders import DeviceName, Dialect


@dataclass(frozen=True)
class Begin(WireMessage):
    """Make the process group, whose ranks meet in the file that comes along, and on GPUs a segment of the heap.

    Answered by `Ready`, with the segment's descriptor.
    """

    device: DeviceName
    rank: int
    world_size: int
    threads: int
    segment_bytes: int


@dataclass(frozen=True)
class Kernel:
    """One side of a measurement.

    Attributes:
        name: Name of the kernel.
        dialect: Dialect; the library of a native one comes along.
        source: Text of a Python one.
    """

    name: str
    dialect: Dialect
    source: str = ""


@dataclass(frozen=True)
class Measure(WireMessage):
    """Measure kernels in turn. The libraries of native ones come along, in order. Answered by `Measured`.

    Attributes:
        workload: Workload whose first timed trials are the arguments.
        reference: Text of the reference, whose result the kernels' are compared with.
        scratch_bytes: Size of the symmetric scratch in bytes.
        kernels: Kernels to measure.
        sets: Number of argument sets, which calls use in turn.
        calls: Number of calls in a block.
        rounds: Number of blocks of each kernel.
    """

    workload: WorkloadSpec
    reference: str
    scratch_bytes: int
    kernels: tuple[Kernel, ...]
    sets: int
    calls: int
    rounds: int


@dataclass(frozen=True)
class Begun(WireMessage):
    """Something begins with this kernel, which is to blame for what goes wrong until the next message."""

    kernel: str


@dataclass(frozen=True)
class KernelTimes:
    """The times of one kernel.

    Attributes:
        name: Name of the kernel.
        calls_us: Microseconds a call of each block; empty where it could not be measured.
        relative_error: Norm of the first result's deviation from the reference's, over the latter's norm.
        obstacle: Reason why it could not be measured on this rank; None where it could.
    """

    name: str
    calls_us: tuple[float, ...] = ()
    relative_error: float | None = None
    obstacle: str | None = None


@dataclass(frozen=True)
class Measured(WireMessage):
    """The times of every kernel on this rank."""

    kernels: tuple[KernelTimes, ...]
