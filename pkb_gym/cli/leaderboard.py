"""`pkb leaderboard`: makes entries of results, and the table of entries."""

from __future__ import annotations

import argparse
import datetime as dt
import re
from pathlib import Path

from pkb_gym.engine.errors import ConfigError

from .command import Session, Status, add_parser
from .results_options import add_results_argument
from .sources import write_file

EXAMPLE = """pkb leaderboard add expert=results.jsonl --name expert-cpu --kind expert --title "Expert kernels" \\
    --description "The kernels of this package." --command "pkb eval-dir experts/" --folder leaderboard
pkb leaderboard table leaderboard/entries --output leaderboard/README.md"""

COMMIT = re.compile(r"[0-9a-f]{12}")


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `pkb leaderboard` with `add`, `table`, `pictures` and `schema`."""
    parser = add_parser(
        commands, "leaderboard", run_table, summary="Make entries of the leaderboard, and its table.", example=EXAMPLE
    )
    kinds = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    add = kinds.add_parser("add", help="make an entry of results", description="Make an entry of one agent's results.")
    add.set_defaults(run=run_add)
    add_results_argument(add)
    add.add_argument(
        "--name", required=True, help="name of the entry's file: lower case letters, digits, dots, - and _"
    )
    add.add_argument(
        "--kind", required=True, choices=("expert", "reference", "search", "model"), help="kind of the author"
    )
    add.add_argument("--title", required=True, help="title in the table")
    add.add_argument("--description", required=True, help="model and prompt, or origin of the kernels")
    add.add_argument("--command", required=True, help="command line that made the results")
    add.add_argument(
        "--target",
        metavar="RESULTS",
        help="results of another agent, such as the experts: turns until its best kernels are reached",
    )
    add.add_argument("--commit", help="commit of the measurement, 12 digits (default: this checkout's, if unchanged)")
    add.add_argument("--date", type=_date, help="date of the measurement, YYYY-MM-DD (default: today)")
    add.add_argument(
        "--folder",
        type=Path,
        default=Path("leaderboard"),
        metavar="DIR",
        help="entries lie in DIR/entries (default: leaderboard)",
    )
    table = kinds.add_parser("table", help="make the table of entries", description="Make the table of entries.")
    table.set_defaults(run=run_table)
    table.add_argument("--output", type=Path, metavar="FILE", help="Markdown file (default: print it)")
    pictures = kinds.add_parser(
        "pictures",
        help="draw their figures",
        description="Draw the figures of entries as SVG, for light and dark pages.",
    )
    pictures.set_defaults(run=run_pictures)
    for each in (table, pictures):
        each.add_argument(
            "entries", nargs="+", type=Path, metavar="ENTRIES", help="files of entries, or folders of them"
        )
    pictures.add_argument(
        "--output",
        type=Path,
        default=Path("leaderboard/pictures"),
        metavar="DIR",
        help="folder of the pictures (default: leaderboard/pictures)",
    )
    schema = kinds.add_parser("schema", help="print the JSON schema", description="Print the JSON schema of an entry.")
    schema.set_defaults(run=run_schema)


def run_add(args: argparse.Namespace, session: Session) -> int:  # noqa: ARG001  # every command has this signature
    """Writes an entry.

    Raises:
        ConfigError: results cannot be read or make no entry, the commit is none, or the file cannot be written.
    """
    from pkb_gym.report.leaderboard.build import EntryText, make_entry

    text = EntryText(
        name=args.name,
        title=args.title,
        kind=args.kind,
        description=args.description,
        command=args.command,
        commit=_commit(args.commit),
        date=args.date or dt.datetime.now(dt.UTC).date(),
    )
    entry = make_entry(args.results, text, args.target)
    path = args.folder / "entries" / f"{entry.name}.json"
    write_file(path, entry.to_json())
    print(path)
    return Status.PASSED


def run_table(args: argparse.Namespace, session: Session) -> int:  # noqa: ARG001  # every command has this signature
    """Writes or prints the table.

    Raises:
        ConfigError: a file is no entry, or cannot be read or written.
    """
    from pkb_gym.report.leaderboard.entry import read_entries
    from pkb_gym.report.leaderboard.table import leaderboard_markdown

    text = leaderboard_markdown(read_entries(args.entries))
    if args.output is None:
        print(text, end="")
    else:
        write_file(args.output, text)
        print(args.output)
    return Status.PASSED


def run_pictures(args: argparse.Namespace, session: Session) -> int:  # noqa: ARG001  # as every command
    """Writes the pictures and prints their names.

    Raises:
        ConfigError: a file is no entry or cannot be read, a library is missing, or a picture cannot be written.
    """
    from pkb_gym.report.leaderboard.entry import read_entries
    from pkb_gym.report.leaderboard.pictures import write_leaderboard_pictures

    try:
        written = write_leaderboard_pictures(read_entries(args.entries), args.output)
    except OSError as error:
        raise ConfigError(f"cannot write {error.filename or args.output}: {error.strerror}") from None
    for path in written:
        print(path)
    return Status.PASSED


def run_schema(args: argparse.Namespace, session: Session) -> int:  # noqa: ARG001  # every command has this signature
    """Prints the schema."""
    from pkb_gym.report.leaderboard.entry import json_schema

    print(json_schema(), end="")
    return Status.PASSED


def _commit(given: str | None) -> str:
    """The commit as given, or that of this checkout.

    Raises:
        ConfigError: it has no 12 hexadecimal digits, or the checkout has changes.
    """
    from pkb_gym.report.leaderboard.checkout import checkout_commit

    commit = given if given is not None else checkout_commit()
    if commit is None:
        raise ConfigError("no commit is known: this package lies in no git checkout. Give --commit")
    if COMMIT.fullmatch(commit) is None:
        hint = "commit the changes, or give --commit" if commit.endswith("-dirty") else "give its first 12 digits"
        raise ConfigError(f"a commit has 12 hexadecimal digits, got {commit!r}; {hint}")
    return commit


def _date(text: str) -> dt.date:
    try:
        return dt.date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a date such as 2026-01-31, got {text!r}") from None
