"""Orders of the evaluator to the process that emulates all ranks, and its replies.

    OpenWorld + fds  -> WorldOpened
    LoadCopies + fds -> Loaded
    BindRanks        -> Bound
    RunRanks         -> Armed, then Go -> RanksDone

It answers `Failed` where it meets an error of its own. All its messages are untrusted rank reports.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from .arguments import CallRun
from .messages import WireMessage
from .orders import Claims, Partition

Policy: TypeAlias = Literal[
    "together", "priorities", "hold_arrival", "hold_departure", "one_ahead", "mixed", "late_stores"
]
"""Scheduling policy: all in turn, beginning and ending each call together; by random priorities that change at few
random points; all others before one rank's arrival; one rank's departure before those of the others; one rank whenever
it can; one of these by seed; by random priorities, with stores that take effect late. As `rank_emulator.Policy`."""

FindingClass: TypeAlias = Literal["unsynchronised", "weak_order", "benign"]
"""What follows from a race: no flag or barrier leads from one access to the other; a flag does, without the release,
acquire, scope or proxy that PTX asks for; both store the same value. As `rank_emulator.Finding.finding_class`."""

MAX_FINDINGS = 16
"""Most findings, and most lines of advice, of one reply."""

MAX_TEXT = 4000
"""Most characters of each text of a reply."""


@dataclass(frozen=True)
class Schedule:
    """The order of execution of a block.

    Attributes:
        policy: Rule by which ranks go on.
        seed: Seed of its draws, that of the rank that it concerns included.
    """

    policy: Policy
    seed: int


@dataclass(frozen=True)
class OpenWorld(WireMessage):
    """Map the heap and start the emulator. Their descriptors come along, then two eventfds of each rank.

    Attributes:
        world_size: Number of ranks.
        segment_bytes: Size of each rank's segment of the heap in bytes.
        detect_races: Whether each access is checked for what orders it.
        strict: Whether that is done to the letter of PTX's memory model.
        starts_libraries: Whether the candidate uses NVSHMEM or NCCL, which are then started; the heap of the former
            lies behind the segment.
    """

    world_size: int
    segment_bytes: int
    detect_races: bool
    strict: bool
    starts_libraries: bool = False


@dataclass(frozen=True)
class WorldOpened(WireMessage):
    """Answer to `OpenWorld`."""


@dataclass(frozen=True)
class LoadCopies(WireMessage):
    """Load a candidate on each rank. Descriptors of as many copies of its library come along, then that of the tracer.

    Attributes:
        scratch_bytes: Size of the symmetric scratch in bytes.
        memory_bytes: Main memory that may be allocated by all ranks together.
        signature: Signature that it should have, for errors.
        has_stack_trace: Whether there is a tracer, the library that records where host code of a rank crashed.
    """

    scratch_bytes: int
    memory_bytes: int
    signature: str
    has_stack_trace: bool = False


@dataclass(frozen=True)
class NamedTensor:
    """A tensor of one rank in one call, for messages and for the detector of races.

    Attributes:
        name: Name of the argument or output.
        offset: Bytes into the segment.
        nbytes: Size of the tensor in bytes.
        element_bytes: Size of an element in bytes.
        is_output: Whether it is unwritten when the call begins.
        is_updated: Whether it is an argument that holds a result when the call ends.
    """

    name: str
    offset: int
    nbytes: int
    element_bytes: int
    is_output: bool
    is_updated: bool


@dataclass(frozen=True)
class CallMemory:
    """The memory of one call.

    Attributes:
        offset, nbytes: The range of each segment that holds its arguments and outputs.
        tensors: Tensors of each rank.
    """

    offset: int
    nbytes: int
    tensors: tuple[tuple[NamedTensor, ...], ...]


@dataclass(frozen=True)
class BindRanks(WireMessage):
    """Make the arguments of a block.

    Attributes:
        runs: Calls of each rank.
        partitions: Partitions that group arguments point into.
        calls: Memory of each call.
        behind_scratch: First byte of each segment behind the scratch, and of the first call's memory.
    """

    runs: tuple[tuple[CallRun, ...], ...]
    partitions: tuple[Partition, ...]
    calls: tuple[CallMemory, ...]
    behind_scratch: tuple[int, int]


@dataclass(frozen=True)
class RunRanks(WireMessage):
    """Call the candidate on every rank, once on each of these bound argument sets.

    Attributes:
        sets: Their indices.
        epoch: Epoch of the first call.
        schedule: Order of execution.
        max_seconds: Wall-clock time after which the block is ended.
    """

    sets: tuple[int, ...]
    epoch: int
    schedule: Schedule
    max_seconds: int


@dataclass(frozen=True)
class Fault:
    """The reason why a block has not ended.

    Attributes:
        kind: Value of `Failure`.
        rank: Number of the rank at fault; None for no single rank.
        text: Message for people, a line for each finding.
    """

    kind: str
    rank: int | None
    text: str


@dataclass(frozen=True)
class DetectorFinding:
    """A finding of the detector.

    Attributes:
        kind: Such as "race" or "out_of_bounds".
        rank: Number of the rank that made the second access.
        owner: Number of the rank that owns the memory; None where that is unknown.
        tensor: Name of the memory; None where it has none.
        text: One line with both accesses and their source lines.
        finding_class: Class of a race ("unsynchronised", "weak_order" or "benign"); None for other findings.
        first, second: Lines of the earlier and the later access, such as "kernel.cu:12"; None where there is no such
            access or its line is unknown.
        exposure: Behaviour of a GPU by which outputs would show the race; None for other findings.
    """

    kind: str
    rank: int | None
    owner: int | None
    tensor: str | None
    text: str
    finding_class: FindingClass | None = None
    first: str | None = None
    second: str | None = None
    exposure: str | None = None


@dataclass(frozen=True)
class PeerBytes:
    """The bytes that a rank's threads have moved to and from another rank's memory so far."""

    rank: int
    owner: int
    read_bytes: int
    written_bytes: int


@dataclass(frozen=True)
class RanksDone(WireMessage):
    """The block has ended.

    Attributes:
        claims: Claims of each rank and call; empty after a fault.
        fault: Fault of a rank; None where all ranks have finished all calls.
        instructions: Number of warp instructions executed so far.
        findings: Findings of the detector, of this block and those before it.
        advice: A line each on what is slow, likewise.
        links: Bytes that each rank has moved from and to each other.
    """

    claims: tuple[tuple[Claims, ...], ...]
    fault: Fault | None
    instructions: int
    findings: tuple[DetectorFinding, ...] = ()
    advice: tuple[str, ...] = ()
    links: tuple[PeerBytes, ...] = ()
