"""Generated wrong solutions of all problems, judged by the problems' own rules, and why those that pass may.

Each is the reference with one thing wrong: a collective left out or replaced by what the rank has itself, means in
place of sums, inputs rounded or partly unread, the data of one rank alone; and the estimators of small outputs of
`tests/problems/estimators.py`. References run as in the tests, at size tiny on gloo. A solution is refused if it fails
in one of the trials, checked or timed.

python -m benchmarks.wrong_solutions [--problems NAME ...] [--world-sizes N ...] [--out FOLDER]

With --problems, these problems' rows replace those of the earlier result. Exit status: 0 if every solution that passes
is listed in `legitimate_passes.py`, and every entry there still passes, else 1.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

import torch.distributed as dist

from benchmarks.common import RESULTS, header
from benchmarks.legitimate_passes import PASSES, reason_why
from pkb_gym.authoring import wrong_collectives, wrong_inputs
from pkb_gym.authoring.mutants import changes_any, data_places
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.support.atomic_write import write_atomically
from pkb_gym.problems.catalogue import catalogue, find_problem
from tests.problems.counterfeit_runs import refused
from tests.problems.estimators import ESTIMATORS
from tests.problems.support import Job, Run, run_each

TRIALS = ((0, False), (1, False), (2, False), (3, False), (0, True), (1, True))
"""Number of the trial, and whether it serves timing."""

MOST_COLLECTIVES = 16
"""Later ones are not left out one by one."""

Solution = Callable[..., Any]


@dataclass(frozen=True)
class WrongSolution:
    """A wrong solution.

    Attributes:
        name: the mistake, in a few words.
        solution: called as the reference is.
    """

    name: str
    solution: Solution


@dataclass(frozen=True)
class Row:
    """The verdict on one wrong solution.

    Attributes:
        problem: its name.
        world_size: ranks.
        wrong: the mistake.
        refused_in: the first trial, by number in `TRIALS`, that refuses it; None where all accept.
        fell_over: whether a rank raised or waited for ever there.
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
        most: the largest number of collectives of a rank.
        reductions: the same, of those that reduce.
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
        problem: to be solved.
        truths: the reference's runs, one a trial.
        collectives: that the reference calls.
    """
    for number in range(min(collectives.most.value, MOST_COLLECTIVES)):
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


def read_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wrong_solutions", description=__doc__.splitlines()[0])
    parser.add_argument("--problems", nargs="+", metavar="NAME", help="these alone (default: all)")
    parser.add_argument("--world-sizes", nargs="+", type=int, default=[2, 4], metavar="N", help="(default: 2 4)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result (default: %(default)s)")
    return parser.parse_args()


def main() -> int:
    """Judges, prints what passes and saves."""
    args = read_arguments()
    problems = [find_problem(name) for name in args.problems] if args.problems else list(catalogue())
    path = args.out / "wrong_solutions.json"
    about = header()  # before the first write, which changes a file of the repository
    earlier = [Row(**row) for row in json.loads(path.read_text())["rows"]] if args.problems and path.exists() else []
    chosen = {problem.name for problem in problems}
    rows = [row for row in earlier if row.problem not in chosen or row.world_size not in args.world_sizes]
    for problem in problems:
        for world_size in args.world_sizes:
            found = study(problem, world_size)
            rows += found
            passing = [row.wrong for row in found if row.refused_in is None]
            print(f"{problem.name}, {world_size} ranks: {len(found)} wrong, passing: {passing}", file=sys.stderr)
        order = {each.name: each.number for each in catalogue()}
        rows.sort(key=lambda row: (order[row.problem], row.world_size))
        write_atomically(path, _text(about, rows))
    for line in (wrong := unexplained(rows)):
        print(line)
    return 1 if wrong else 0


def _text(about: Mapping[str, str], rows: Sequence[Row]) -> str:
    """The result as JSON, one row a line."""
    head = json.dumps({**about, "size": "tiny", "trials": [list(trial) for trial in TRIALS]}, indent=1)
    lines = ",\n".join(f"  {json.dumps(asdict(row))}" for row in rows)
    return f'{head[:-2]},\n "rows": [\n{lines}\n ]\n}}\n'


if __name__ == "__main__":
    sys.exit(main())
