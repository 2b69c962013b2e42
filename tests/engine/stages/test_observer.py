"""The moments of the check that an observer is called at."""

from __future__ import annotations

import dataclasses

import pytest

from pkb_gym.engine.compare.layout import BlockPlan
from pkb_gym.engine.records.check_report import CheckReport
from pkb_gym.engine.stages.block_staging import BlockStaging
from pkb_gym.engine.stages.candidate_run import CandidateRun
from pkb_gym.engine.stages.check import check
from pkb_gym.engine.stages.feedback_builder import Stopped
from tests.engine.records.mismatches import mismatch
from tests.engine.stages.fake_gangs import Bench


class Noting:
    """An observer that notes in the log of the gangs when it is called."""

    def __init__(self, log: list[str]) -> None:
        self._log = log

    def before_load(self, plan: BlockPlan, staging: BlockStaging) -> None:
        self._log.append(f"observed before load: {len(plan.sets)} calls, {len(staging.orders)} ranks")

    def outputs_differ(self, plan: BlockPlan, report: CheckReport) -> None:
        self._log.append(f"observed differing outputs: {len(plan.sets)} calls, {len(report.mismatches)} mismatches")


def observed(bench: Bench) -> CandidateRun:
    run = bench.run()
    run.observer = Noting(bench.log)
    return run


def test_the_first_block_of_several_is_seen_after_the_baseline_and_before_the_candidate_is_loaded():
    bench = Bench(trials=11)
    with observed(bench) as run:
        segment_bytes = run.workload.plan(range(4), False, run.layout.scratch_bytes).end
        run.layout = dataclasses.replace(run.layout, segment_bytes=segment_bytes)
        check(run)
    words = [entry.split()[0] for entry in bench.log]
    assert words.count("observed") == 1
    assert words[words.index("observed") - 1] == "baseline" and words[words.index("observed") + 1] == "load"
    assert bench.logged("observed") == ["observed before load: 4 calls, 2 ranks"]


def test_wrong_outputs_are_seen_before_anything_else_runs():
    bench = Bench()
    bench.reference.mismatches = [[mismatch(rank=0, reason="values")]]
    with pytest.raises(Stopped), observed(bench) as run:
        check(run)
    differing = bench.log.index("observed differing outputs: 5 calls, 1 mismatches")
    assert bench.log[differing - 1] == "compare 5"
