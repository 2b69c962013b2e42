"""One candidate with the machine to itself: run, check, time, profile.

Every call, checked or timed, gets inputs that were never used before, and every output is compared with the baseline's
from the same inputs. Whenever the baseline runs or outputs are compared, the candidate is frozen.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Self

from pkb_gym.engine.compare.check import RankCheck, merge
from pkb_gym.engine.compare.layout import PAGE_BYTES, BlockPlan, Workload, align, delivered_leaves
from pkb_gym.engine.errors import ConfigError, InfrastructureError
from pkb_gym.engine.hardware import gpus, lookup
from pkb_gym.engine.ranks.candidate_gang import CandidateGang, Job, claims
from pkb_gym.engine.ranks.failure_attribution import GangFailed
from pkb_gym.engine.ranks.reference_gang import ReferenceGang
from pkb_gym.engine.rankside.abi import MAX_GROUPS, MAX_RANKS
from pkb_gym.engine.records.artifact import Artifact
from pkb_gym.engine.records.feedback import Block, CheckReport, Failure, Stage
from pkb_gym.engine.records.roofline import place
from pkb_gym.engine.stages import integrity, overhead, timing_statistics
from pkb_gym.engine.stages.baseline_cache import Known
from pkb_gym.engine.stages.feedback_builder import Findings
from pkb_gym.engine.stages.profile import MAX_CALLS as MAX_PROFILED_CALLS
from pkb_gym.engine.stages.profile import make_profile
from pkb_gym.engine.stages.progress import Progress

CPU_BLOCK_BYTES, GPU_BLOCK_BYTES = 512 << 20, 2 << 30
"""Room for the argument sets of one block: of all ranks together, which share a memory, or of each GPU."""

MIN_SCRATCH_BYTES = 16 << 20
ALONE_CALLS = 2
"""Calls of the baseline that are timed before the candidate is loaded."""

PROFILER_START_S = 20.0
"""What a profiler may take to start and to tell what it saw, beyond the deadline of the calls."""

LATE_S = 0.2
"""How long a gang with wrong outputs may go on, to see whether it was merely late."""

DEADLINE_BASELINES = 30
"""A block's deadline is at least this many times what the baseline takes for it."""


