"""A kernel that sums in float32, in whatever order, and rounds once is right: no robust check may refuse it.

`make test` tries a sample of the problems, `make all` every one.
"""

from __future__ import annotations

import pytest

from pkb_gym.authoring.freedoms import has_float32_answer
from pkb_gym.problems.catalogue import catalogue
from tests.problems.counterfeit_runs import marked
from tests.problems.finer_runs import evaluated_in_float32
from tests.problems.support import Job, run_jobs
from tests.whole_tables import IS_WHOLE, sampled

TRIALS = range(4 if IS_WHOLE else 2)
COMPARABLE = [pytest.param(p, id=p.name) for p in catalogue() if has_float32_answer(p)]


@pytest.mark.parametrize("problem", sampled(COMPARABLE, 8))
def test_the_robust_check_accepts_float32_arithmetic(problem):
    finer = evaluated_in_float32(problem)
    jobs = [Job(problem.name, trial=trial, solution=solution) for solution in (None, finer) for trial in TRIALS]
    runs = run_jobs(jobs)
    for trial, (truth, got) in enumerate(zip(runs[: len(TRIALS)], runs[len(TRIALS) :], strict=True)):
        wrong = sum(count for count, _ in marked(truth, got))
        assert wrong == 0, f"trial {trial}: {wrong} elements of a finer answer are refused"
