"""Orders of the evaluator to the ranks of a candidate's gang, and their replies.

    Prepare         -> Prepared                    optional, before a candidate is known
    MapHeap + fds   -> HeapMapped
    RunNullBlock    -> Armed, then Go -> NullDone  before a candidate is loaded
    Load + fds      -> Loaded
    Bind         -> Bound
    RunBlock     -> Armed, then Go -> BlockDone
    ProfileBlock -> Armed, then Go -> ProfileDone

A rank that meets an error answers `Failed` and is of no further use. Everything that a rank reports once a
candidate has been loaded is an untrusted report.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from .arguments import CallRun
from .messages import WireMessage

DeviceName: TypeAlias = Literal["cpu", "cuda"]
Dialect: TypeAlias = Literal["native", "python"]
"""The calling convention: native kernels by the TVM FFI on the symmetric heap, Python modules with a process group."""

Partition: TypeAlias = tuple[tuple[int, ...], ...]
"""Global ranks, in groups."""

FILE_NAME = "candidate.py"
"""The name of a candidate's Python source in tracebacks."""


@dataclass(frozen=True)
class RankSetting:
    """The device and processors of a rank.

    Attributes:
        device: Kind.
        threads: Processor threads that it computes with.
        ranks_per_gpu: Neighbouring ranks that share a GPU.
    """

    device: DeviceName
    threads: int
    ranks_per_gpu: int = 1


@dataclass(frozen=True)
class Prepare(WireMessage):
    """Get ready for a candidate of a dialect.

    Attributes:
        setting: Device and processors of the rank.
        dialect: Ranks of the python dialect make a process group.
        one_queue: Whether a single hardware queue will do, see `devices.CudaDevice`.
        imports: Names of modules that such candidates may use; those that are not installed are passed over.
        all_gpus: Whether ranks of the native dialect see their peers' GPUs too.
    """

    setting: RankSetting
    dialect: Dialect
    one_queue: bool
    imports: tuple[str, ...] = ()
    all_gpus: bool = False


@dataclass(frozen=True)
class Prepared(WireMessage):
    """Answer to `Prepare`."""


@dataclass(frozen=True)
class MapHeap(WireMessage):
    """Map the heap. Its descriptors come along, then two eventfds (see `WaitingHandover`), on GPUs a library too.

    Attributes:
        setting: Device and processors of the rank.
        dialect: Dialect of the candidate.
        heap_fds: Number of descriptors that are the heap's.
        segment_bytes: Size of each rank's segment of the heap in bytes.
    """

    setting: RankSetting
    dialect: Dialect
    heap_fds: int
    segment_bytes: int


@dataclass(frozen=True)
class HeapMapped(WireMessage):
    """Answer to `MapHeap`."""


HandoverKind: TypeAlias = Literal["none", "waiting", "enqueued"]
"""The step between two calls: nothing; the host waits for the trusted side; a kernel does."""


@dataclass(frozen=True)
class RunNullBlock(WireMessage):
    """Run a block of calls of nothing.

    Attributes:
        calls: Number of calls in the block, at least 1.
        handovers: Kind of the handovers between them.
        pad_ns: Nanoseconds that the host waits at each handover beyond its launch, see `EnqueuedHandover`.
    """

    calls: int
    handovers: HandoverKind
    pad_ns: int


@dataclass(frozen=True)
class NullDone(WireMessage):
    """It is done."""


@dataclass(frozen=True)
class Load(WireMessage):
    """Load a candidate. The descriptor of its source or library comes along, then those of extensions and stack trace.

    Attributes:
        dialect: Dialect of the candidate.
        processors: Number of the machine's processors; fewer than ranks must be shared.
        scratch_bytes: Size of the symmetric scratch in bytes.
        memory_bytes: Main memory that may be allocated.
        returns: "value", "tuple" or "dict": how a solution of the python dialect returns its results.
        signature: Signature that a native kernel should have, for errors.
        extensions: C++ extensions that a module built -> place among the descriptors.
        stack_trace: Place of the library that records the call stack of a crashed rank; None for none.
        gsan_seed: Seed of Triton's GSan, in [0, 2^32), under which the candidate runs; None to run it as it is.
    """

    dialect: Dialect
    processors: int
    scratch_bytes: int
    memory_bytes: int
    returns: Literal["value", "tuple", "dict"]
    signature: str
    extensions: dict[str, int]
    stack_trace: int | None = None
    gsan_seed: int | None = None


@dataclass(frozen=True)
class Loaded(WireMessage):
    """Answer to `Load`."""


@dataclass(frozen=True)
class Bind(WireMessage):
    """Make the arguments of a block.

    Attributes:
        runs: Runs of the block's calls.
        partitions: Partitions that group arguments point into.
    """

    runs: tuple[CallRun, ...]
    partitions: tuple[Partition, ...]


@dataclass(frozen=True)
class Bound(WireMessage):
    """Answer to `Bind`."""


