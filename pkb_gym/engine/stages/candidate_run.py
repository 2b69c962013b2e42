"""One compiled candidate with the machine to itself: prepare a block, run it, compare its outputs, freeze.

Every call, checked or timed, gets inputs that were never used before, and every output is compared with the baseline's
from the same inputs. Whenever the baseline runs or outputs are compared, the candidate is frozen.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Self, cast

from pkb_gym.engine.compare.check import merge
from pkb_gym.engine.compare.layout import BlockPlan, Workload, align
from pkb_gym.engine.compile.library_headers import is_started
from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.gangs.candidate_gang import CandidateGang, Job
from pkb_gym.engine.gangs.candidate_ranks import CandidateRanks
from pkb_gym.engine.gangs.crash_trace import without_traces
from pkb_gym.engine.gangs.failure_attribution import GangFailed
from pkb_gym.engine.gangs.handover_ends import HandoverEnds, HandoverLibraries
from pkb_gym.engine.gangs.reference_gang import ReferenceGang
from pkb_gym.engine.problem.drawn_together import CALLS_DRAWN_TOGETHER
from pkb_gym.engine.records.artifact import Artifact
from pkb_gym.engine.records.check_report import CheckReport
from pkb_gym.engine.records.config import ResolvedConfig
from pkb_gym.engine.records.feedback import LAST_OUTPUT, Failure
from pkb_gym.engine.reference.orders import BlockEnded, LateOutput
from pkb_gym.engine.stages import integrity
from pkb_gym.engine.stages.block_staging import BlockStaging, Pace, plain
from pkb_gym.engine.stages.crash_places import crash_places, note_on, uncaught_exception
from pkb_gym.engine.stages.feedback_builder import FeedbackBuilder, Stopped
from pkb_gym.engine.stages.heap_layout import lay_out
from pkb_gym.engine.stages.observer import NoObserver, RunObserver
from pkb_gym.engine.stages.recurring_calls import recurring
from pkb_gym.engine.wire.abi import MAX_GROUPS
from pkb_gym.engine.wire.orders import Claims, Dialect, ProfileDone

DEADLINE_BASELINES = 30
"""A block's deadline is at least this many times what the baseline takes for it."""


MAX_SKIPPED = 16
"""Trials in a row that are passed over because one call's tensors do not fit into the heap."""


@dataclass(frozen=True)
class FinishedBlock:
    """A block of the candidate that has ended.

    Attributes:
        plan: Plan of the block's calls.
        nanoseconds: Time of the block by the evaluator's clock, in nanoseconds.
        done: Claims per rank and call.
        ended: Observations of the handovers, per rank.
    """

    plan: BlockPlan
    nanoseconds: int
    done: Sequence[Sequence[Claims]]
    ended: Sequence[BlockEnded]

    @property
    def late(self) -> list[tuple[int, LateOutput]]:
        """Ranks, and their outputs that have changed after their call had finished there; earlier calls first."""
        return _by_call([(rank, output) for rank, ended in enumerate(self.ended) for output in ended.late])

    @property
    def early(self) -> list[tuple[int, LateOutput]]:
        """Ranks, and their outputs that were not final when the rank asked for its next call; likewise."""
        return _by_call([(rank, output) for rank, ended in enumerate(self.ended) for output in ended.early])


def _by_call(found: list[tuple[int, LateOutput]]) -> list[tuple[int, LateOutput]]:
    return sorted(found, key=lambda one: (one[1].call, one[0]))


