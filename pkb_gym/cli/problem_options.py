"""Options that choose a problem, or the folder of one of your own; imports no more than `pkb list` needs."""

from __future__ import annotations

import argparse
from pathlib import Path

from pkb_gym.problems.own_problems import register_folder

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
