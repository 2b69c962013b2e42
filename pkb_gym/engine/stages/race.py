"""Finds which part of the call contract a kernel breaks that is right when all ranks begin and end together.

The same kernel is called again under conditions that only one breach can show: one rank late, or held, and one argument
of one rank withheld. See `docs/native-abi.md` for the contract.
"""

from __future__ import annotations

from collections.abc import Sequence

from pkb_gym.engine.problem.tensors import argument_leaves
from pkb_gym.engine.records.feedback import Mismatch, Race
from pkb_gym.engine.stages.block_staging import CallConditions, Withheld, conducted
from pkb_gym.engine.stages.candidate_run import CandidateRun, FinishedBlock

MOST_CALLS = 64
"""Of a block that looks for the tensor that was read."""


def late_output(finished: FinishedBlock) -> Race | None:
    """The first output that was written after its rank had finished the call; None if there is none."""
    if not finished.late:
        return None
    rank, output = finished.late[0]
    evidence = f"call {output.call}: {output.output} changed after it had been taken"
    return Race(kind="late_output", owner=rank, tensor=output.output, evidence=evidence)


def find_race(run: CandidateRun, conditions: CallConditions, mismatch: Mismatch, baseline_us: float) -> Race:
    """What a kernel did wrong in a call whose outputs are right when ranks run together.

    Args:
        run: of the candidate.
        conditions: of the call.
        mismatch: one of its wrong outputs.
        baseline_us: microseconds a call of the baseline.

    Raises:
        Stopped: it failed in another way this time.
        InfrastructureError: this machine failed.
    """
    late, held = conditions.late_rank, conditions.held_rank
    if late is not None:
        found = _first_wrong(run, CallConditions(late_rank=late), _tensors(run, [late], withdrawn=False), baseline_us)
        if found is not None:
            alone, wrong = found
            if alone.names:
                return _read(wrong, "early_read", alone)
            return Race(kind="early_write", owner=late, tensor=wrong.output, evidence=str(wrong))
    if held is not None:
        others = [rank for rank in range(run.config.world_size) if rank != held]
        found = _first_wrong(run, CallConditions(held_rank=held), _tensors(run, others, withdrawn=True), baseline_us)
        if found is not None and found[0].names:
            alone, wrong = found
            return _read(wrong, "late_read", alone)
        return Race(kind="reuse", rank=held, evidence=str(mismatch))
    return Race(kind="unknown", rank=mismatch.rank, evidence=str(mismatch))


def _read(wrong: Mismatch, kind: str, alone: Withheld) -> Race:
    reader = None if wrong.rank == alone.rank else wrong.rank
    return Race(kind=kind, rank=reader, owner=alone.rank, tensor=alone.names[0].split("[")[0], evidence=str(wrong))


def _tensors(run: CandidateRun, owners: Sequence[int], *, withdrawn: bool) -> list[Withheld]:
    """No argument at all, then each argument of each of these ranks."""
    alone = [Withheld(owners[0], (), withdrawn)]
    for owner in owners:
        ax = run.workload.axes(0, timed=False)[owner]
        for arg in run.workload.problem.data_args:
            names = tuple(leaf.name for leaf in argument_leaves(arg, ax))
            if names:
                alone.append(Withheld(owner, names, withdrawn))
    return alone[:MOST_CALLS]


def _first_wrong(
    run: CandidateRun, conditions: CallConditions, withheld: Sequence[Withheld], baseline_us: float
) -> tuple[Withheld, Mismatch] | None:
    """The first tensor whose absence makes an output wrong, and that output; None if there is none."""
    plan = run.prepare(len(withheld), timed=False)
    calls = len(plan.sets)
    run.reference.run(calls, run.dialect)
    staging = conducted(run.config.device, run.config.world_size, [conditions] * calls, baseline_us, withheld[:calls])
    finished = run.run(plan, range(calls), staging)
    report = run.compare(finished.done)
    wrong = sorted((m for m in report.mismatches if m.reason == "values"), key=lambda m: m.trial)
    for mismatch in wrong:
        return withheld[mismatch.trial - plan.sets[0].trial], mismatch
    return None
