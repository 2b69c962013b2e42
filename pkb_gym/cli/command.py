"""Shared parts of the commands: exit statuses, opening of evaluators, output streams.

A command is a module with `register(commands)`, which adds the command's parser; the parser's default `run` takes the
parsed arguments and the session and returns the exit status.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import IO, TYPE_CHECKING, Any

from pkb_gym.engine.support import env_vars
from pkb_gym.engine.support.printable import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from pkb_gym.engine.evaluators.evaluator import Evaluator

PIPE_WIDTH = 120
"""Columns where the output is no terminal, and COLUMNS is not set."""

PROSE_WIDTH = 24
"""Columns that prose in a table has at least."""

UNLIMITED_WIDTH = 10_000


class Status(IntEnum):
    """Exit statuses: whose fault it was."""

    PASSED = 0
    FAILED = 1
    """The candidate failed."""
    USAGE = 2
    """The question makes no sense."""
    NOT_JUDGED = 3
    """This machine could not judge it."""
    INTERRUPTED = 130
    """Ctrl-C."""


EXIT_STATUSES = "exit status: 0 passed, 1 the candidate failed, 2 wrong usage, 3 this machine could not judge it"


RESUMES = "the same command continues"
"""Said of a command that was stopped and can be given again."""

NO_GPU = "this machine has no GPU; --device emulated runs CUDA sources on a model of GPUs"
"""Why sources were compiled and not run, and what can be done."""


@contextmanager
def resuming() -> Iterator[None]:
    """Has the error of Ctrl-C say that the same command continues.

    Raises:
        KeyboardInterrupt: Ctrl-C, within the block.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(RESUMES) from None


@dataclass(frozen=True)
class Session:
    """The resources that `main` hands to a command.

    Attributes:
        argv: Arguments of the call of `pkb`.
        open_evaluator: Function from the key of the inputs, None for a random one, to the evaluator.
        elapsed_s: Function to the seconds since the process began; None where another program calls the command.
    """

    argv: tuple[str, ...]
    open_evaluator: Callable[[bytes | None], Evaluator]
    elapsed_s: Callable[[], float] | None = None


def add_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    run: Callable[[argparse.Namespace, Session], int],
    *,
    summary: str,
    example: str,
    exit_statuses: str = "",
) -> argparse.ArgumentParser:
    """A command's parser, with its example (lines that begin with `pkb`) and its exit statuses below the options."""
    epilog = "\n".join(["example:", *(f"  {line}" for line in example.splitlines())])
    parser = commands.add_parser(
        name,
        help=summary[0].lower() + summary[1:].rstrip("."),
        description=summary,
        epilog=f"{epilog}\n\n{exit_statuses}" if exit_statuses else epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


def add_json_option(parser: argparse.ArgumentParser, what: str) -> None:
    """Adds `--json`."""
    parser.add_argument("--json", action="store_true", help=f"print {what} and nothing else")


def stdout() -> Console:
    """The console of results."""
    return _console(sys.stdout)


def stderr() -> Console:
    """The console of everything else."""
    return _console(sys.stderr)


def plain_table() -> Table:
    """An empty table with a line below its head and no other."""
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)


def print_table(console: Console, table: Table) -> None:
    """Prints a table that fits the console, wrapping its columns of prose.

    Where it cannot fit, lines are longer than the console: a terminal wraps or scrolls them, and no cell is cut off.
    """
    print_uncut(console, table, _least_width(console, table))


def print_uncut(console: Console, shown: RenderableType, least_width: int) -> None:
    """Prints it as wide as the console, or wider where it needs that; see `print_table`."""
    before = console.width
    console.width = max(before, least_width)
    console.print(shown, crop=False)
    console.width = before


def _least_width(console: Console, table: Table) -> int:
    """The least width of the table, with its columns of prose at `PROSE_WIDTH`."""
    unlimited = console.options.update(width=UNLIMITED_WIDTH)
    natural = console.measure(table, options=unlimited).maximum
    spare = 0
    for column in table.columns:
        if not column.no_wrap:
            widest = max((console.measure(cell, options=unlimited).maximum for cell in column.cells), default=0)
            spare += max(0, widest - PROSE_WIDTH)
    return natural - spare


def _console(file: IO[str]) -> Console:
    from rich.console import Console
    from rich.text import Text

    class EscapingConsole(Console):
        """Shows texts without the control sequences in them: names of files may hold some, as what candidates write."""

        def render_str(self, text: str, **options: Any) -> Text:
            """Renders the printable part of a text, of cells of tables too, see `Console.render_str`."""
            return super().render_str(printable(text), **options)

    # Text of ours and of candidates is printed as it is: brackets are no markup, words are not coloured.
    width = None if file.isatty() else env_vars.columns() or PIPE_WIDTH
    return EscapingConsole(file=file, width=width, markup=False, highlight=False, emoji=False)
