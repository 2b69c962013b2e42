"""`pkb list`: the catalogue."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass

from pkb_gym.engine.errors import ConfigError, DeclarationError
from pkb_gym.problems.own_problems import load_own, own_folders

from .command import Session, Status, add_json_option, add_parser, plain_table, print_table, stdout
from .listing import ListedProblem, listed_catalogue
from .problem_options import add_problem_option, register_problems

EXAMPLE = """pkb list --category collective_primitive
pkb list --tag all_to_all --tag gemm
pkb list --weaknesses"""
CATEGORY_WIDTH = 110
"""A console with fewer columns has no room for the category beside the summary."""


@dataclass(frozen=True)
class Broken:
    """A problem outside this package that cannot be loaded.

    Attributes:
        name: Declared name; empty where none is found.
        folder: Folder of the problem.
        fault: Reason why it cannot be loaded.
    """

    name: str
    folder: str
    fault: str


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `pkb list`."""
    parser = add_parser(commands, "list", run, summary="List the problems.", example=EXAMPLE)
    parser.add_argument("--category", metavar="NAME", help="only this one, for example tensor_parallel")
    parser.add_argument(
        "--tag",
        metavar="NAME",
        action="append",
        default=[],
        help="only those with this tag, for example all_to_all or fp8; once more for those that have both",
    )
    parser.add_argument(
        "--weaknesses", action="store_true", help="show the wrong results that the published version of each accepts"
    )
    add_problem_option(parser)
    add_json_option(parser, "a list of records")


def run(args: argparse.Namespace, session: Session) -> int:  # noqa: ARG001  # every command has this signature
    """Prints the problems.

    Raises:
        ConfigError: there is no such category or tag.
    """
    if args.category is not None:
        _check_category(args.category)
    register_problems(args)
    known, broken = listed_catalogue(), []
    for folder in own_folders():
        try:
            known.append(ListedProblem.of(load_own(folder)))
        except DeclarationError as error:
            broken.append(Broken(folder.name, str(folder.path), str(error)))
    tags = sorted({tag for problem in known for tag in problem.tags})
    for tag in args.tag:
        if tag not in tags:
            raise ConfigError(f"no tag {tag!r}; there are {', '.join(tags)}")
    problems = [
        problem for problem in known if args.category in (None, problem.category) and set(args.tag) <= set(problem.tags)
    ]
    if args.json:
        print(json.dumps([*map(asdict, problems), *map(asdict, broken)], indent=2))
    elif args.weaknesses:
        _print_weaknesses(problems)
    else:
        _print_table(problems, broken)
    return Status.PASSED


def _check_category(name: str) -> None:
    from pkb_gym.engine.problem import CATEGORIES

    if name not in CATEGORIES:
        raise ConfigError(f"no category {name!r}; there are {', '.join(CATEGORIES)}")


def _print_table(problems: list[ListedProblem], broken: list[Broken]) -> None:
    console = stdout()
    shows_category = console.width >= CATEGORY_WIDTH
    table = plain_table()
    table.add_column("#", justify="right", no_wrap=True)
    for name in ("problem", "category", "expert") if shows_category else ("problem", "expert"):
        table.add_column(name, no_wrap=True)
    table.add_column("summary", overflow="fold")
    for problem in problems:
        category = [problem.category] if shows_category else []
        table.add_row(str(problem.number or ""), problem.name, *category, " ".join(problem.experts), problem.summary)
    print_table(console, table)
    for each in broken:
        console.print(f"broken: {each.name or each.folder}: {each.fault}", soft_wrap=True)
    console.print(f"{len(problems)} problems. `pkb show NAME` shows one in full.")


def _print_weaknesses(problems: list[ListedProblem]) -> None:
    console = stdout()
    console.print("Wrong results that the published inputs and tolerances accept (the protocol `robust` does not):\n")
    for problem in problems:
        console.print(f"{problem.number or '':>2} {problem.name}")
        for weakness in problem.weaknesses or ("none known",):
            console.print(f"   - {weakness}", soft_wrap=True)
