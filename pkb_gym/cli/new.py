"""`pkb new`: writes a source to begin with."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import get_args

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import Device, Language
from pkb_gym.engine.stages.execution_environment import choose_device
from pkb_gym.problems.catalogue import choose_problem
from pkb_gym.starters import SUFFIXES, TITLES, Starter, make_starter

from .command import Session, Status, add_parser, stderr, stdout
from .problem_options import PROBLEM_HELP, add_problem_option, register_problems
from .sources import LANGUAGE_OF, write_file

EXAMPLE = """pkb new AllReduce
pkb new AllReduce --language cuda kernel.cu
pkb new ./my_problem --language python"""

DEVICE_OF: dict[Language, Device] = {"cpp": "cpu", "cuda": "cuda", "triton": "cuda"}
"""Languages of one device alone."""

EXIT_STATUSES = (
    "exit status: 0 written, 1 written in Python where --language or FILE asks for a language of no naive kernel, "
    "2 wrong usage"
)


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `pkb new`."""
    parser = add_parser(
        commands,
        "new",
        run,
        summary="Write a starter for a problem: a naive kernel that is right, with comments on the next steps.",
        example=EXAMPLE,
        exit_statuses=EXIT_STATUSES,
    )
    parser.add_argument("problem", metavar="NAME", help=PROBLEM_HELP)
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        help="where to write it, or - for standard output (default: the problem's name in the working directory)",
    )
    add_problem_option(parser)
    parser.add_argument(
        "--language",
        choices=get_args(Language),
        help="default: as FILE ends; else cuda where there are GPUs and cpp elsewhere; Python where no naive kernel of "
        "that language can be made",
    )
    parser.add_argument("--force", action="store_true", help="overwrite FILE")
    _take_options_anywhere(parser)


def _take_options_anywhere(parser: argparse.ArgumentParser) -> None:
    """Lets options stand between NAME and FILE: argparse gives up on a FILE that may be left out when NAME is read."""
    parse = parser.parse_known_args

    def parse_intermixed(
        args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        parser.parse_known_args = parse  # type: ignore[method-assign]  # which the next line calls
        try:
            return parser.parse_known_intermixed_args(args, namespace)
        finally:
            parser.parse_known_args = parse_intermixed  # type: ignore[method-assign,assignment]  # overloads

    parser.parse_known_args = parse_intermixed  # type: ignore[method-assign,assignment]  # overloads


def run(args: argparse.Namespace, session: Session) -> int:  # noqa: ARG001  # every command has this signature
    """Writes the starter and prints the next steps.

    Raises:
        PkbError: no such problem, FILE exists or cannot be written, or does not end as the language's files do.
    """
    register_problems(args)
    problem = choose_problem(args.problem)
    requested = choose_language(args.language, args.file)
    starter = make_starter(problem, requested, DEVICE_OF.get(requested, choose_device("auto")))
    status = Status.PASSED
    if starter.why_python:
        stderr().print(starter.why_python, soft_wrap=True)
        if args.language is not None or language_of_file(args.file) is not None:
            status = Status.FAILED  # a script that goes on with FILE would not find it
    if args.file == "-":
        sys.stdout.write(starter.source)
        return status
    path = path_of(args.file, problem, starter)
    write(path, starter.source, force=args.force)
    console = stdout()
    console.print(f"{path}: {TITLES[starter.language]} starter for {problem.name}", soft_wrap=True)
    console.print(f"next: {eval_command(args, path, requested, starter)}", soft_wrap=True)
    return status


def choose_language(requested: Language | None, file: str | None) -> Language:
    """The language requested, else that of the file's suffix, else that of native kernels on this machine.

    Raises:
        ConfigError: the two contradict each other.
    """
    of_file = language_of_file(file)
    if requested is None:
        return of_file or ("cuda" if choose_device("auto") == "cuda" else "cpp")
    if of_file is not None and SUFFIXES[requested] != SUFFIXES[of_file]:
        raise ConfigError(
            f"{file}: files in language {requested} end in {SUFFIXES[requested]}; leave out --language, or rename it"
        )
    return requested


def language_of_file(file: str | None) -> Language | None:
    """The language of a file's suffix; None for other suffixes, and where no file is named."""
    suffix = "" if file is None else PurePath(file).suffix
    return LANGUAGE_OF.get(suffix, "python" if suffix == ".py" else None)


def path_of(file: str | None, problem: Problem, starter: Starter) -> Path:
    """The file of a starter: a Python one never to a file that `pkb eval` would take for C++ or CUDA."""
    suffix = SUFFIXES[starter.language]
    if file is None:
        return Path(f"{problem.folder}{suffix}")
    path = Path(file)
    return path.with_suffix(suffix) if starter.why_python and path.suffix in LANGUAGE_OF else path


def write(path: Path, source: str, *, force: bool) -> None:
    """Writes the file, which does not exist yet, or may be overwritten.

    Raises:
        ConfigError: it exists, or cannot be written.
    """
    if path.exists() and not force:
        raise ConfigError(f"{path} exists; give another FILE, or --force to overwrite it")
    write_file(path, source)


def eval_command(args: argparse.Namespace, path: Path, requested: Language, starter: Starter) -> str:
    """The command that judges the file; CUDA C++ on a model of GPUs where this machine has none."""
    file = f"./{path}" if str(path).startswith("-") else str(path)  # and no option
    command = ["pkb", "eval", args.problem, file]
    for folder in args.problem_paths:
        command += ["--problem", str(folder)]
    if requested in DEVICE_OF:
        is_emulated = starter.language == "cuda" and choose_device("auto") != "cuda"
        command += ["--device", "emulated" if is_emulated else DEVICE_OF[requested]]
    return shlex.join(command)
