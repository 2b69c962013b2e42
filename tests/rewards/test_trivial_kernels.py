"""Kernels that do nothing of use earn next to nothing: on a sample of the problems, and on every one by `make all`."""

from __future__ import annotations

import pytest

from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.check_report import CheckReport
from pkb_gym.problems.catalogue import catalogue
from pkb_gym.rewards import find_reward
from pkb_gym.rewards.examples import failed
from tests.rewards.trivial_kernels import KERNELS, Calls, Run, runs_of
from tests.whole_tables import sampled

MOST = 0.06
"""Value of such a kernel at most: that of running, and next to nothing more."""

PASSES = {"UlyssesAttention"}
"""On two ranks all groups have one rank, and nothing is to be communicated."""


def value(report: CheckReport) -> float:
    wrong = failed("output_mismatch").model_copy(update={"check": report})
    found = find_reward("per_turn")(wrong)
    assert found is not None
    return found


@pytest.mark.parametrize("problem", sampled(catalogue(), 9), ids=lambda problem: problem.name)
def test_kernels_that_do_nothing_of_use_earn_next_to_nothing(problem: Problem) -> None:
    runs, alone = runs_of(problem.name)
    calls = Calls(runs)
    assert calls.report(lambda run, rank, call: run.outputs[rank]).passed
    for name, kernel in KERNELS.items():

        def outputs(run: Run, rank: int, call: int, kernel=kernel):
            return kernel(run, rank)

        report = calls.report(outputs)
        assert not report.passed and value(report) <= MOST, name
        if name == "empty":
            assert report.nothing_written and value(report) == 0.0
    for name, kept in alone.items():

        def computed(run: Run, rank: int, call: int, kept=kept):
            return kept[call].outputs[rank]

        report = calls.report(computed)
        assert report.passed == (problem.name in PASSES) or value(report) <= MOST, name