class Session:
    """Judges one compiled candidate; a context manager that ends its gang.

    Args:
        findings: where reports go.
        artifact: what to load.
        reference: the reference gang of the device and world size.
        new_gang: lends a gang for the candidate, started at once or before, and ends it afterwards.
        quiet: held while anything is timed, so that nothing else touches the devices.
        key: the evaluator's secret.
        known: what was measured before; what is measured is added.
        say: told of each stage.
    """

    def __init__(
        self,
        findings: Findings,
        artifact: Artifact,
        reference: ReferenceGang,
        new_gang: Callable[[], AbstractContextManager[CandidateGang]],
        quiet: AbstractContextManager[object],
        key: bytes,
        known: Known,
        say: Progress,
    ) -> None:
        config = findings.config
        self._findings, self._artifact, self._reference, self._say = findings, artifact, reference, say
        self._native = artifact.binary is not None
        self._workload = Workload(
            problem=findings.problem,
            size=config.axes_asked,
            world_size=config.world_size,
            dtype=config.dtype,
            protocol=config.protocol,
            key=key,
            seed=config.seed,
            turn=config.turn,
        )
        self._segment_bytes = 0
        self._next_trial = 0
        self._gate_us = self._entry_us = 0.0
        self._frozen_ticks = 0
        self._stack = contextlib.ExitStack()
        self._new_gang, self._quiet, self._known = new_gang, quiet, known

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._lay_out()
            _, self._heap = stack.enter_context(self._reference.heaps(self._segment_bytes))
            self._segment_bytes = self._heap.segment_bytes
            self._candidate = stack.enter_context(self._new_gang())
            self._candidate.timeout_s = self._findings.config.timeout_s
            declaration = Path(self._workload.problem.declared_in)
            source = declaration.with_name("reference.py").read_text(encoding="utf-8")
            self._reference.take(self._workload, declaration, source, self._scratch_bytes)
            stack.callback(self._release)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._findings.output = self._candidate.output
        self._stack.close()

    def _release(self) -> None:
        with contextlib.suppress(InfrastructureError):
            self._reference.release()

    def _lay_out(self) -> None:
        """Sizes the heap: scratch by the size of one call's tensors, then as many calls as fit the room for a block."""
        check = self._workload.plan(range(self._findings.config.trials), False, 0)
        timed = self._workload.plan([0], True, 0).sets[0]
        if self._workload.world_size > MAX_RANKS or len(check.partitions) > MAX_GROUPS:
            raise InfrastructureError(f"more than {MAX_RANKS} ranks or {MAX_GROUPS} groups")
        self._scratch_bytes = align(max(MIN_SCRATCH_BYTES, 2 * timed.nbytes), PAGE_BYTES)
        on_gpus = self._findings.config.device == "cuda"
        room = GPU_BLOCK_BYTES if on_gpus else CPU_BLOCK_BYTES // self._workload.world_size
        self._most_calls = max(1, room // (timed.nbytes or 1))
        # A timed set may be a little larger than the first where sizes differ from trial to trial.
        most_calls = min(self._most_calls, timing_statistics.MAX_CALLS)
        block = max(check.end, most_calls * (timed.nbytes + timed.nbytes // 4 + PAGE_BYTES))
        self._segment_bytes = align(self._scratch_bytes + block + (1 << 20), PAGE_BYTES)

    def run(self) -> None:
        """Runs the stages that were asked for.

        Raises:
            Stopped: the candidate failed; the findings say how.
            InfrastructureError: this machine failed.
        """
        findings, config = self._findings, self._findings.config
        with findings.stage(Stage.CHECK, self._say):
            alone_us, candidate_us = self._check()
        if config.until == "check":
            return
        with findings.stage(Stage.TIME, self._say), _machine_to_itself(), self._quiet:
            self._time(alone_us, candidate_us)
            self._place()
        if config.until == "profile" and not findings.failed:
            with findings.stage(Stage.PROFILE, self._say), self._quiet:
                self._profile()
        if config.device == "cuda" and not findings.failed:
            self._time_as_graphs()

    def _check(self) -> tuple[float, float]:
        """Loads the candidate and compares its outputs on fresh inputs.

        Returns:
            Microseconds a call of the baseline, alone on the machine, and roughly of the candidate.
        """
        alone_us = self._baseline_alone()
        if self._findings.config.device == "cuda" and self._findings.config.until != "check":
            case = (self._workload.world_size, self._native)
            self._entry_us = self._known.entry_us(case, lambda: overhead.entry_us(self._reference, self._candidate))
        trials = self._findings.config.trials
        plan = self._prepare(trials, timed=False)
        baseline_ns = self._reference.run(trials, native=self._native)
        self._allow(baseline_ns)
        try:
            job = Job(self._workload.problem, self._heap, self._scratch_bytes, self._findings.config.memory_bytes)
            self._candidate.load(job, self._artifact, self._findings.source)
            self._candidate.bind(plan)
            candidate_ns, done = self._candidate.run(range(trials), self._reference.stage)
        except GangFailed as failed:
            raise self._failed(failed) from None
        self._findings.complete(Stage.RUN)
        report = self._compare(done, trials)
        self._findings.check = report
        if not report.passed:
            raise self._mismatched(report, done)
        return alone_us, candidate_ns / trials / 1e3

    def _baseline_alone(self) -> float:
        """What a call of the baseline takes, in microseconds, while there is no candidate yet."""
        calls = len(self._prepare(min(ALONE_CALLS, self._most_calls), timed=True).sets)
        if self._findings.config.device == "cuda":  # where the first call makes groups and loads kernels
            self._reference.warm(calls)
            calls = len(self._prepare(calls, timed=True).sets)
        return self._reference.run(calls, native=self._native) / calls / 1e3

    def _allow(self, baseline_ns: float) -> None:
        """Lengthens the candidate's deadline where the baseline itself takes long."""
        limit_s = DEADLINE_BASELINES * baseline_ns * 1e-9
        self._candidate.timeout_s = max(self._findings.config.timeout_s, limit_s)

    def _prepare(self, calls: int, *, timed: bool) -> BlockPlan:
        """Draws fresh inputs for a block; fewer calls than asked for if these sets are unusually large."""
        while True:
            trials = range(self._next_trial, self._next_trial + calls)
            plan = self._workload.plan(trials, timed, self._scratch_bytes)
            if plan.end <= self._segment_bytes:
                break
            if calls == 1:
                raise InfrastructureError(f"one call needs {plan.end} bytes a rank, the heap has {self._segment_bytes}")
            calls //= 2
        self._next_trial += calls
        self._reference.make(trials, timed=timed)
        return plan

    def _compare(self, done: list[dict[str, object]], calls: int) -> CheckReport:
        checks: list[RankCheck] = self._reference.compare(claims(done, calls), native=self._native)
        return merge(checks, calls)

    def _failed(self, failed: GangFailed) -> Exception:
        output = self._candidate.output.strip()
        said = f"\nlast output:\n{output[-2000:]}" if output else ""
        if failed.failure is Failure.INTEGRITY:
            self._findings.suspect(integrity.tampering(str(failed)))
        return self._findings.stop(failed.failure, f"{failed}{said}", failed.rank)

    def _mismatched(self, report: CheckReport, done: list[dict[str, object]]) -> Exception:
        first = report.mismatches[0]
        text = "\n".join(map(str, report.mismatches))
        if first.reason == "values" and self._becomes_right(done):
            late = integrity.late_output(first)
            self._findings.suspect(late)
            return self._findings.stop(Failure.INTEGRITY, f"{late[0].detail}\n{text}", first.rank)
        failure = {
            "shape_or_dtype": Failure.WRONG_SHAPE_OR_DTYPE,
            "values": Failure.OUTPUT_MISMATCH,
            "input_modified": Failure.INPUT_MODIFIED,
        }[first.reason]
        return self._findings.stop(failure, text, first.rank)

    def _becomes_right(self, done: list[dict[str, object]]) -> bool:
        """Whether wrong outputs turn right once the gang may go on: work that was put off past the clock."""
        self._candidate.thaw()
        time.sleep(LATE_S)
        try:
            self._candidate.freeze()
        except GangFailed as failed:
            raise self._failed(failed) from None
        return self._compare(done, self._findings.config.trials).passed

    def _time(self, alone_us: float, candidate_us: float) -> None:
        """Times alternating blocks until the interval is tight or the budget is spent."""
        config = self._findings.config
        began = time.monotonic()
        self._gate_us = overhead.gate_us(self._reference, native=self._native)
        blocks: list[Block] = []
        calls = timing_statistics.calls_per_block(alone_us, candidate_us, self._most_calls)
        warm = self._pair(calls, baseline_first=True)  # not counted
        baseline_us = timing_statistics.further_us(ALONE_CALLS, alone_us, warm.calls, warm.baseline_us)
        calls = timing_statistics.calls_per_block(baseline_us, warm.candidate_us, self._most_calls)
        self._allow(warm.baseline_us * 1e3 * calls)
        if config.protocol == "published":
            self._warm_up_as_published(warm.baseline_us, calls)
        while not self._timed_enough(blocks, began):
            blocks.append(self._pair(calls, baseline_first=len(blocks) % 2 == 0))
        delivers = any(
            delivered_leaves(self._workload.problem, ax, "native" if self._native else "python")
            for ax in self._workload.axes(0, True)
        )
        self._findings.timing = timing_statistics.summarise(
            blocks,
            protocol=config.protocol,
            gate_us=self._gate_us,
            entry_us=self._entry_us if config.device == "cuda" else None,
            baseline_alone_us=alone_us,
            delivers=delivers,
        )

    def _timed_enough(self, blocks: list[Block], began: float) -> bool:
        config = self._findings.config
        if config.protocol == "published":
            return sum(block.calls for block in blocks) >= timing_statistics.PUBLISHED_TIMED_CALLS
        spent = time.monotonic() - began >= config.timing_budget_s
        return (
            len(blocks) >= timing_statistics.MAX_BLOCKS[config.device]
            or (len(blocks) >= 3 and spent)
            or timing_statistics.is_tight(blocks)
        )

    def _pair(self, calls: int, *, baseline_first: bool) -> Block:
        """One block of each side on the same fresh inputs; the candidate's outputs are compared.

        Raises:
            Stopped: the candidate failed.
        """
        plan = self._prepare(calls, timed=True)
        calls = len(plan.sets)
        baseline_ns = self._baseline(calls) if baseline_first else 0
        try:
            self._candidate.thaw()
            self._candidate.bind(plan)
            candidate_ns, done = self._candidate.run(range(calls), self._reference.stage)
        except GangFailed as failed:
            raise self._failed(failed) from None
        self._suspect_busy_gpu()  # as staging found it: before the clock, a candidate has nothing to run
        if not baseline_first:
            baseline_ns = self._baseline(calls)
        report = self._compare(done, calls)
        if not report.passed:
            self._findings.suspect(integrity.timed_outputs(report))
            raise self._findings.stop(Failure.INTEGRITY, f"wrong while timed: {report.mismatches[0]}")
        return Block(
            calls=calls,
            baseline_us=timing_statistics.per_call_us(baseline_ns, calls, self._gate_us),
            candidate_us=timing_statistics.per_call_us(candidate_ns, calls, self._gate_us + self._entry_us),
        )

    def _baseline(self, calls: int) -> int:
        """Times the baseline beside the frozen candidate; returns nanoseconds."""
        before = self._candidate.processor_ticks()
        nanoseconds = self._reference.run(calls, native=self._native)
        ticks = self._candidate.processor_ticks() - before
        self._frozen_ticks += ticks
        self._findings.suspect(integrity.interference(ticks, self._frozen_ticks, self._workload.world_size))
        self._suspect_busy_gpu()
        return nanoseconds

    def _suspect_busy_gpu(self) -> None:
        """Kernels go on when their process is frozen."""
        if self._reference.idle_us is not None:
            self._findings.suspect(integrity.busy_gpu(self._reference.idle_us))

    def _warm_up_as_published(self, baseline_us: float, calls: int) -> None:
        """500 calls of each side whose results nobody looks at."""
        plan = self._prepare(calls, timed=True)
        sets = [call % len(plan.sets) for call in range(timing_statistics.PUBLISHED_WARMUP_CALLS)]
        self._allow(baseline_us * 1e3 * len(sets))
        self._reference.warm(len(sets))
        try:
            self._candidate.thaw()
            self._candidate.bind(plan)
            self._candidate.run(sets, self._reference.stage)
        except GangFailed as failed:
            raise self._failed(failed) from None

    def _place(self) -> None:
        """The roofline: the declared least work against what this machine can do."""
        timed = self._findings.timing
        assert timed is not None
        axes = self._workload.axes(0, True)
        costs = [self._workload.problem.cost(ax) for ax in axes]
        try:
            hardware = lookup.find_hardware(self._findings.config.device)
        except ConfigError:
            return  # a GPU whose peaks nobody has entered is no reason to lose what was measured
        roofline = place(costs, self._workload.dtype, hardware, timed.baseline_us, timed.candidate_us)
        self._findings.roofline = roofline
        self._findings.suspect(integrity.beats_roofline(roofline, timed))

    def _time_as_graphs(self) -> None:
        """Adds what the baseline takes as CUDA graphs; last of all, as breaking off a capture can cost a context."""
        timed, config = self._findings.timing, self._findings.config
        assert timed is not None
        case = (self._workload.problem.name, repr(config.size), config.world_size, config.dtype, config.protocol)
        if case not in self._known.graph_us:  # only then does anybody have to wait
            self._known.graph_us[case] = None
            # A fault at this costs the reference gang, and not what was found of the candidate.
            with contextlib.suppress(InfrastructureError), _machine_to_itself(), self._quiet:
                self._known.graph_us[case] = self._graph_time(timed.baseline_us)
        self._findings.timing = timed.model_copy(update={"baseline_graph_us": self._known.graph_us[case]})

    def _graph_time(self, baseline_us: float) -> float | None:
        """Microseconds a call of the baseline as graphs; None if it cannot be captured."""
        calls = len(self._prepare(min(timing_statistics.GRAPHS, self._most_calls), timed=True).sets)
        self._reference.warm(calls)
        if not self._reference.capture(calls):
            return None
        replays = timing_statistics.calls_per_block(baseline_us, baseline_us, timing_statistics.MAX_CALLS)
        blocks = [self._reference.replay(replays) for _ in range(timing_statistics.GRAPH_BLOCKS)]
        return timing_statistics.typical_us(
            [timing_statistics.per_call_us(block, replays, self._gate_us) for block in blocks]
        )

    def _profile(self) -> None:
        timed = self._findings.timing
        assert timed is not None
        plan = self._prepare(min(MAX_PROFILED_CALLS, timed.blocks[0].calls), timed=True)
        calls = len(plan.sets)
        on_gpus, world_size = self._findings.config.device == "cuda", self._findings.config.world_size
        sets = [0, *range(calls)] if on_gpus else range(calls)  # one call for the profiler to warm up
        self._candidate.timeout_s += PROFILER_START_S
        before = gpus.link_bytes(world_size) if on_gpus else ()
        try:
            self._candidate.thaw()
            self._candidate.bind(plan)
            order = {"link_bytes_per_s": lookup.gpu_link_bytes_per_s() if on_gpus and world_size > 1 else None}
            _, done = self._candidate.run(sets, self._reference.stage, profile=order)
        except GangFailed as failed:
            raise self._failed(failed) from None
        links = gpus.between(before, gpus.link_bytes(world_size)) if on_gpus else ()
        self._findings.profile = make_profile(
            calls,
            done,
            on_gpus=on_gpus,
            links=links,
            code=self._artifact.transfers,
            trace=self._findings.config.trace,
        )


@contextlib.contextmanager
def _machine_to_itself() -> Iterator[None]:
    """Keeps other evaluators of this machine from timing meanwhile.

    Locks the folder for temporary files itself, which leaves nothing behind and is let go of however this process ends.
    """
    fd = os.open(tempfile.gettempdir(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
