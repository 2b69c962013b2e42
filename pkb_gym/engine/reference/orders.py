"""Orders of the evaluator to the ranks of a reference gang, and their replies.

Two heaps of one layout: the reference heap, which only this gang maps, keeps every rank's inputs as they were made; the
candidate's heap is shared with the candidate's gang. Orders of blocks are answered by `Armed`; then the evaluator sends
`Go`, and gets `BlockFinished` as soon as the work is done, and `BlockSettled` once the rank takes the next order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from pkb_gym.engine.problem.recurrence import Recurrence
from pkb_gym.engine.reference.dumped_tensor import Dumped
from pkb_gym.engine.reference.workload_spec import WorkloadSpec
from pkb_gym.engine.wire.messages import WireMessage
from pkb_gym.engine.wire.orders import Claims, DeviceName, Dialect, RunNullBlock


@dataclass(frozen=True)
class Start(WireMessage):
    """Make the process group. A descriptor where the ranks find each other comes along, then the compiled handovers.

    Answered by `Ready`.
    """

    device: DeviceName
    threads: int
    ranks_per_gpu: int = 1
    timed_processors: tuple[int, ...] = ()
    """Processors of this machine on which blocks run; empty for those of each rank's share."""


@dataclass(frozen=True)
class Ready(WireMessage):
    """Done: the reply to most orders."""


@dataclass(frozen=True)
class AllocateHeaps(WireMessage):
    """Free the heaps that there are, allocate a segment of each on the GPU. Answered by `Ready`, with descriptors."""

    segment_bytes: int


@dataclass(frozen=True)
class MapHeaps(WireMessage):
    """Map both heaps, whose descriptors come along."""

    segment_bytes: int


@dataclass(frozen=True)
class ClearCandidateHeap(WireMessage):
    """Leave nothing of an earlier candidate in the candidate's heap, on GPUs, where it is used again.

    The descriptor of its fresh control file comes along.
    """


@dataclass(frozen=True)
class TakeWorkload(WireMessage):
    """Begin an evaluation.

    Two eventfds come along, that the candidate's rank writes to and that it reads, and the rank's pidfd where it has a
    process of its own.

    Attributes:
        workload: Workload that is evaluated.
        source: Text of the baseline.
        scratch_bytes: Size of the symmetric scratch in bytes.
        segment_bytes: Size of one rank's segment of a heap in bytes.
    """

    workload: WorkloadSpec
    source: str
    scratch_bytes: int
    segment_bytes: int


@dataclass(frozen=True)
class MakeInputs(WireMessage):
    """Draw the inputs of a block into the reference heap.

    Attributes:
        trials: Trial index of each call.
        timed: Whether the block serves timing.
        offsets, recurrences: Place of each call and what returns in it, as `Workload.plan` takes them.
    """

    trials: tuple[int, ...]
    timed: bool
    offsets: tuple[int, ...] = ()
    recurrences: tuple[Recurrence, ...] = ()


@dataclass(frozen=True)
class CheckedCall:
    """The conduct of one checked call.

    Attributes:
        together: Whether all arguments arrive before any rank begins, and no rank departs before all have finished.
        late_rank: Number of the rank whose arguments arrive late; None for no rank.
        delay_s: Delay in seconds, at most.
        is_held: Whether this rank stands still after each wait and barrier of `pkb/symm.h`.
        run_s: Longest time in seconds that this rank runs until it is stopped for a while; 0 for no stops.
        preempted_rank: Rank that stands still when the others begin the call; None for no rank.
        preempted_s: Time in seconds that it stands still, at most.
        withheld: Arguments that hold poison before the call; None for all of them.
        withdrawn: Arguments that hold poison after it, of those that it may not modify, and outputs; None for all of
            them.
    """

    together: bool
    late_rank: int | None = None
    delay_s: float = 0.0
    is_held: bool = False
    run_s: float = 0.0
    preempted_rank: int | None = None
    preempted_s: float = 0.0
    withheld: tuple[str, ...] | None = None
    withdrawn: tuple[str, ...] | None = None


@dataclass(frozen=True)
class StageInputs(WireMessage):
    """Copy the inputs of the block into the candidate's heap and poison its outputs. Answered by `Staged`."""


@dataclass(frozen=True)
class ServeHandovers(WireMessage):
    """Hand over some lines of the arguments call by call, while the block runs; the rest as `StageInputs`.

    Attributes:
        delays_us: Delay of each call's arguments in microseconds; empty for none.
        pulses_us: Microseconds that kernels disturb this rank's GPU meanwhile; 0 for none.
        takes_outputs: Whether a call's outputs are taken away as soon as it has ended; such outputs are not sampled.
    """

    delays_us: tuple[int, ...] = ()
    pulses_us: int = 0
    takes_outputs: bool = False


@dataclass(frozen=True)
class ServeNullBlock(WireMessage):
    """Serve the handovers of a block of calls of nothing. Answered by `Staged`.

    Attributes:
        calls: Number of calls in the block, at least 1.
    """

    calls: int


@dataclass(frozen=True)
class ConductCalls(WireMessage):
    """Hand over whole arguments call by call, while the block runs; the rest as `StageInputs`.

    Attributes:
        calls: Conduct of each call.
    """

    calls: tuple[CheckedCall, ...]


@dataclass(frozen=True)
class EndBlock(WireMessage):
    """The block of the candidate has ended, and its gang is frozen. Answered by `BlockEnded`."""


@dataclass(frozen=True)
class LateOutput:
    """An output that has changed after its call had finished on this rank.

    Attributes:
        call: Number within the block.
        output: Name.
    """

    call: int
    output: str


