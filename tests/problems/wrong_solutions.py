"""Generated wrong solutions of a problem, judged by its own rules.

Each is the reference with one thing wrong: a collective left out or replaced by what the rank has itself, means in
place of sums, inputs rounded or partly unread, the data of one rank alone; and the estimators of small outputs of
`estimators.py`. References run at size tiny on gloo. A solution is refused if it fails in one of the trials, checked or
timed.
"""

from __future__ import annotations

import importlib
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.sharedctypes import Synchronized
from typing import Any

import torch.distributed as dist

from pkb_gym.authoring import wrong_collectives, wrong_inputs
from pkb_gym.authoring.mutants import changes_any, data_places
from pkb_gym.engine.problem import Problem
from tests.problems.counterfeit_runs import refused
from tests.problems.estimators import ESTIMATORS
from tests.problems.legitimate_passes import PASSES, reason_why
from tests.problems.support import Job, Run, run_each

TRIALS = ((0, False), (1, False), (2, False), (3, False), (0, True), (1, True))
"""Number of the trial, and whether it serves timing."""

MAX_COLLECTIVES = 16
"""Later ones are not left out one by one."""

Solution = Callable[..., Any]


@dataclass(frozen=True)
class WrongSolution:
    """A wrong solution.

    Attributes:
        name: Mistake, in a few words.
        solution: Function that is called as the reference is.
    """

    name: str
    solution: Solution


@dataclass(frozen=True)
class Row:
    """The verdict on one wrong solution.

    Attributes:
        problem: Name of the problem.
        world_size: Number of ranks.
        wrong: Mistake, in a few words.
        refused_in: Number in `TRIALS` of the first trial that refuses it; None where all accept.
        fell_over: Whether a rank raised or waited for ever there.
    """

    problem: str
    world_size: int
    wrong: str
    refused_in: int | None
    fell_over: bool

    @property
    def key(self) -> tuple[str, int, str]:
        """The key of a row."""
        return self.problem, self.world_size, self.wrong


def reference_of(problem: Problem) -> Solution:
    """The reference's `solution`."""
    module = importlib.import_module(f"pkb_gym.problems.{problem.category}.{problem.folder}.reference")
    found: Solution = module.solution
    return found


def _shared_number() -> Synchronized[int]:
    return multiprocessing.get_context("fork").Value("i", 0)


@dataclass(frozen=True)
class Collectives:
    """The collectives that the reference calls, counted in the processes of its ranks.

    Attributes:
        most: Largest number of collectives of a rank.
        reductions: Largest number of reducing collectives of a rank.
    """

    most: Synchronized[int] = field(default_factory=_shared_number)
    reductions: Synchronized[int] = field(default_factory=_shared_number)

    def reference(self, problem: Problem, *args: Any) -> object:
        """The reference, counted."""
        names: list[str] = []

        def note(_: int, name: str) -> bool:
            names.append(name)
            return False

        with wrong_collectives.replaced(note, others=False):
            result = reference_of(problem)(*args)
        reducing = sum(name in wrong_collectives.REDUCTIONS for name in names)
        for value, number in ((self.most, len(names)), (self.reductions, reducing)):
            with value.get_lock():
                value.value = max(value.value, number)
        return result


def with_wrong_collectives(problem: Problem, decide: wrong_collectives.Decide, others: bool, *args: Any) -> object:
    """The reference, some of its collectives replaced."""
    with wrong_collectives.replaced(decide, others):
        return reference_of(problem)(*args)


def with_means(problem: Problem, *args: Any) -> object:
    """The reference, with means in place of sums over ranks."""
    with wrong_collectives.means():
        return reference_of(problem)(*args)


def with_wrong_inputs(problem: Problem, change: wrong_inputs.Change, *args: Any) -> object:
    """The reference on changed inputs."""
    return reference_of(problem)(*wrong_inputs.changed_call(data_places(problem), args, change))


