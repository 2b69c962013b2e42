"""`pkb check-problem`: proves a problem of one's own."""

from __future__ import annotations

import argparse
import json
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path

from pkb_gym.engine.errors import ProblemNotFound

from .command import Session, Status, add_json_option, add_parser, stderr, stdout
from .diagnosis import print_diagnoses

EXAMPLE = "pkb check-problem ./my_problem"
EXIT = "exit status: 0 every check passed, 1 one failed, 2 there is no such problem, 3 this machine could not judge it"


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `pkb check-problem`."""
    parser = add_parser(
        commands,
        "check-problem",
        run,
        summary="Prove a problem: declaration, reference, cost and tolerances hold, and wrong solutions are refused.",
        example=EXAMPLE,
        exit_statuses=EXIT,
    )
    parser.add_argument("problem", metavar="PATH", help="folder with problem.py and reference.py, or a problem's name")
    add_json_option(parser, "a list of results")


def _wanted(named: str) -> str | Path:
    """The meaning of the argument: the problem of that name, or else the folder."""
    from pkb_gym.problems.catalogue import find_problem

    with suppress(ProblemNotFound):
        find_problem(named)
        return named
    return Path(named) if Path(named).is_dir() else named


def run(args: argparse.Namespace, session: Session) -> int:
    """Checks and prints.

    Raises:
        ConfigError: there is no such problem.
        InfrastructureError: this machine could not judge a candidate.
    """
    from pkb_gym.authoring.checks import check_problem

    results = []
    with closing(session.open_evaluator(None)) as evaluator:
        for result in check_problem(_wanted(args.problem), evaluator):
            results.append(result)
            if not args.json:
                stderr().print(f"{result.name}: {result.state}", soft_wrap=True)
    failed = [result for result in results if result.state == "failed"]
    if args.json:
        print(json.dumps([asdict(result) for result in results], indent=2))
    else:
        print_diagnoses(results, "check")
        stdout().print(f"{len(failed) or 'None'} of {len(results)} checks failed.")
    return Status.FAILED if failed else Status.PASSED