@dataclass(frozen=True)
class Overrun:
    """Bytes beside a tensor or the scratch of this rank that were written to, by whatever rank.

    Attributes:
        call: Number within the block, of the call whose tensor it is; None for scratch, which all calls share.
        beside: The tensor or the scratch, in words.
        nbytes: Number of bytes that hold other values now.
        distance_bytes: Distance from that place to the nearest of them, in bytes.
        is_behind: Whether they lie behind it, not in front of it.
    """

    call: int | None
    beside: str
    nbytes: int
    distance_bytes: int
    is_behind: bool

    def __str__(self) -> str:
        where = "behind" if self.is_behind else "in front of"
        gap = f", {self.distance_bytes} bytes away from it," if self.distance_bytes else ""
        return f"{self.nbytes} bytes {where} {self.beside}{gap}"


@dataclass(frozen=True)
class BlockEnded(WireMessage):
    """The report of the handovers of a block.

    Attributes:
        complete: Whether all calls have departed.
        late: Outputs that have changed since.
        calls_us: Microseconds from each call's arrival to its departure, where whole arguments were handed over.
        overruns: Writes outside of tensors and scratch, where whole arguments were handed over.
        early: Outputs of sampled calls that were not final when the rank's GPU asked for the handover after the call.
    """

    complete: bool
    late: tuple[LateOutput, ...]
    calls_us: tuple[float, ...] = ()
    overruns: tuple[Overrun, ...] = ()
    early: tuple[LateOutput, ...] = ()


@dataclass(frozen=True)
class Staged(WireMessage):
    """The inputs are there.

    Attributes:
        idle_us: Microseconds that the device took to answer just before; None on the CPU.
        processors: Processors that run at full speed just now; None where all are needed.
    """

    idle_us: float | None
    processors: tuple[int, ...] | None


@dataclass(frozen=True)
class WarmUp(WireMessage):
    """Run the baseline so many times on the block's inputs, without looking at the clock."""

    calls: int


@dataclass(frozen=True)
class RunBaseline(WireMessage):
    """Run the baseline on the first calls of the block.

    Attributes:
        calls: Number of calls in the block, at least 1.
        dialect: Dialect of the candidate: the baseline delivers the same results into its heap.
        handovers: Whether arguments are handed over as in the candidate's blocks.
        pad_ns: Nanoseconds that the host waits at each handover beyond its launch, see `EnqueuedHandover`.
    """

    calls: int
    dialect: Dialect
    handovers: bool
    pad_ns: int


@dataclass(frozen=True)
class TimeDelivery(WireMessage):
    """Time how long the results of a call take to be copied into the heap. Answered by `DeliveryTimed`.

    Attributes:
        dialect: Dialect of the candidate; see `RunBaseline`.
    """

    dialect: Dialect


@dataclass(frozen=True)
class DeliveryTimed(WireMessage):
    """The time of a delivery on this rank, in microseconds."""

    delivery_us: float


@dataclass(frozen=True)
class CaptureGraphs(WireMessage):
    """Capture the baseline as CUDA graphs, on the block's first calls. Answered by `Captured`.

    Attributes:
        calls: Number of calls in the block, at least 1.
        dialect: Dialect of the candidate; see `RunBaseline`.
        registered: Whether arguments and allocations lie in memory that is registered with NCCL; only after a capture
            without it.
    """

    calls: int
    dialect: Dialect
    registered: bool = False


@dataclass(frozen=True)
class Captured(WireMessage):
    """The result of a capture.

    Attributes:
        captured: Whether there are graphs now.
        sound: Whether the device can still be used.
    """

    captured: bool
    sound: bool


@dataclass(frozen=True)
class ReplayGraphs(WireMessage):
    """Launch the graphs, one after the other."""

    calls: int


@dataclass(frozen=True)
class BlockFinished(WireMessage):
    """The work of the block is done: the clock stops here."""


@dataclass(frozen=True)
class BlockSettled(WireMessage):
    """The rank is ready for the next order.

    Attributes:
        idle_us: Microseconds that the device took to answer just before the block; None on the CPU.
        host_ns: Nanoseconds that the host spent on the block before it waited for the device.
    """

    idle_us: float | None
    host_ns: int


@dataclass(frozen=True)
class KeepBlock(WireMessage):
    """Write the block's calls, and what they should return, to files; see `kept_block`. Answered by `Ready`.

    Attributes:
        folder: Absolute path.
        calls: Number of calls, counted from the first.
    """

    folder: str
    calls: int


@dataclass(frozen=True)
class DumpTensors(WireMessage):
    """Write tensors of the block, as the candidate has them and as they should be. Answered by `Ready`.

    Attributes:
        folder: Absolute path.
        calls: Numbers within the block, of each tensor that of its call.
        tensors: Tensors that are written.
    """

    folder: str
    calls: tuple[int, ...]
    tensors: tuple[Dumped, ...]


@dataclass(frozen=True)
class CompareOutputs(WireMessage):
    """Judge the candidate's outputs of the block. Answered by `Compared`.

    Attributes:
        claims: Claims of each call.
        dialect: Dialect of the candidate.
    """

    claims: tuple[Claims, ...]
    dialect: Dialect


@dataclass(frozen=True)
class Compared(WireMessage):
    """The result of a comparison.

    Attributes:
        check: Result of this rank, a `RankCheck` as JSON.
    """

    check: object


@dataclass(frozen=True)
class Release(WireMessage):
    """Let go of heaps and results, at the end of an evaluation."""


StageOrder: TypeAlias = StageInputs | ServeHandovers | ServeNullBlock | ConductCalls
"""Ways of staging a block of the candidate."""

BlockOrder: TypeAlias = RunBaseline | RunNullBlock | ReplayGraphs
"""Orders whose work the clock is held to."""