def of_first_rank(problem: Problem, *args: Any) -> object:
    """The reference, with zeros for the data of all ranks but the first."""
    alone = dist.get_rank() == 0
    return reference_of(problem)(
        *(args if alone else wrong_inputs.changed_call(data_places(problem), args, wrong_inputs.zeros))
    )


def _is(wanted: int, number: int, name: str) -> bool:
    del name
    return number == wanted


def _always(number: int, name: str) -> bool:
    del number, name
    return True


def wrong_solutions(problem: Problem, truths: Sequence[Run], collectives: Collectives) -> Iterator[WrongSolution]:
    """The solutions that are wrong somewhere: rounding that changes nothing is left out.

    Args:
        problem: Problem to be solved.
        truths: Runs of the reference, one a trial.
        collectives: Collectives that the reference calls.
    """
    for number in range(min(collectives.most.value, MAX_COLLECTIVES)):
        for others, how in ((True, "own data for the others'"), (False, "zeros for the others'")):
            decide = partial(_is, number)
            yield WrongSolution(
                f"collective {number + 1}: {how}", partial(with_wrong_collectives, problem, decide, others)
            )
    if collectives.most.value:
        yield WrongSolution("no communication", partial(with_wrong_collectives, problem, _always, True))
        if changes_any(truths[0].args[1].values(), wrong_inputs.zeros):
            yield WrongSolution("first rank's data alone", partial(of_first_rank, problem))
    if collectives.reductions.value:
        yield WrongSolution("means for sums", partial(with_means, problem))
    for name, change in wrong_inputs.CHANGES.items():
        if any(changes_any(truth.args[0].values(), change) for truth in truths):
            yield WrongSolution(f"inputs: {name}", partial(with_wrong_inputs, problem, change))
    for each in ESTIMATORS:
        if each.problem == problem.name:
            yield WrongSolution(f"estimator: {each.name}", each.solution)


def study(problem: Problem, world_size: int) -> list[Row]:
    """The verdicts on all wrong solutions of one problem.

    Raises:
        RuntimeError: the reference itself falls over or is refused.
    """
    collectives = Collectives()

    def job(trial: int, solution: Solution | None = None) -> Job:
        number, timed = TRIALS[trial]
        return Job(problem.name, world_size=world_size, trial=number, timed=timed, solution=solution)

    runs = run_each([job(trial, partial(collectives.reference, problem)) for trial in range(len(TRIALS))])
    truths = [run for run in runs if run is not None]
    if len(truths) < len(TRIALS):
        raise RuntimeError(f"{problem.name}, {world_size} ranks: the reference falls over")
    for truth in truths:
        truth.assert_passes_own_checks()
    left = list(wrong_solutions(problem, truths, collectives))
    rows = []
    # All in the first trial, and those that pass in each further one.
    for trial, truth in enumerate(truths):
        passed = []
        for wrong, got in zip(left, run_each([job(trial, wrong.solution) for wrong in left]), strict=True):
            if got is None or refused(truth, got):
                rows.append(Row(problem.name, world_size, wrong.name, trial, got is None))
            else:
                passed.append(wrong)
        left = passed
    return rows + [Row(problem.name, world_size, wrong.name, None, False) for wrong in left]


def unexplained(rows: Sequence[Row]) -> list[str]:
    """Solutions that pass without a reason, and reasons for those that do not pass or do not exist, in words."""
    passing = [row for row in rows if row.refused_in is None]
    judged = {(row.problem, row.world_size) for row in rows}
    found = [f"{r.problem}, {r.world_size} ranks: passes: {r.wrong}" for r in passing if not reason_why(*r.key)]
    for entry in PASSES:
        for problem in entry.problems:
            for world_size in entry.world_sizes:
                its = [row for row in passing if (row.problem, row.world_size) == (problem, world_size)]
                if (problem, world_size) in judged and not any(entry.covers(*row.key) for row in its):
                    found += [f"{problem}, {world_size} ranks: does not pass: {entry.wrong}"]
    return list(dict.fromkeys(found))
