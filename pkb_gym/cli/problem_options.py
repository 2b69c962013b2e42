"""Options that choose a problem, or the folder of one of your own; imports no more than `pkb list` needs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pkb_gym.problems.own_problems import register_folder

if TYPE_CHECKING:
    from pkb_gym.engine.problem import Problem

PROBLEM_HELP = "HyenaCP or PKB/HyenaCP-v0 (see: pkb list), or the folder of a problem of your own"


def add_problem_option(parser: argparse.ArgumentParser) -> None:
    """Adds `--problem`, which `register_problems` reads."""
    parser.add_argument(
        "--problem",
        dest="problem_paths",
        type=Path,
        action="append",
        default=[],
        metavar="PATH",
        help="register the problem in this folder by its name; may be repeated",
    )


def register_problems(args: argparse.Namespace) -> None:
    """Registers the problems named by the options of `add_problem_option`.

    Raises:
        ConfigError: there is no problem in a folder, or its name is taken.
    """
    for path in args.problem_paths:
        register_folder(path)


def undeclared_text(problem: Problem) -> str:
    """What a problem's declaration leaves out, and what there is none of without it.

    Args:
        problem: Problem whose `undeclared` names a field at least.
    """
    fields = " and ".join(f"no `{name}`" for name in problem.undeclared)
    return f"{problem.name} declares {fields}: there is no roofline, and rewards place times by the speedup alone"
