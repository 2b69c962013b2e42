"""Stage check: every output of every rank, on fresh inputs, under the call contract."""

from __future__ import annotations

from pkb_gym.engine.records.feedback import Stage
from pkb_gym.engine.stages.block_staging import check_conditions, conducted, longest_delay_s
from pkb_gym.engine.stages.candidate_run import CandidateRun
from pkb_gym.engine.stages.mismatch import failed_check


def check(run: CandidateRun) -> float:
    """Loads the candidate and compares its outputs on fresh inputs.

    Returns:
        Microseconds a call of the candidate, at most.

    Raises:
        Stopped: it fell, or an output is wrong.
        InfrastructureError: this machine failed.
    """
    plan = run.prepare(run.config.trials, timed=False)
    trials = len(plan.sets)
    baseline_ns = run.reference.run(trials, run.dialect)
    baseline_us = baseline_ns / trials / 1e3
    run.allow(baseline_ns, more_s=trials * longest_delay_s(run.config, baseline_us))
    run.load()
    conditions = check_conditions(run.config.world_size, trials, run.dialect)
    staging = conducted(run.config, conditions, baseline_us)
    finished = run.run(plan, range(trials), staging)
    run.feedback.complete(Stage.RUN)
    report = run.compare(finished.done)
    run.feedback.check = report
    if not report.passed or finished.late:
        raise failed_check(run, finished, report, conditions, plan.sets[0].trial, baseline_us)
    slowest_us: list[float] = [max(of_ranks) for of_ranks in zip(*(e.calls_us for e in finished.ended), strict=True)]
    return min(slowest_us)
