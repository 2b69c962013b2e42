"""`pkb`: finds the command, runs it, and turns errors into one line and an exit status."""

from __future__ import annotations

import argparse
import errno
import gc
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pkb_gym
from pkb_gym.engine.errors import ConfigError, InfrastructureError, PkbError
from pkb_gym.engine.support.printable import printable
from pkb_gym.engine.support.proc_files import seconds_of_process
from pkb_gym.engine.support.suggestions import did_you_mean

from .command import EXIT_STATUSES, Session, Status
from .streams import prepare_streams

if TYPE_CHECKING:
    from pkb_gym.engine.evaluators.evaluator import Evaluator

COMMANDS = {
    "list": "list_problems",
    "show": "show",
    "new": "new",
    "eval": "evaluate",
    "eval-dir": "evaluate_folder",
    "run": "run",
    "export": "export",
    "report": "report",
    "compare": "compare",
    "best": "best",
    "verify": "verify",
    "leaderboard": "leaderboard",
    "demo": "demo",
    "serve": "serve",
    "evaluator": "background_evaluator",
    "doctor": "doctor",
    "check-problem": "check_problem",
}
"""Name of each command -> the module here that registers it."""


COLLECT_AFTER = 100_000
"""Allocations between two runs of the garbage collector: a short command ends before the first."""

OF_THE_MACHINE = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO),
    *(errno.EMFILE, errno.ENFILE, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP),
)
"""Errors of the operating system that say all in one line: a full disk, a folder that nobody may write to."""


def open_local_evaluator(key: bytes | None) -> Evaluator:
    """An evaluator on this machine."""
    from pkb_gym.engine.evaluators.local import LocalEvaluator

    return LocalEvaluator(key=key)


def make_parser(first_word: str = "") -> argparse.ArgumentParser:
    """The parser of `pkb`, with the parsers of its commands below it.

    Args:
        first_word: First argument. Where it names a command, no other command is imported; for the version, none is.
    """
    parser = argparse.ArgumentParser(
        prog="pkb",
        description="Judge multi-GPU kernels: compile, run on N ranks, check, time, profile, place on the roofline.",
        epilog=f"example:\n  pkb eval HyenaCP kernel.cpp --world-size 4\n\n{EXIT_STATUSES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"pkb-gym {pkb_gym.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    names = [first_word] if first_word in COMMANDS else [] if first_word == "--version" else list(COMMANDS)
    for name in names:
        importlib.import_module(f".{COMMANDS[name]}", __package__).register(commands)
    return parser


def main(
    argv: Sequence[str] | None = None,
    open_evaluator: Callable[[bytes | None], Evaluator] = open_local_evaluator,
) -> int:
    """Runs one command.

    Args:
        argv: Arguments, by default those of the process.
        open_evaluator: Function from a key to the evaluator; tests may give another.

    Returns:
        The exit status, see `Status`.
    """
    arguments = tuple(sys.argv[1:] if argv is None else argv)
    if argv is None:
        prepare_streams()
        gc.set_threshold(COLLECT_AFTER)  # most of what this process makes stays: modules, declarations, schemas
    try:
        if argv is None and signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # see `pkb_gym/__init__.py`
            signal.signal(signal.SIGINT, signal.default_int_handler)
        session = Session(arguments, open_evaluator, seconds_of_process if argv is None else None)
        status = _run(session)
        sys.stdout.flush()  # while an error can still be told
        return status
    except KeyboardInterrupt as stop:
        if argv is None:  # this process is `pkb`: what still ends it may be interrupted too, without a traceback
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        _complain("; ".join(["interrupted", *map(str, stop.args)]))
        return Status.INTERRUPTED
    except BrokenPipeError:
        # The reader (`| head`) has seen enough; nothing may be flushed into the closed pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Status.PASSED
    except SystemExit as end:  # of a reward, an agent or a library; its status is none of ours
        _complain(f"error: the command was ended by sys.exit({end.code!r}) before it was done")
        return Status.NOT_JUDGED
    except InfrastructureError as error:
        _complain(f"error: {error}")
        return Status.NOT_JUDGED
    except PkbError as error:
        _complain(f"error: {error}")
        return Status.USAGE
    except Exception as error:
        if argv is not None:
            raise
        # Python's own status for it, 1, would say that a candidate failed.
        if isinstance(error, OSError) and error.errno in OF_THE_MACHINE:
            _complain(f"error: {error}")
        else:
            traceback.print_exc()
        return Status.NOT_JUDGED


def _run(session: Session) -> int:
    """Parses the arguments and runs their command."""
    arguments = session.argv
    _check_command("".join(arguments[:1]))
    if not arguments:
        make_parser().print_help(sys.stderr)
        return Status.USAGE
    try:
        args = make_parser("".join(arguments[:1])).parse_args(arguments)
    except SystemExit as end:  # argparse, after --help or a wrong option
        return end.code if isinstance(end.code, int) else Status.USAGE
    _check_working_folder()
    return int(args.run(args, session))


def _check_working_folder() -> None:
    """Refuses a working folder that has been removed: nobody finds files from there.

    Raises:
        ConfigError: It is not there.
    """
    try:
        Path.cwd()
    except OSError as error:
        raise ConfigError(f"the working folder cannot be found ({error.strerror}); go to another one") from None


def _check_command(first_word: str) -> None:
    """Answers a mistyped command by the nearest one.

    Raises:
        ConfigError: there is no such command.
    """
    if first_word and not first_word.startswith("-") and first_word not in COMMANDS:
        hint = did_you_mean(first_word, COMMANDS)
        raise ConfigError(f"no command {first_word!r}.{hint} `pkb --help` lists all.")


def _complain(message: str) -> None:
    print(printable("pkb: " + " ".join(message.split("\n"))), file=sys.stderr)
