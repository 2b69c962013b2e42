"""Shared parts of the benchmarks: the header of a result, the folder of results."""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.metadata
import os
import platform
import re
import shlex
import sys
from pathlib import Path
from typing import Any

from pkb_gym.engine.hardware.cpu_info import cpu_info
from pkb_gym.engine.hardware.host import processors
from pkb_gym.engine.support.atomic_write import write_atomically
from pkb_gym.engine.support.row_json import row_json
from pkb_gym.report.leaderboard.checkout import checkout_commit

RESULTS = Path(__file__).resolve().parent / "results"


def make_parser(name: str, about: str | None) -> argparse.ArgumentParser:
    """The parser of `python -m benchmarks.<name>`, with the module's docstring above the options."""
    return argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def read_problems(name: str, about: str | None) -> list[str]:
    """The command line of a benchmark that takes names of problems and nothing else; empty where there are none."""
    parser = make_parser(name, about)
    parser.add_argument("problems", nargs="*", metavar="PROBLEM", help="see: pkb list (default: the benchmark's own)")
    problems: list[str] = parser.parse_args().problems
    return problems


def header() -> dict[str, Any]:
    """Date, machine, versions, command and commit of this run."""
    return {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "machine": f"{cpu_info().model}, {processors()} processors",
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
        "command": _command(),
        "commit": commit(),
    }


def _command() -> str:
    """The command line of this program, without folders of results and compiled files, with other files by name."""
    words = ["python", *sys.orig_argv[1:]]
    for option in {"--out", "--compiled"} & set(words):
        begin = words.index(option)
        del words[begin : begin + 2]
    return shlex.join(re.sub(r"(^|=)/.*/", r"\1", word) for word in words)


def commit() -> str:
    """The commit of this checkout, with "-dirty" where files differ from it; from PKB_GYM_COMMIT where git has none."""
    return checkout_commit() or os.environ["PKB_GYM_COMMIT"]


def save(name: str, result: dict[str, Any], folder: Path = RESULTS) -> None:
    """Writes one result with its header and prints it."""
    content = row_json(header() | result)
    write_atomically(folder / f"{name}.json", content)
    print(content, end="")
