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

Policy: TypeAlias = Literal["together", "priorities", "hold_arrival", "hold_departure", "one_ahead", "mixed"]
"""Who goes on: all in turn, beginning and ending each call together; by random priorities that change at few random
points; all others before one rank's arrival; one rank's departure before those of the others; one rank whenever it
can; one of these by seed. As `rank_emulator.Policy`."""

MAX_FINDINGS = 16
"""Most findings, and most lines of advice, of one reply."""

MAX_TEXT = 4000
"""Most characters of each text of a reply."""


@dataclass(frozen=True)
class Schedule:
    """The order of execution of a block.

    Attributes:
        policy: see there.
        seed: of all that it draws, the rank that it concerns included.
    """

    policy: Policy
    seed: int


@dataclass(frozen=True)
class OpenWorld(WireMessage):
    """Map the heap and start the emulator. Their descriptors come along, then two eventfds of each rank.

    Attributes:
        world_size: number of ranks.
        segment_bytes: of the heap, for each rank.
        detect_races: whether each access is checked for what orders it.
    """

    world_size: int
    segment_bytes: int
    detect_races: bool


@dataclass(frozen=True)
class WorldOpened(WireMessage):
    """Answer to `OpenWorld`."""


@dataclass(frozen=True)
class LoadCopies(WireMessage):
    """Load a candidate on each rank. Descriptors of as many copies of its library come along, then that of the tracer.

    Attributes:
        scratch_bytes: of the symmetric scratch.
        memory_bytes: main memory that may be allocated by all ranks together.
        signature: that it should have, for errors.
        has_stack_trace: whether there is a tracer, the library that records where host code of a rank crashed.
    """

    scratch_bytes: int
    memory_bytes: int
    signature: str
    has_stack_trace: bool = False


@dataclass(frozen=True)
class NamedTensor:
    """A tensor of one rank in one call, for messages and for the detector of races.

    Attributes:
        name: of the argument or output.
        offset: bytes into the segment.
        nbytes: of it.
        element_bytes: of an element.
        is_output: whether it is unwritten when the call begins.
    """

    name: str
    offset: int
    nbytes: int
    element_bytes: int
    is_output: bool


@dataclass(frozen=True)
class CallMemory:
    """The memory of one call.

    Attributes:
        offset, nbytes: the range of each segment that holds its arguments and outputs.
        tensors: of each rank.
    """

    offset: int
    nbytes: int
    tensors: tuple[tuple[NamedTensor, ...], ...]


@dataclass(frozen=True)
class BindRanks(WireMessage):
    """Make the arguments of a block.

    Attributes:
        runs: of each rank, its calls.
        partitions: that group arguments point into.
        calls: memory of each call.
        behind_scratch: first byte of each segment behind the scratch, and of the first call's memory.
    """

    runs: tuple[tuple[CallRun, ...], ...]
    partitions: tuple[Partition, ...]
    calls: tuple[CallMemory, ...]
    behind_scratch: tuple[int, int]


@dataclass(frozen=True)
class RunRanks(WireMessage):
    """Call the candidate on every rank, once on each of these bound argument sets.

    Attributes:
        sets: their indices.
        epoch: of the first call.
        schedule: see there.
        max_seconds: wall-clock time after which the block is ended.
    """

    sets: tuple[int, ...]
    epoch: int
    schedule: Schedule
    max_seconds: int


@dataclass(frozen=True)
class Fault:
    """The reason why a block has not come to its end.

    Attributes:
        kind: value of `Failure`.
        rank: whose fault; None of no single rank.
        text: for people, a line for each finding.
    """

    kind: str
    rank: int | None
    text: str


@dataclass(frozen=True)
class DetectorFinding:
    """A finding of the detector.

    Attributes:
        kind: such as "race" or "out_of_bounds".
        rank: of the second access.
        owner: whose memory it is; None where that is unknown.
        tensor: name of the memory; None where it has none.
        text: one line with both accesses and their source lines.
    """

    kind: str
    rank: int | None
    owner: int | None
    tensor: str | None
    text: str


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
        claims: of each rank, of each call; none after a fault.
        fault: None where all ranks have finished all calls.
        instructions: of warps, that were executed so far.
        findings: of the detector, of this block and those before it.
        advice: a line each on what is slow, likewise.
        links: see there.
    """

    claims: tuple[tuple[Claims, ...], ...]
    fault: Fault | None
    instructions: int
    findings: tuple[DetectorFinding, ...] = ()
    advice: tuple[str, ...] = ()
    links: tuple[PeerBytes, ...] = ()
