"""Gangs without processes: how long blocks take and what becomes of them is the test's to say."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pkb_gym.engine.compare.check import RankCheck
from pkb_gym.engine.compare.layout import BlockPlan, Workload
from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.gangs.candidate_gang import BlockSetting, Job
from pkb_gym.engine.gangs.failure_attribution import GangFailed
from pkb_gym.engine.gangs.handover_ends import HandoverEnds
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.artifact import Artifact
from pkb_gym.engine.records.check_report import Mismatch
from pkb_gym.engine.records.config import Device, EvalConfig, Language, resolve
from pkb_gym.engine.records.feedback import Environment
from pkb_gym.engine.records.source import Source
from pkb_gym.engine.reference.orders import BlockEnded, ConductCalls, StageOrder
from pkb_gym.engine.stages.candidate_run import CandidateRun
from pkb_gym.engine.stages.feedback_builder import FeedbackBuilder
from pkb_gym.engine.wire.orders import Claims, Dialect, ProfileDone, RunNullBlock
from pkb_gym.problems.catalogue import find_problem, reference_source

PROBLEM = find_problem("AllReduce")
KERNEL = '#include "pkb/symm.h"\nvoid solution(pkb::Comm comm) {}\n'
ARTIFACT = Artifact(ok=True, log="", duration_s=0.1, binary=b"\x7fELF")
ENVIRONMENT = Environment(hardware="none", processors=2, sandbox="limits", python="3", torch="2", toolchain=None)
WORLD_SIZE = 2


@dataclass
class FakeHeap:
    segment_bytes: int
    fds: tuple[int, ...] = ()

    def place(self, rank: int) -> str:
        return ""


@dataclass
class FakeLibraries:
    candidate_fds: tuple[int, ...] = ()


@dataclass
class FakeReferenceGang:
    """Has results without running anything.

    Attributes:
        log: Requests to both gangs, in order.
        device: Device, as in `ReferenceGang`.
        call_us, handover_us, block_us: Time of baseline calls, of handovers, and of a block besides, in microseconds.
        blocks_us: Times of the next blocks, in place of those, in microseconds.
        mismatches: Mismatches of rank 0 in the next comparisons; none are found in later ones.
        ended: Observations of the candidate's next blocks, per rank; none in later ones.
        conducted_us: Time from arrival to departure of a conducted call, in microseconds.
        staged: Orders of each block of the candidate.
        staged_bytes: Staged bytes of each block of the baseline, as in `ReferenceGang.run`.
        fails: Fault by request.
        captures: Whether the baseline can be captured in graphs.
        registers: Whether it can on registered memory, where a call takes `registered_us` microseconds.
        idle_us: Idle response time, as in `ReferenceGang`, in microseconds.
        delays_us: Microseconds that the last rank waits for a processor in the next blocks; 0 in later ones.
        copy_us: Time of the delivery of a call's results, in microseconds.
    """

    log: list[str]
    device: Device = "cpu"
    world_size: int = WORLD_SIZE
    call_us: float = 100.0
    handover_us: float = 0.0
    block_us: float = 0.0
    blocks_us: list[float] = field(default_factory=list)
    mismatches: list[list[Mismatch]] = field(default_factory=list)
    fails: dict[str, InfrastructureError] = field(default_factory=dict)
    ended: list[list[BlockEnded]] = field(default_factory=list)
    conducted_us: float = 60.0
    staged: list[tuple[StageOrder, ...]] = field(default_factory=list)
    captures: bool = True
    registers: bool = True
    registered_us: float = 30.0
    is_registered: bool = False
    idle_us: float | None = None
    copy_us: float = 0.0
    host_ns: int = 0
    delays_us: list[float] = field(default_factory=list)
    delay_ns: int = 0
    has_staged: bool = False
    plans: list[BlockPlan] = field(default_factory=list)
    staged_bytes: list[int] = field(default_factory=list)
    source: str = ""

    def _note(self, what: str, more: object = "") -> None:
        self.log.append(f"{what} {more}".strip())
        if what in self.fails:
            raise self.fails[what]

    def _block_ns(self, calls: int, call_us: float, *, handovers: bool = False) -> int:
        block_us = self.block_us + calls * call_us + (calls + 1) * self.handover_us * handovers
        return round(1e3 * (self.blocks_us.pop(0) if self.blocks_us else block_us))

    @contextlib.contextmanager
    def heaps(self, segment_bytes: int) -> Iterator[tuple[FakeHeap, FakeHeap]]:
        try:
            yield FakeHeap(segment_bytes), FakeHeap(segment_bytes)
        finally:
            self.log.append("heaps gone")

    def take(
        self,
        workload: Workload,
        source: str,
        scratch_bytes: int,
        segment_bytes: int,
        rank_fds: Sequence[Sequence[int]],
    ) -> None:
        self.source = source
        self._note("take", workload.problem.name)

    @property
    def run_delays_ns(self) -> tuple[int, ...]:
        return (*(0,) * (self.world_size - 1), self.delay_ns)

    def delivery_us(self, dialect: str) -> float:
        self._note("time delivery", dialect)
        return self.copy_us

    def release(self) -> None:
        self._note("release")

    def make(self, plan: BlockPlan, *, timed: bool) -> None:
        self.plans.append(plan)
        self._note("make", f"{len(plan.sets)} {'timed' if timed else 'checked'}")

    @contextlib.contextmanager
    def making(self, plan: BlockPlan, *, timed: bool) -> Iterator[None]:
        self.make(plan, timed=timed)
        try:
            yield
        finally:
            self.log.append("made")

    @property
    def trials(self) -> list[tuple[int, ...]]:
        """Trials of the blocks that inputs were made for."""
        return [tuple(planned.trial for planned in plan.sets) for plan in self.plans]

    def stage(self, orders: Sequence[StageOrder]) -> None:
        self.staged.append(tuple(orders))
        self.has_staged = True
        self._note("stage", type(orders[0]).__name__)

    def end_block(self) -> list[BlockEnded]:
        self.has_staged = False
        self._note("end block")
        orders = self.staged[-1]
        calls = len(orders[0].calls) if isinstance(orders[0], ConductCalls) else 0
        return self.ended.pop(0) if self.ended else [BlockEnded(True, (), (self.conducted_us,) * calls)] * len(orders)

    def run(
        self, calls: int, dialect: Dialect, *, handovers: bool = False, pad_ns: int = 0, staged_bytes: int = 0
    ) -> int:
        self.staged_bytes.append(staged_bytes)
        self._note("baseline", f"{calls} {dialect}{' with handovers' if handovers else ''}")
        self.delay_ns = round(1e3 * self.delays_us.pop(0)) if self.delays_us else 0
        return self._block_ns(calls, self.call_us, handovers=handovers)

    def run_null_block(self, order: RunNullBlock) -> int:
        self._note("null block of the reference", f"{order.calls} {order.handovers}")
        return self._block_ns(order.calls, 0, handovers=order.handovers != "none")

    def warm_up(self, calls: int) -> None:
        self._note("warm up", calls)

    def capture(self, calls: int, dialect: Dialect, *, registered: bool = False) -> bool:
        self._note("register" if registered else "capture", f"{calls} {dialect}")
        self.is_registered = registered
        return self.registers if registered else self.captures

    def replay(self, calls: int) -> int:
        self._note("replay", calls)
        return self._block_ns(calls, self.registered_us if self.is_registered else self.call_us)

    def compare(self, claims: Sequence[Sequence[Any]], dialect: Dialect) -> list[RankCheck]:
        self._note("compare", len(claims[0]))
        wrong = self.mismatches.pop(0) if self.mismatches else []
        calls = len(claims[0])
        return [
            RankCheck(
                rank=rank,
                outputs=calls,
                elements=8 * calls,
                elements_right=8 * calls - sum(each.wrong_elements for each in wrong if rank == 0),
                mismatches=tuple(wrong) if rank == 0 else (),
            )
            for rank in range(len(claims))
        ]


@dataclass
class FakeCandidateGang:
    """Calls nothing.

    Attributes:
        log: Requests to both gangs, in order.
        call_us, handover_us, block_us: Time of candidate calls, of handovers, and of a block besides, in microseconds.
        blocks_us: Times of the next blocks, in place of those, in microseconds.
        fails: Failure of the gang by request.
        ticks: Clock ticks that are used at every look, though the ranks are frozen.
        segments: TCP segments, as in `CandidateGang.frozen_segments`.
        output: Output of the ranks.
        delays_us: Microseconds that rank 0 waits for a processor in the next blocks; 0 in later ones.
        timeout_s: Deadline in seconds, as in `CandidateGang`.
        settings: Settings of the blocks that it ran.
    """

    log: list[str]
    call_us: float = 50.0
    handover_us: float = 0.0
    block_us: float = 0.0
    blocks_us: list[float] = field(default_factory=list)
    fails: dict[str, GangFailed] = field(default_factory=dict)
    ticks: int = 0
    segments: int = 0
    output: str = ""
    timeout_s: float = 0.0
    job: Job | None = None
    source: str = ""
    settings: list[BlockSetting] = field(default_factory=list)
    reports: list[ProfileDone] = field(default_factory=list)
    delays_us: list[float] = field(default_factory=list)
    _delay_ns: int = 0
    _used: int = 0

    def __enter__(self) -> FakeCandidateGang:
        self.log.append("gang begins")
        return self

    def __exit__(self, *_: object) -> None:
        self.log.append("gang ends")

    def _note(self, what: str, more: object = "") -> None:
        self.log.append(f"{what} {more}".strip())
        if what in self.fails:
            raise self.fails[what]

    def _block_ns(self, calls: int, call_us: float, *, handovers: bool) -> int:
        block_us = self.block_us + calls * call_us + (calls + 1) * self.handover_us * handovers
        return round(1e3 * (self.blocks_us.pop(0) if self.blocks_us else block_us))

    def map_heap(self, dialect: Dialect, heap: FakeHeap, handovers: HandoverEnds) -> None:
        self._note("map", dialect)

    def load(self, job: Job, artifact: Artifact, source: str) -> None:
        self.job, self.source = job, source
        self._note("load", f"in {self.timeout_s:g} s")

    @property
    def pidfds(self) -> list[int]:
        return []

    def output_of(self, rank: int) -> str:
        return self.output

    def thaw(self) -> None:
        self._note("thaw")

    def kill(self) -> None:
        self._note("kill")

    def loopback_bytes(self) -> int:
        return 0

    def frozen_segments(self) -> int:
        return self.segments

    def bind(self, plan: BlockPlan) -> None:
        self._note("bind", len(plan.sets))

    def arm(self, sets: Sequence[int], setting: BlockSetting) -> None:
        self._note("arm", len(sets))

    def run(
        self, sets: Sequence[int], stage: Callable[[], object], setting: BlockSetting
    ) -> tuple[int, list[Sequence[Claims]]]:
        return self.run_armed(sets, stage, setting)

    def run_armed(
        self, sets: Sequence[int], stage: Callable[[], object], setting: BlockSetting
    ) -> tuple[int, list[Sequence[Claims]]]:
        stage()
        self.settings.append(setting)
        self._note("candidate", f"{len(sets)} in {self.timeout_s:g} s")
        self._delay_ns = round(1e3 * self.delays_us.pop(0)) if self.delays_us else 0
        nanoseconds = self._block_ns(len(sets), self.call_us, handovers=setting.handovers != "none")
        return nanoseconds, [((),) * len(sets)] * WORLD_SIZE

    def profile(
        self, sets: Sequence[int], stage: Callable[[], object], link_bytes_per_s: float | None
    ) -> list[ProfileDone]:
        stage()
        self._note("profile", f"{list(sets)} in {self.timeout_s:g} s")
        return self.reports

    def run_on(self, seconds: float) -> None:
        self._note("run on", f"{seconds:g} s")

    def run_null_block(self, order: RunNullBlock, stage: Callable[[], object]) -> int:
        stage()
        self._note("null block of the candidate", f"{order.calls} {order.handovers}")
        return self._block_ns(order.calls, 0, handovers=order.handovers != "none")

    @property
    def run_delays_ns(self) -> tuple[int, ...]:
        return (self._delay_ns, *(0,) * (WORLD_SIZE - 1))

    def processor_ticks(self) -> int:
        self._used += self.ticks
        return self._used


class Bench:
    """A `CandidateRun` on two fake gangs; `log` holds what they were asked. Arguments as `builder` takes them."""

    def __init__(self, **requested: Any) -> None:
        self.log: list[str] = []
        self.reference = FakeReferenceGang(self.log, device="cuda" if requested.get("gpus") else "cpu")
        self.candidate = FakeCandidateGang(self.log)
        self.artifact = ARTIFACT
        self.feedback = builder(**requested)

    def run(self) -> CandidateRun:
        gangs: Any = (self.reference, lambda: self.candidate, FakeLibraries())
        return CandidateRun(self.feedback, self.artifact, *gangs, b"key")

    def logged(self, *words: str) -> list[str]:
        """The entries of the log that begin with one of these words."""
        return [entry for entry in self.log if entry.startswith(words)]


def builder(
    *,
    gpus: int = 0,
    source: str = KERNEL,
    language: Language | None = None,
    problem: Problem = PROBLEM,
    **settings: Any,
) -> FeedbackBuilder:
    """Of an evaluation at size tiny on two ranks, whose timing no budget ends but a test's own."""
    device = "cuda" if gpus else "cpu"
    parsed = Source.parse(source, device, language or "auto")
    config = resolve(
        EvalConfig(device=device, **{"size": "tiny", "world_size": WORLD_SIZE, "timing_budget_s": 1e6, **settings}),
        problem,
        device=device,  # type: ignore[arg-type]
        language=parsed.language,
        memory_total_bytes=64 << 30,
        gpus=gpus,
    )
    return FeedbackBuilder(problem, parsed, config, ENVIRONMENT)


PYTHON = reference_source(PROBLEM)
"""A source of the python dialect."""