class CandidateRun:
    """A candidate's gang beside the reference gang; a context manager that ends the former.

    Args:
        feedback: Builder that receives the reports.
        artifact: Compiled candidate.
        reference: Reference gang of the device and world size.
        new_gang: Context manager that lends a gang for the candidate, fresh or prepared, and ends it afterwards.
        libraries: Compiled handovers.
        key: Secret key of the evaluator.
        stack_trace: Library that records the call stack of a crashed rank; None for none.

    Attributes:
        feedback: Builder that receives the reports.
        artifact: Compiled candidate.
        reference: Reference gang of the device and world size.
        observer: Observer of this run; does nothing by default.
        workload: Workload of the evaluation.
        layout: Layout of the heaps.
        right_trials: Trials of the last checked block with values of their own, if all of its outputs were right.
    """

    def __init__(
        self,
        feedback: FeedbackBuilder,
        artifact: Artifact,
        reference: ReferenceGang,
        new_gang: Callable[[], AbstractContextManager[CandidateRanks]],
        libraries: HandoverLibraries,
        key: bytes,
        stack_trace: bytes | None = None,
    ) -> None:
        config = feedback.config
        self.feedback, self.artifact, self.reference = feedback, artifact, reference
        self.observer: RunObserver = NoObserver()
        self._stack_trace = stack_trace
        self.workload = Workload(
            problem=feedback.problem,
            size=config.size_argument,
            world_size=config.world_size,
            dtype=config.dtype,
            protocol=config.protocol,
            key=key,
            seed=config.seed,
            turn=config.turn,
            source_sha256=feedback.source.sha256,
            nonce=feedback.nonce,
        )
        self.layout = lay_out(self.workload.problem, config)
        self.right_trials: Sequence[int] = ()
        self._next_trial = self._checked_end = 0
        self._armed: BlockPlan | None = None
        with contextlib.ExitStack() as stack:
            _, self._heap = stack.enter_context(reference.heaps(self.layout.segment_bytes))
            self._gang = stack.enter_context(new_gang())
            ends = self._ends = stack.enter_context(HandoverEnds(config.world_size, libraries))
            source = Path(self.workload.problem.declared_in).with_name("reference.py").read_text(encoding="utf-8")
            processes: Sequence[tuple[int, ...]] = [(pidfd,) for pidfd in self._gang.pidfds] or [()] * config.world_size
            rank_fds = [(*pair, *process) for pair, process in zip(ends.eventfds, processes, strict=True)]
            reference.take(self.workload, source, self.layout.scratch_bytes, self.layout.segment_bytes, rank_fds)
            stack.callback(self._release)
            self._gang.map_heap(self.dialect, self._heap, ends)
            self._gang.timeout_s = config.timeout_s
            self._resources = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.feedback.output = without_traces(self._gang.output)
        self._resources.close()

    def _release(self) -> None:
        with contextlib.suppress(InfrastructureError):
            self.reference.release()

    @property
    def config(self) -> ResolvedConfig:
        """The configuration of the evaluation."""
        return self.feedback.config

    @property
    def dialect(self) -> Dialect:
        """The dialect of the candidate."""
        return self.config.dialect

    @property
    def gang(self) -> CandidateGang:
        """The candidate's gang, for what is measured on it alone; emulated ranks are not measured."""
        return cast("CandidateGang", self._gang)

    def prepare_armed(self, calls: int, staging: BlockStaging) -> BlockPlan:
        """Draws fresh inputs for a timed block, as `prepare`, and meanwhile has the candidate come to its gate.

        The candidate stands frozen there until `run` is called with that block and that staging. It has seen where its
        arguments will lie, and nothing of what they will hold.

        Raises:
            InfrastructureError: this machine fails, see `prepare`.
            Stopped: a rank fell.
        """
        self._begin_batch()  # whose numbers no other block of the candidate has
        plan = self._next_plan(calls, timed=True)
        self._begin_batch()
        with self.reference.making(plan, timed=True), self._failures():
            try:
                self._watch_frozen()
                self._gang.thaw()
                self._gang.bind(plan)
                self.gang.arm(range(len(plan.sets)), staging.setting)
            except GangFailed:
                self._gang.kill()
                raise
        self._armed = plan
        return plan

    def prepare(self, calls: int, *, timed: bool, earlier: BlockPlan | None = None) -> BlockPlan:
        """Draws fresh inputs for a block; fewer calls than asked for if these do not fit into the heap together.

        A trial whose tensors do not fit by themselves is passed over.

        Args:
            calls: Number of calls that are asked for.
            timed: Whether the block serves timing.
            earlier: Checked block to whose places and values this one returns, see `recurring`, if one of its calls has
                room there; None for none.

        Raises:
            InfrastructureError: `MAX_SKIPPED` trials in a row do not fit, or the reference gang failed.
        """
        plan = self._next_plan(calls, timed=timed, earlier=earlier)
        self.reference.make(plan, timed=timed)
        return plan

    def _next_plan(self, calls: int, *, timed: bool, earlier: BlockPlan | None = None) -> BlockPlan:
        for _ in range(MAX_SKIPPED):
            plan = self._plan_as_many(calls, timed, earlier)
            if plan is not None:
                self._next_trial += len(plan.sets)
                self._checked_end = max(self._checked_end, 0 if timed else plan.end)
                return plan
            self._next_trial += 1
        needed, room = self._plan(range(self._next_trial, self._next_trial + 1), timed).end, self.layout.segment_bytes
        raise InfrastructureError(f"one call needs {needed} bytes a rank, the heap has {room}")

    def _begin_batch(self) -> None:
        """Passes over the trials whose inputs are drawn together with those of earlier ones, see `DrawnTogether`."""
        self._next_trial = align(self._next_trial, CALLS_DRAWN_TOGETHER)

    def _plan_as_many(self, calls: int, timed: bool, earlier: BlockPlan | None) -> BlockPlan | None:
        """A block of the next trials, at most so many; None if not even the first fits."""
        room = self.layout.segment_bytes
        fewer = calls
        while fewer:
            plan = self._plan(range(self._next_trial, self._next_trial + fewer), timed, earlier)
            if len(plan.partitions) > MAX_GROUPS:
                fewer -= 1
            elif plan.end > room:
                fewer = min(fewer - 1, max(1, fewer * room // plan.end))
            else:
                return plan
        return None if earlier is None else self._plan_as_many(calls, timed, None)

    def prepare_again(self, plan: BlockPlan, *, timed: bool) -> None:
        """The inputs of an earlier block at the same places, to see what comes of them under other conditions."""
        self.reference.make(plan, timed=timed)

    def prepare_elsewhere(self, trials: Sequence[int], *, timed: bool) -> BlockPlan:
        """The inputs of earlier trials once more; at other places than before if another trial comes first."""
        plan = self._plan(trials, timed)
        self.reference.make(plan, timed=timed)
        return plan

    def prepare_alone(self, trial: int, offset: int | None = None) -> BlockPlan | None:
        """The inputs of an earlier checked call once more, as a block of one call.

        Args:
            trial: Trial index of the call; all of its values are those of its own.
            offset: Place in bytes; None for one that no checked call had.

        Returns:
            The plan of the block; None if there is no room for it.
        """
        place = self._checked_end if offset is None else offset
        plan = self.workload.plan([trial], False, self.layout.scratch_bytes, offsets=[place])
        if plan.end > self.layout.segment_bytes:
            return None
        self._checked_end = max(self._checked_end, plan.end)
        self.reference.make(plan, timed=False)
        return plan

    def _plan(self, trials: Sequence[int], timed: bool, earlier: BlockPlan | None = None) -> BlockPlan:
        scratch_bytes, segment_bytes = self.layout.scratch_bytes, self.layout.segment_bytes
        plan = self.workload.plan(trials, timed, scratch_bytes, segment_bytes)
        if earlier is None:
            return plan
        offsets, recurrences = recurring(plan.sets, earlier, self.config.world_size)
        return self.workload.plan(trials, timed, scratch_bytes, segment_bytes, offsets, recurrences)

    def load(self, *, gsan_seed: int | None = None) -> None:
        """Loads the candidate on every rank.

        Args:
            gsan_seed: Seed of Triton's GSan, as in `Load`; None to run the candidate as it is.

        Raises:
            Stopped: it could not be loaded.
        """
        job = Job(
            self.workload.problem,
            self.dialect,
            self.layout.scratch_bytes,
            self.config.memory_bytes,
            self._stack_trace,
            gsan_seed,
        )
        self.feedback.has_loaded = True
        with self._failures():
            self._gang.load(job, self.artifact, self.feedback.source.text)

    def run(self, plan: BlockPlan, sets: Sequence[int], staging: BlockStaging) -> FinishedBlock:
        """Calls the candidate once on each of these sets of a block, then freezes it.

        Raises:
            Stopped: a rank fell, the deadline passed, calls went on without their handovers or asked for them before
                their outputs were there, or a rank wrote outside of tensors and scratch.
        """
        is_armed, self._armed = self._armed is plan, None
        self._watch_frozen()
        with self._failures():
            if not is_armed:
                self._gang.thaw()
                self._gang.bind(plan)
            run = self.gang.run_armed if is_armed else self._gang.run
            with self._ended_block() as ended, self._watched_network():
                nanoseconds, done = run(sets, lambda: self.reference.stage(staging.orders), staging.setting)
            for rank, of_rank in enumerate(ended):
                if not of_rank.complete:
                    raise GangFailed(Failure.INTEGRITY, rank, f"rank {rank} went on without waiting for its arguments")
            _check_bounds(ended)
        finished = FinishedBlock(plan, nanoseconds, done, ended)
        self._check_requests(finished)
        return finished

    def _watch_frozen(self) -> None:
        """Looks for traffic of the ranks since they were frozen."""
        self.feedback.suspect(integrity.frozen_traffic(self._gang.frozen_segments(), self.config.world_size))

    def _check_requests(self, finished: FinishedBlock) -> None:
        """Looks for outputs that were written between the request of the next handover and that handover.

        A kernel whose outputs come after the handover too is a race, as its receipts show.
        """
        if finished.early and not finished.late:
            rank, output = finished.early[0]
            finding = integrity.early_request(rank, output)
            self.feedback.suspect(finding)
            raise self.feedback.stop(Failure.INTEGRITY, finding[0].detail, rank)

    @contextlib.contextmanager
    def _watched_network(self) -> Iterator[None]:
        """Calls that have used the network have called a library for it, whatever the text looks like.

        NVSHMEM and NCCL do where ranks ask them for memory, too.
        """
        before = self._gang.loopback_bytes()
        yield
        if self._gang.loopback_bytes() > before and not is_started(self.feedback.source.text):
            self.feedback.calls_torch_distributed = True

    @contextlib.contextmanager
    def _ended_block(self) -> Iterator[list[BlockEnded]]:
        """Ends what has been staged, whatever became of the candidate; the list is filled at the end."""
        ended: list[BlockEnded] = []
        try:
            yield ended
        except GangFailed:
            self._gang.kill()  # threads of its other ranks would go on
            raise
        finally:
            if self.reference.has_staged:
                self._ends.drain()
                ended += self.reference.end_block()

    def profile(self, plan: BlockPlan, sets: Sequence[int], link_bytes_per_s: float | None) -> list[ProfileDone]:
        """Runs a block under the profiler and returns each rank's report."""
        staging = plain(self.config.world_size)
        with self._failures():
            self._gang.thaw()
            self._gang.bind(plan)
            with self._ended_block():
                return self.gang.profile(sets, lambda: self.reference.stage(staging.orders), link_bytes_per_s)

    def compare(self, done: Sequence[Sequence[Claims]]) -> CheckReport:
        """The outputs of the last block as they lie in the heap now, against the baseline's."""
        return merge(self.reference.compare(done, self.dialect), len(done[0]))

    def go_on(self, seconds: float) -> None:
        """Lets the frozen candidate run for a while.

        Raises:
            Stopped: it cannot be frozen again.
        """
        with self._failures():
            self._gang.run_on(seconds)

    def pace(self, call_us: float) -> Pace:
        """The pace of the machine, as the last block of the reference gang has shown it.

        Args:
            call_us: Time of one call, as in `Pace`.
        """
        return Pace(call_us, self.reference.idle_us or 0.0)

    def processor_ticks(self) -> int:
        """Processor time of the candidate so far, in clock ticks."""
        return self._gang.processor_ticks()

    def allow(self, baseline_ns: float, more_s: float = 0.0) -> None:
        """Sets the candidate's deadline, longer where the baseline itself takes long.

        Args:
            baseline_ns: Time of the same block of the baseline, in nanoseconds.
            more_s: Time in seconds that is added to the limit for the calls.
        """
        limit_s = max(self.config.timeout_s, DEADLINE_BASELINES * baseline_ns * 1e-9)
        self._gang.timeout_s = limit_s + more_s

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        """Turns a failed gang into the failure that is reported."""
        try:
            yield
        except GangFailed as failed:
            raise self._stopped(failed) from None

    def _stopped(self, failed: GangFailed) -> Stopped:
        output = without_traces(self._gang.output).strip()
        tail = f"{LAST_OUTPUT}{output[-2000:]}" if output else ""
        if failed.failure is Failure.INTEGRITY:
            self.feedback.suspect(integrity.tampering(str(failed)))
        written = [self._gang.output_of(rank) for rank in range(self.config.world_size)]
        places = crash_places(self.artifact.binary, written)
        message = "\n".join(filter(None, [str(failed), note_on(str(failed)), uncaught_exception(written), places]))
        return self.feedback.stop(failed.failure, f"{message}{tail}", failed.rank, killed=failed.killed)


def _check_bounds(ended: Sequence[BlockEnded]) -> None:
    """Looks for writes outside of tensors and scratch.

    Raises:
        GangFailed: there was one; it names the first, in order of their places.
    """
    found = [(overrun.call, rank, overrun) for rank, of_rank in enumerate(ended) for overrun in of_rank.overruns]
    if found:
        call, rank, overrun = min(found, key=lambda one: (-1 if one[0] is None else one[0], one[1]))
        in_call = "" if call is None else f" in call {call}"
        what = f"{overrun} of rank {rank} were overwritten{in_call}, by rank {rank} or a peer"
        raise GangFailed(Failure.RUNTIME_ERROR, rank, f"{what}: no tensor lies there")