@dataclass(frozen=True)
class RunBlock(WireMessage):
    """Call the candidate once on each of these bound argument sets.

    Attributes:
        sets: Their indices.
        epoch: Epoch of the first call.
        handovers: Kind of the handovers between the calls, before the first and after the last.
        pad_ns: Nanoseconds that the host waits at each handover beyond its launch, see `EnqueuedHandover`.
        holds_ns: Nanoseconds that this rank stands still after each wait and barrier of each call; empty for
            not at all.
        congestions_ns: Nanoseconds, at most, that this rank's GPU is congested in each call; empty for not at all.
    """

    sets: tuple[int, ...]
    epoch: int
    handovers: HandoverKind
    pad_ns: int = 0
    holds_ns: tuple[int, ...] = ()
    congestions_ns: tuple[int, ...] = ()


@dataclass(frozen=True)
class ProfileBlock(WireMessage):
    """Run a block with a profile of its calls.

    Attributes:
        sets, epoch: Bound argument sets and epoch of the first call, see `RunBlock`.
        link_bytes_per_s: The most that can leave or enter a GPU by its links; None where there is no peer.
    """

    sets: tuple[int, ...]
    epoch: int
    link_bytes_per_s: float | None


@dataclass(frozen=True)
class Armed(WireMessage):
    """Everything is ready but for `Go`."""


@dataclass(frozen=True)
class Go(WireMessage):
    """The gate is open."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Shape and dtype that a rank reports of a tensor which it copied into the heap."""

    shape: tuple[int, ...]
    dtype: str


Claims: TypeAlias = tuple[Claim | None, ...]
"""One for each tensor of a call that was copied; None where it is just what was declared."""


@dataclass(frozen=True)
class BlockDone(WireMessage):
    """All calls are complete.

    Attributes:
        claims: Claims of each call, as text of `claims.write_claims`.
    """

    claims: str


@dataclass(frozen=True)
class ProcessUsage:
    """The usage of a process, over the profiled calls."""

    minor_page_faults: int
    major_page_faults: int
    voluntary_switches: int
    involuntary_switches: int
    user_ns: int
    system_ns: int


@dataclass(frozen=True)
class Transfers:
    """The time and bytes of a rank's communication, over the profiled calls.

    Attributes:
        wait_ns: Nanoseconds of waiting for signals; on GPUs summed over all threads.
        copy_ns: Nanoseconds in copies, or in the collectives of torch.distributed.
        put_bytes, got_bytes: Bytes copied to and from peers.
        waits: Number of waits for a signal that was not there yet.
    """

    wait_ns: int = 0
    copy_ns: int = 0
    put_bytes: int = 0
    got_bytes: int = 0
    signals: int = 0
    waits: int = 0


@dataclass(frozen=True)
class OperatorTime:
    """One operator of torch on the CPU."""

    name: str
    calls: int
    self_us: float


@dataclass(frozen=True)
class KernelTotal:
    """All launches of one kernel, copy or fill of a GPU."""

    name: str
    launches: int
    total_us: float


@dataclass(frozen=True)
class DeviceEvent:
    """One kernel, copy or fill on a GPU.

    Attributes:
        kind: Kind of work.
        name: Index of the name in `DeviceReport.names`.
        start_us: Beginning in microseconds of the machine's monotonic clock.
        duration_us: Duration in microseconds.
        stream: Number.
        nbytes: Copied or filled; 0 for kernels.
    """

    kind: Literal["kernel", "copy", "fill"]
    name: int
    start_us: float
    duration_us: float
    stream: int
    nbytes: int


@dataclass(frozen=True)
class DeviceReport:
    """The work of a GPU for a rank, over all profiled calls; times in microseconds.

    Each moment counts once: as computing, else as communication, else as waiting.
    """

    busy_us: float
    compute_us: float
    communication_us: float
    waiting_us: float
    overlap_us: float
    peer_copied_bytes: int
    own_copied_bytes: int
    nccl_kernels: int
    kernels: tuple[KernelTotal, ...]
    names: tuple[str, ...]
    events: tuple[DeviceEvent, ...]


@dataclass(frozen=True)
class ProfileDone(WireMessage):
    """The time of the profiled calls by activity, as the rank reports it.

    Attributes:
        wall_ns: Nanoseconds from the first call to the end of the last.
        inside_ns: Inside the calls, by the host's clock.
        calls_ns: Begin and end of each call, by the machine's monotonic clock.
        usage: Use of the machine by the process.
        transfers: Number of transfers; None where they are not counted, as for modules on GPUs.
        operators: Hottest first; modules on the CPU only.
        device: Device report; None on the CPU, and where a GPU could not be watched.
    """

    wall_ns: int
    inside_ns: int
    calls_ns: tuple[tuple[int, int], ...]
    usage: ProcessUsage
    transfers: Transfers | None = None
    operators: tuple[OperatorTime, ...] = ()
    device: DeviceReport | None = None


@dataclass(frozen=True)
class Failed(WireMessage):
    """The error of a rank.

    Attributes:
        kind: Value of `Failure`.
        text: Message for people.
    """

    kind: str
    text: str
