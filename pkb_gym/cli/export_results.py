"""`pkb export results`, and the manifest and the card that all exports to a folder share."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path

from pkb_gym.engine.support.atomic_write import write_atomically

from .command import Session, Status, add_parser, stderr

EXAMPLE = "pkb export results runs/agent --out data"


def register_results(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `pkb export results`."""
    parser = add_parser(
        kinds,
        "results",
        run_results,
        summary="Write evaluated submissions, of `pkb run`, `eval-dir` or `serve --results`, as a data set.",
        example=EXAMPLE,
        exit_statuses="",
    )
    parser.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="PATH",
        help="file of results, one JSON record a line, or folder of a run",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write to")


def run_results(args: argparse.Namespace, session: Session) -> int:
    """Writes results.

    Raises:
        ConfigError: a file cannot be read or holds something else, or there are no results.
    """
    from pkb_gym.corpus.manifest import origin
    from pkb_gym.corpus.results import write_results
    from pkb_gym.engine.errors import ConfigError
    from pkb_gym.engine.records.attempt_file import read_attempts

    attempts = [attempt for file in args.files for attempt in read_attempts(file)]
    if not attempts:
        raise ConfigError(f"no results in {', '.join(map(str, args.files))}")
    write_results(args.out, attempts)
    add_to_folder(args.out, "results", origin(command_of(session)) | {"rows": len(attempts)})
    stderr().print(f"{len(attempts)} results in {args.out}", soft_wrap=True)
    return Status.PASSED


def add_to_folder(out: Path, part: str, content: dict[str, object]) -> None:
    """Adds a data set to the manifest and to the card of a folder, which hold those of other exports too.

    Args:
        out: Folder of the data sets.
        part: Name of the data set, whose files are there.
        content: Part of the manifest for this data set.

    Raises:
        ConfigError: see `write_card`.
    """
    from pkb_gym.corpus.cards import write_card

    path = out / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    write_atomically(path, json.dumps(manifest | {part: content}, indent=1) + "\n")
    write_card(out)


def command_of(session: Session) -> str:
    """The command line, for a manifest."""
    return shlex.join(["pkb", *session.argv])
