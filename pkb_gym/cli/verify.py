"""`pkb verify`: evaluates a sample of results again."""

from __future__ import annotations

import argparse
from contextlib import closing
from typing import TYPE_CHECKING

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.support.printable import printable
from pkb_gym.problems.catalogue import find_problem

from .command import Session, Status, add_json_option, add_parser, plain_table, print_table, stderr, stdout
from .options import positive_int
from .problem_options import add_problem_option, register_problems
from .results_options import add_results_argument

if TYPE_CHECKING:
    from pkb_gym.engine.evaluators.evaluator import Evaluator
    from pkb_gym.engine.records.attempt import Attempt
    from pkb_gym.report.verification import Verification

EXAMPLE = "pkb verify results.jsonl --sample 20"
VERDICTS = {True: "holds", False: "does not hold", None: "not judged"}


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `pkb verify`."""
    parser = add_parser(
        commands,
        "verify",
        run,
        summary="Evaluate a sample of results again and show whether they hold.",
        example=EXAMPLE,
        exit_statuses="exit status: 0 all hold, 1 one does not, 2 wrong usage, 3 this machine could not judge one",
    )
    add_results_argument(parser)
    add_problem_option(parser)
    parser.add_argument(
        "--sample",
        type=positive_int,
        default=10,
        metavar="N",
        help="attempts to evaluate again, half of them right as far as there are (default: 10)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the draw (default: 0)")
    parser.add_argument(
        "--tolerance",
        type=_share,
        default=0.1,
        metavar="SHARE",
        help="tolerated loss of a recorded speedup, as a share (default: 0.1)",
    )
    add_json_option(parser, "one record a line")


def run(args: argparse.Namespace, session: Session) -> int:
    """Evaluates the sample and prints what came of it.

    Raises:
        ConfigError: results cannot be read, or none of them can be evaluated again.
        InfrastructureError: the evaluator failed.
    """
    from pkb_gym.metrics.sources import read_results
    from pkb_gym.report.verification import draw_sample

    register_problems(args)
    sample = draw_sample(read_results(args.results), args.sample, args.seed)
    if not sample:
        raise ConfigError("no result can be evaluated again: none has both a source and a judgement")
    for attempt in sample:
        find_problem(attempt.problem)  # before anything is evaluated
    with closing(session.open_evaluator(None)) as evaluator:
        found = [_again(evaluator, attempt, args.tolerance, as_json=args.json) for attempt in sample]
    if not args.json:
        _print(found)
    if any(each.holds is None for each in found):
        return Status.NOT_JUDGED
    return Status.PASSED if all(each.holds for each in found) else Status.FAILED


def _again(evaluator: Evaluator, attempt: Attempt, tolerance: float, *, as_json: bool) -> Verification:
    from pkb_gym.report.verification import config_again, verify

    assert attempt.source is not None, "`draw_sample` passes over attempts without a source"
    feedback = evaluator.evaluate(find_problem(attempt.problem), attempt.source, config_again(attempt))
    found = verify(attempt, feedback, tolerance)
    if as_json:
        print(found.model_dump_json(), flush=True)
    line = f"{attempt.problem}, sample {attempt.sample}, turn {attempt.turn}: {VERDICTS[found.holds]}: {found.reason}"
    stderr().print(printable(line), soft_wrap=True)
    return found


def _print(found: list[Verification]) -> None:
    table = plain_table()
    for name in ("problem", "agent", "sample", "turn", "before", "again", "speedup", "speedup again", "verdict"):
        is_number = name in ("sample", "turn", "speedup", "speedup again")
        table.add_column(name, no_wrap=True, justify="right" if is_number else "left")
    for each in found:
        speedups = ("" if value is None else f"{value:.2f}x" for value in (each.speedup, each.speedup_again))
        table.add_row(
            *(printable(each.problem), printable(each.agent or ""), str(each.sample), str(each.turn)),
            *(each.before, each.again, *speedups, "faster than recorded" if each.faster else VERDICTS[each.holds]),
        )
    print_table(stdout(), table)
    faster = sum(each.faster for each in found)
    hold = f"{sum(each.holds is True for each in found)} of {len(found)} hold"
    stdout().print(f"{hold}, {faster} faster than recorded." if faster else f"{hold}.")


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"expected a share in [0, 1), got {text!r}")
    return value
