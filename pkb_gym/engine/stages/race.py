"""Finds which part of the call contract a kernel breaks that is right when all ranks begin and end together.

The same kernel is called again under conditions that only one breach can show: one rank late, or held, and one argument
of one rank withheld. See `docs/native-abi.md` for the contract.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pkb_gym.engine.problem.tensors import argument_leaves, output_leaves
from pkb_gym.engine.records.check_report import Mismatch, Race
from pkb_gym.engine.stages.block_staging import (
    LONG_HOLD,
    TOGETHER,
    CallConditions,
    Pace,
    Withheld,
    conducted,
    longest_delays_s,
)
from pkb_gym.engine.stages.candidate_run import CandidateRun, FinishedBlock

MAX_TENSORS = 32
"""The most tensors that are tried one by one, to find the one that was read."""

SEARCHES = 3
"""Number of repetitions, for a tensor that was read late."""

INTERRUPTED_SEARCHES = 3
"""Number of calls with each tensor in a repetition where readers are interrupted."""


def late_output(finished: FinishedBlock) -> Race | None:
    """The first output that was written after its rank had finished the call; None if there is none."""
    if not finished.late:
        return None
    rank, output = finished.late[0]
    evidence = f"call {output.call}: {output.output} changed after it had been taken"
    return Race(kind="late_output", owner=rank, tensor=output.output, evidence=evidence)


def find_race(run: CandidateRun, conditions: CallConditions, mismatch: Mismatch, pace: Pace) -> Race:
    """The breach of a kernel whose outputs are right when ranks have time to wait for each other.

    Args:
        run: Run of the candidate.
        conditions: Conditions of the wrong call.
        mismatch: One of the call's wrong outputs.
        pace: Pace of the machine.

    Raises:
        Stopped: it failed in another way this time.
        InfrastructureError: this machine failed.
    """
    late, held = conditions.late_rank, conditions.held_ranks
    others = (late, conditions.congested_rank, conditions.interrupted_rank, conditions.preempted_rank)
    slow = [*held, *(rank for rank in others if rank is not None)]
    if not slow:
        return Race(kind="unknown", rank=mismatch.rank, evidence=str(mismatch))
    if late is not None:
        found = _first_wrong(run, CallConditions(late_rank=late), _tensors(run, [late], withdrawn=False), pace)
        if found is not None:
            alone, wrong = found
            if alone.names:
                return _read(wrong, "early_read", alone)
            if wrong.rank == late:
                return Race(kind="early_write", owner=late, tensor=wrong.output, evidence=str(wrong))
            return Race(kind="missing_wait", rank=wrong.rank, owner=late, evidence=str(wrong))
    # A rank that reads late shows it also where the machine, rather than a hold, let it fall behind.
    for reader in dict.fromkeys((held, (mismatch.rank,))):
        race = _late_read(run, reader, conditions, pace) if reader else None
        if race is not None:
            return race
    rank = mismatch.rank if mismatch.rank in slow else slow[0]
    return Race(kind="reuse", rank=rank, evidence=str(mismatch))


def _late_read(run: CandidateRun, readers: tuple[int, ...], conditions: CallConditions, pace: Pace) -> Race | None:
    """The tensor of another rank that these ranks read late; None if there is none.

    They are interrupted where the outputs were wrong by that, which is a matter of the moment. Otherwise they are held
    for long, and again: on a busy machine the others may not depart meanwhile.
    """
    others = [rank for rank in range(run.config.world_size) if rank not in readers]
    withdrawn = _tensors(run, others, withdrawn=True)
    slow = CallConditions(held_ranks=readers, holds=LONG_HOLD, congested_rank=readers[0])
    if conditions.interrupted_rank is not None:
        slow, withdrawn = CallConditions(interrupted_rank=readers[0]), withdrawn * INTERRUPTED_SEARCHES
    for _ in range(SEARCHES):
        found = _first_wrong(run, slow, withdrawn, pace)
        if found is not None:
            alone, wrong = found
            return _read(wrong, "late_read", alone) if alone.names else None
    return None


def _read(wrong: Mismatch, kind: Literal["early_read", "late_read"], alone: Withheld) -> Race:
    reader = None if wrong.rank == alone.rank else wrong.rank
    return Race(kind=kind, rank=reader, owner=alone.rank, tensor=alone.names[0].split("[")[0], evidence=str(wrong))


def _tensors(run: CandidateRun, owners: Sequence[int], *, withdrawn: bool) -> list[Withheld]:
    """No tensor at all, then each argument of each of these ranks, and each output if it is after the call."""
    alone = [Withheld(owners[0], (), withdrawn)]
    for owner in owners:
        ax = run.workload.axes(0, timed=False)[owner]
        problem = run.workload.problem
        of_tensors = [argument_leaves(arg, ax) for arg in problem.data_args]
        if withdrawn:
            of_tensors += [output_leaves(out, ax) for out in problem.returned]
        alone += [Withheld(owner, tuple(leaf.name for leaf in leaves), withdrawn) for leaves in of_tensors if leaves]
    return alone[:MAX_TENSORS]


def _first_wrong(
    run: CandidateRun, conditions: CallConditions, withheld: Sequence[Withheld], pace: Pace
) -> tuple[Withheld, Mismatch] | None:
    """The first tensor whose absence makes an output wrong, and that output; None if there is none.

    All ranks meet after each call, so that none is ahead of another by a call: scratch cannot be reused too early.
    """
    plan = run.prepare(2 * len(withheld), timed=False)
    tried = withheld[: len(plan.sets) // 2]
    calls = 2 * len(tried)
    baseline_ns = run.reference.run(calls, run.dialect)
    present = Withheld(0, (), withdrawn=False)
    of_calls = [condition for _ in tried for condition in (conditions, TOGETHER)]
    run.allow(baseline_ns, more_s=longest_delays_s(run.config, of_calls, pace))
    staging = conducted(run.config, of_calls, pace, [one for alone in tried for one in (alone, present)])
    finished = run.run(plan, range(calls), staging)
    report = run.compare(finished.done)
    for mismatch in sorted(report.mismatches, key=lambda mismatch: mismatch.trial):
        call = mismatch.trial - plan.sets[0].trial
        if mismatch.reason == "values" and call % 2 == 0:
            return tried[call // 2], mismatch
    return None
