"""Stage time: baseline and candidate in alternating blocks, each on fresh inputs, each compared."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from pkb_gym.engine.compare.layout import BlockPlan, delivered_leaves
from pkb_gym.engine.hardware import host
from pkb_gym.engine.records.feedback import Stage
from pkb_gym.engine.records.timing import Block
from pkb_gym.engine.reference.orders import ServeHandovers
from pkb_gym.engine.stages import integrity
from pkb_gym.engine.stages import timing_statistics as statistics
from pkb_gym.engine.stages.baseline_cache import BaselineCache
from pkb_gym.engine.stages.block_staging import (
    BlockStaging,
    CallConditions,
    has_gpu_each,
    plain,
    served,
    with_congestion,
)
from pkb_gym.engine.stages.candidate_run import CandidateRun
from pkb_gym.engine.stages.machine_sharing import machine_to_itself
from pkb_gym.engine.stages.mismatch import failed_while_timed
from pkb_gym.engine.stages.null_blocks import measure_overhead
from pkb_gym.engine.stages.overhead import Overhead
from pkb_gym.engine.stages.progress import Progress
from pkb_gym.engine.stages.run_delays import RunDelays, TimedPair, counted

ALONE_CALLS = 2
"""Calls of the baseline that are timed before the candidate is loaded."""

CALLS_VARY = 0.25
"""Share by which the number of calls differs from block to block, so that no call knows whether another one follows."""

PATIENCE = 2
"""Times the timing budget that may pass on GPUs until enough pairs were not delayed by other work."""

SHORT_BLOCK = 0.5
"""Blocks of fewer calls than this share of what the candidate's best time asks for are not counted: a candidate that
is slow at first would otherwise make them short, which favours it."""

DISTURBED_SHARE, LAST_DISTURBED = 0.25, 2
"""Share of the pairs that a disturbed one follows, and the number of those that follow the last: a candidate that stops
waiting for its peers once it has been checked, at whatever call, meets some."""

CONGESTED_CALLS = 32
"""Number of calls in a row of a disturbed block that one rank is congested in, at most."""

DELAYED_CALLS = 3
"""Number of late calls of a disturbed block, on each rank."""

DELAYS_US = (50, 1000)
PULSES_US = 20_000


def baseline_alone_us(run: CandidateRun) -> float:
    """Time of one baseline call while there is no candidate yet, in microseconds."""
    calls = len(run.prepare(min(ALONE_CALLS, run.layout.most_calls), timed=True).sets)
    if run.config.device == "cuda":  # where the first call makes groups and loads kernels
        run.reference.warm_up(calls)
        calls = len(run.prepare(calls, timed=True).sets)
    return run.reference.run(calls, run.dialect) / calls / 1e3


def measured_overhead(
    run: CandidateRun,
    cache: BaselineCache,
    idle_devices: Callable[[], AbstractContextManager[None]],
    report: Progress,
) -> Overhead:
    """Overhead of a block on this machine, from the cache or measured before the candidate is loaded.

    Args:
        run: Run of the candidate.
        cache: Cache that keeps the overhead.
        idle_devices: Context manager that keeps the devices idle during the measurement.
        report: Callback that receives `WAITING` before a wait.
    """

    def measure() -> Overhead:
        turn = machine_to_itself(report, Stage.CHECK.value)
        with run.feedback.waiting_for(turn), run.feedback.waiting_for(idle_devices()):
            return measure_overhead(run.reference, run.gang)

    return cache.overhead((run.config.device, run.config.world_size, run.dialect), measure)


def time_blocks(run: CandidateRun, alone_us: float, candidate_us: float, overhead: Overhead) -> None:
    """Times alternating blocks until the interval is tight, the candidate clearly slow, or the budget spent.

    Args:
        run: Run of the checked candidate.
        alone_us: Time of one baseline call before the candidate was loaded, in microseconds.
        candidate_us: Rough time of one candidate call, in microseconds.
        overhead: Overhead of a block.

    Raises:
        Stopped: it fell, or an output is wrong.
        InfrastructureError: this machine failed.
    """
    began = time.monotonic()
    pairs = _Pairs(run, overhead, alone_us)
    calls = statistics.calls_per_block(run.config.device, alone_us, candidate_us, run.layout.most_calls)
    warm = pairs.time_pair(calls, baseline_first=True)  # not counted
    baseline_us = statistics.marginal_call_us(ALONE_CALLS, alone_us, warm.calls, warm.baseline_us)
    length = _BlockLength(run, baseline_us, warm)
    if run.config.protocol == "published":
        _warm_up_as_published(run, warm.baseline_us, length.calls)
    timed: list[TimedPair] = []
    while not _timed_enough(run, timed, began):
        block = pairs.time_pair(pairs.draw_calls(length.calls), baseline_first=len(timed) % 2 == 0)
        timed = length.long_enough([*timed, TimedPair(block, pairs.is_delayed)])
        if pairs.draws.random() < DISTURBED_SHARE:
            pairs.disturb_pair(pairs.draw_calls(length.calls))
    for _ in range(LAST_DISTURBED):
        pairs.disturb_pair(pairs.draw_calls(length.calls))
    run.feedback.timing = statistics.summarise(
        counted(timed),
        protocol=run.config.protocol,
        overhead=overhead,
        on_gpus=run.config.device == "cuda",
        baseline_alone_us=alone_us,
        delivered_bytes=max(
            sum(leaf.capacity_bytes for leaf in delivered_leaves(run.workload.problem, ax, run.dialect))
            for ax in run.workload.axes(0, True)
        ),
        delayed_pairs=sum(pair.is_delayed for pair in timed),
    )


def _timed_enough(run: CandidateRun, pairs: list[TimedPair], began: float) -> bool:
    blocks = counted(pairs)
    if run.config.protocol == "published":
        return sum(block.calls for block in blocks) >= statistics.PUBLISHED_TIMED_CALLS
    calm = sum(not pair.is_delayed for pair in pairs)
    waits = run.config.device == "cuda" and calm < min(len(pairs), statistics.MIN_BLOCKS)
    spent = time.monotonic() - began >= run.config.timing_budget_s * (PATIENCE if waits else 1)
    most = statistics.MAX_BLOCKS[run.config.device]
    return len(blocks) >= most or (len(blocks) >= statistics.MIN_BLOCKS and spent) or statistics.is_settled(blocks)


class _BlockLength:
    """The number of calls of a block, which grows with the best time that the candidate shows.

    Attributes:
        calls: Approximate number of calls in the next block.
    """

    def __init__(self, run: CandidateRun, baseline_us: float, warm: Block) -> None:
        self._run, self._baseline_us, self._warm = run, baseline_us, warm
        self.calls = 0
        self._follow(warm.candidate_us)

    def long_enough(self, pairs: list[TimedPair]) -> list[TimedPair]:
        """The pairs so far that are long enough, the last of which has just been timed."""
        self._follow(pairs[-1].block.candidate_us)
        return [pair for pair in pairs if pair.block.calls >= SHORT_BLOCK * self.calls]

    def _follow(self, candidate_us: float) -> None:
        run = self._run
        fitting = statistics.calls_per_block(run.config.device, self._baseline_us, candidate_us, run.layout.most_calls)
        if fitting > self.calls:
            self.calls = fitting
            run.allow(self._warm.baseline_us * 1e3 * fitting)


class _Pairs:
    """Times pairs of blocks, and watches what the candidate does while it is frozen.

    Attributes:
        draws: Random generator that the candidate cannot predict.
    """

    def __init__(self, run: CandidateRun, overhead: Overhead, baseline_us: float) -> None:
        self.draws = random.Random(run.workload.trial_key(0, True).derive_seed("blocks"))
        self._delays = RunDelays()
        self._run, self._overhead, self._baseline_us = run, overhead, baseline_us
        self._frozen_ticks = self._disturbed = 0

    @property
    def is_delayed(self) -> bool:
        """Whether other work delayed the last pair; ranks that are more than the processors delay each other."""
        return self._delays.is_delayed and self._run.config.world_size <= host.processors()

    def draw_calls(self, calls: int) -> int:
        """About so many."""
        fewer = max(1, round(calls * (1 - CALLS_VARY)))
        return min(self.draws.randint(fewer, max(fewer, 2 * calls - fewer)), self._run.layout.most_calls)

    def time_pair(self, calls: int, *, baseline_first: bool) -> Block:
        """One block of each side on the same fresh inputs; the candidate's outputs are compared."""
        world_size = self._run.config.world_size
        orders = [ServeHandovers()] * world_size
        staging = served(self._run.config.device, orders, self._overhead.pad_ns, None)
        return self._run_pair(calls, staging, baseline_first=baseline_first)

    def disturb_pair(self, calls: int) -> None:
        """Runs a pair of blocks that is not timed: some arguments arrive late, and one rank is slow at times.

        It is stopped, or on GPUs disturbed by kernels of another process and congested, by turns.
        """
        config, draws = self._run.config, self.draws
        victim = draws.randrange(config.world_size)
        on_gpus = config.device == "cuda"
        self._disturbed += 1
        congestions: tuple[CallConditions, ...] = ()
        if has_gpu_each(config) and self._disturbed % 2:
            first = draws.randint(0, max(0, calls - CONGESTED_CALLS))
            ranks = (victim if first <= call < first + CONGESTED_CALLS else None for call in range(calls))
            congestions = tuple(CallConditions(congested_rank=rank) for rank in ranks)
        pulsed, orders = on_gpus and not congestions, []
        for rank in range(config.world_size):
            late = set(draws.sample(range(calls), min(DELAYED_CALLS, calls)))
            delays_us = tuple(draws.randint(*DELAYS_US) if call in late else 0 for call in range(calls))
            orders.append(ServeHandovers(delays_us, pulses_us=PULSES_US if pulsed and rank == victim else 0))
        staging = served(config.device, orders, self._overhead.pad_ns, None if on_gpus else victim)
        if congestions:
            staging = with_congestion(staging, config, congestions, self._run.pace(self._baseline_us))
        self._run_pair(calls, staging, baseline_first=draws.random() < 0.5)

    def _run_pair(self, calls: int, staging: BlockStaging, *, baseline_first: bool) -> Block:
        run = self._run
        plan = run.prepare_armed(calls, staging)
        calls = len(plan.sets)
        baseline_ns = self._time_baseline(plan) if baseline_first else 0
        finished = run.run(plan, range(calls), staging)
        self._delays.note("candidate", run.gang.run_delays_ns, finished.nanoseconds)
        self._suspect_busy_gpu()
        if not baseline_first:
            baseline_ns = self._time_baseline(plan)
        report = run.compare(finished.done)
        if not report.passed or finished.late:
            raise failed_while_timed(run, finished, report, self._baseline_us)
        device, overhead = run.config.device, self._overhead
        return Block(
            calls=calls,
            baseline_us=statistics.per_call_us(device, baseline_ns, calls, overhead.baseline_us(calls)),
            candidate_us=statistics.per_call_us(device, finished.nanoseconds, calls, overhead.candidate_us(calls)),
        )

    def _time_baseline(self, plan: BlockPlan) -> int:
        """Times the baseline beside the frozen candidate; returns nanoseconds."""
        run = self._run
        before = run.processor_ticks()
        nanoseconds = run.reference.run(
            len(plan.sets), run.dialect, handovers=True, pad_ns=self._overhead.pad_ns, staged_bytes=plan.nbytes
        )
        self._delays.note("baseline", run.reference.run_delays_ns, nanoseconds)
        ticks = run.processor_ticks() - before
        self._frozen_ticks += ticks
        run.feedback.suspect(integrity.interference(ticks, self._frozen_ticks, run.config.world_size))
        self._suspect_busy_gpu()
        return nanoseconds

    def _suspect_busy_gpu(self) -> None:
        """Kernels go on when their process is frozen."""
        if self._run.reference.idle_us is not None:
            self._run.feedback.suspect(integrity.busy_gpu(self._run.reference.idle_us))


def _warm_up_as_published(run: CandidateRun, baseline_us: float, calls: int) -> None:
    """500 calls of each side whose results nobody looks at."""
    plan = run.prepare(calls, timed=True)
    sets = [call % len(plan.sets) for call in range(statistics.PUBLISHED_WARMUP_CALLS)]
    run.allow(baseline_us * 1e3 * len(sets))
    run.reference.warm_up(len(sets))
    run.run(plan, sets, plain(run.config.world_size))
