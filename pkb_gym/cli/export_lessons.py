"""`pkb export lessons`: the way from a naive kernel to the expert, with what was measured of each step."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pkb_gym.envs.text.turn import DEFAULT_STYLE, STYLES

from .command import Session, Status, add_parser, stderr
from .export_results import add_to_folder, command_of

if TYPE_CHECKING:
    from pkb_gym.engine.problem import Problem

EXAMPLE = "pkb export lessons --out data --problems train"


def register_lessons(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `pkb export lessons`."""
    parser = add_parser(
        kinds,
        "lessons",
        run_lessons,
        summary="Write the way from a naive CUDA kernel to the expert as conversations, with measured gains.",
        example=EXAMPLE,
        exit_statuses="",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write to")
    parser.add_argument(
        "--problems",
        nargs="+",
        default=["train"],
        metavar="NAME",
        help="problems of the train split; or train: all of them (default: train)",
    )
    parser.add_argument(
        "--style", choices=STYLES, default=DEFAULT_STYLE, help=f"length of tasks (default: {DEFAULT_STYLE})"
    )


def run_lessons(args: argparse.Namespace, session: Session) -> int:
    """Writes lessons.

    Raises:
        ConfigError: A problem is of the test part, or there is no lesson.
    """
    from pkb_gym.corpus.files import write_lessons
    from pkb_gym.corpus.lessons import lesson_rows
    from pkb_gym.corpus.manifest import origin
    from pkb_gym.corpus.tasks import train_problems
    from pkb_gym.engine.errors import ConfigError

    rows = lesson_rows(train_problems(args.problems, "cuda"), naive_cuda, args.style)
    if not rows:
        raise ConfigError(f"none of {' '.join(args.problems)} has a CUDA expert; `pkb list` shows those that have one")
    write_lessons(args.out, rows)
    problems = {row["problem"] for row in rows}
    add_to_folder(args.out, "lessons", origin(command_of(session)) | {"rows": len(rows), "problems": len(problems)})
    stderr().print(f"{len(rows)} lessons of {len(problems)} problems in {args.out}", soft_wrap=True)
    return Status.PASSED


def naive_cuda(problem: Problem) -> str | None:
    """The starter in CUDA C++; None where only one in Python is known."""
    from pkb_gym.starters import make_starter

    starter = make_starter(problem, "cuda", "cuda")
    return starter.source if starter.language == "cuda" else None
