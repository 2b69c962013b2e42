"""Stage time: baseline and candidate in alternating blocks, each on fresh inputs, each compared."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator

from pkb_gym.engine.compare.layout import delivered_leaves
from pkb_gym.engine.records.feedback import Block, Failure
from pkb_gym.engine.stages import integrity
from pkb_gym.engine.stages import timing_statistics as statistics
from pkb_gym.engine.stages.baseline_cache import BaselineCache
from pkb_gym.engine.stages.candidate_run import CandidateRun
from pkb_gym.engine.stages.overhead import Overhead, context_switch_us, gate_us

ALONE_CALLS = 2
"""Calls of the baseline that are timed before the candidate is loaded."""


def baseline_alone_us(run: CandidateRun) -> float:
    """What a call of the baseline takes while there is no candidate yet, in microseconds."""
    calls = len(run.prepare(min(ALONE_CALLS, run.layout.most_calls), timed=True).sets)
    if run.config.device == "cuda":  # where the first call makes groups and loads kernels
        run.reference.warm_up(calls)
        calls = len(run.prepare(calls, timed=True).sets)
    return run.reference.run(calls, run.dialect) / calls / 1e3


def measured_context_switch_us(run: CandidateRun, cache: BaselineCache) -> float:
    """See `overhead.context_switch_us`; 0 on the CPU. Measured before the candidate is loaded."""
    if run.config.device == "cpu":
        return 0.0
    case = (run.config.world_size, run.dialect)
    return cache.context_switch_us(case, lambda: context_switch_us(run.reference, run.gang))


def time_blocks(run: CandidateRun, alone_us: float, candidate_us: float, switch_us: float) -> None:
    """Times alternating blocks until the interval is tight or the budget is spent.

    Args:
        run: of the checked candidate.
        alone_us: microseconds a call of the baseline, before the candidate was loaded.
        candidate_us: microseconds a call of the candidate, roughly.
        switch_us: see `overhead.context_switch_us`.

    Raises:
        Stopped: it fell, or an output is wrong.
        InfrastructureError: this machine failed.
    """
    began = time.monotonic()
    pairs = _Pairs(run, Overhead(gate_us(run.reference, run.dialect), switch_us))
    calls = statistics.calls_per_block(alone_us, candidate_us, run.layout.most_calls)
    warm = pairs.time_pair(calls, baseline_first=True)  # not counted
    baseline_us = statistics.marginal_call_us(ALONE_CALLS, alone_us, warm.calls, warm.baseline_us)
    calls = statistics.calls_per_block(baseline_us, warm.candidate_us, run.layout.most_calls)
    run.allow(warm.baseline_us * 1e3 * calls)
    if run.config.protocol == "published":
        _warm_up_as_published(run, warm.baseline_us, calls)
    blocks: list[Block] = []
    while not _timed_enough(run, blocks, began):
        blocks.append(pairs.time_pair(calls, baseline_first=len(blocks) % 2 == 0))
    run.feedback.timing = statistics.summarise(
        blocks,
        protocol=run.config.protocol,
        gate_us=pairs.overhead.gate_us,
        context_switch_us=switch_us if run.config.device == "cuda" else None,
        baseline_alone_us=alone_us,
        delivers=any(delivered_leaves(run.workload.problem, ax, run.dialect) for ax in run.workload.axes(0, True)),
    )


def _timed_enough(run: CandidateRun, blocks: list[Block], began: float) -> bool:
    if run.config.protocol == "published":
        return sum(block.calls for block in blocks) >= statistics.PUBLISHED_TIMED_CALLS
    spent = time.monotonic() - began >= run.config.timing_budget_s
    most = statistics.MAX_BLOCKS[run.config.device]
    return len(blocks) >= most or (len(blocks) >= 3 and spent) or statistics.is_tight(blocks)


class _Pairs:
    """Times pairs of blocks, and watches what the candidate does while it is frozen."""

    def __init__(self, run: CandidateRun, overhead: Overhead) -> None:
        self.overhead = overhead
        self._run = run
        self._frozen_ticks = 0

    def time_pair(self, calls: int, *, baseline_first: bool) -> Block:
        """One block of each side on the same fresh inputs; the candidate's outputs are compared."""
        run = self._run
        plan = run.prepare(calls, timed=True)
        calls = len(plan.sets)
        baseline_ns = self._time_baseline(calls) if baseline_first else 0
        candidate_ns, done = run.run(plan, range(calls))
        self._suspect_busy_gpu()
        if not baseline_first:
            baseline_ns = self._time_baseline(calls)
        report = run.compare(done)
        if not report.passed:
            run.feedback.suspect(integrity.timed_outputs(report))
            raise run.feedback.stop(Failure.INTEGRITY, f"wrong while timed: {report.mismatches[0]}")
        return Block(
            calls=calls,
            baseline_us=statistics.per_call_us(baseline_ns, calls, self.overhead.gate_us),
            candidate_us=statistics.per_call_us(candidate_ns, calls, self.overhead.candidate_us),
        )

    def _time_baseline(self, calls: int) -> int:
        """Times the baseline beside the frozen candidate; returns nanoseconds."""
        run = self._run
        before = run.processor_ticks()
        nanoseconds = run.reference.run(calls, run.dialect)
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
    run.run(plan, sets)


@contextlib.contextmanager
def machine_to_itself() -> Iterator[None]:
    """Keeps other evaluators of this machine from timing meanwhile.

    Locks the folder for temporary files itself, which leaves nothing behind and is let go of however this process ends.
    """
    fd = os.open(tempfile.gettempdir(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
