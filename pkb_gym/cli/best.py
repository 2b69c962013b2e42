"""`pkb best`: the best kernel of each problem, as files that `pkb eval-dir` takes."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.problem.problem import snake_case
from pkb_gym.engine.support.atomic_write import write_atomically
from pkb_gym.engine.support.printable import printable

from .command import Session, Status, add_json_option, add_parser, plain_table, print_table, stderr, stdout
from .results_options import add_results_argument

if TYPE_CHECKING:
    from pkb_gym.metrics.best import BestKernel

EXAMPLE = """pkb best results.jsonl --output best/
pkb eval-dir best/"""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `pkb best`."""
    parser = add_parser(
        commands,
        "best",
        run,
        summary="Write the best right kernel of each problem to a folder that `pkb eval-dir` takes.",
        example=EXAMPLE,
        exit_statuses="exit status: 0 some were found, 1 no kernel is right, 2 wrong usage",
    )
    add_results_argument(parser)
    parser.add_argument("--output", type=Path, default=Path("best"), metavar="DIR", help="folder (default: best)")
    parser.add_argument(
        "--baseline",
        choices=("eager", "captured", "registered", "better"),
        default="better",
        help="baseline of the deciding speedup, the lower end of its interval (default: better, eager or captured)",
    )
    add_json_option(parser, "a list of the written files")


def run(args: argparse.Namespace, session: Session) -> int:  # noqa: ARG001  # every command has this signature
    """Writes the kernels and prints which they are.

    Raises:
        ConfigError: results cannot be read, the folder holds other files of these names, or cannot be written.
    """
    from pkb_gym.metrics.best import best_kernels
    from pkb_gym.metrics.sources import read_results

    found = best_kernels(read_results(args.results), args.baseline)
    files = {f"{file_stem(kernel.attempt.problem)}.{kernel.suffix}": kernel for kernel in found}
    try:
        for name, kernel in files.items():
            _write(args.output / name, kernel.source)
    except OSError as error:
        raise ConfigError(f"cannot write to {args.output}: {error.strerror}") from None
    if args.json:
        print(json.dumps([_record(name, kernel) for name, kernel in files.items()], indent=2))
    else:
        _print(files, args.output)
    for name, kernel in files.items():
        if kernel.configurations > 1:
            note = f"{name}: chosen among speedups of {kernel.configurations} configurations, which do not compare"
            stderr().print(note, soft_wrap=True)
    return Status.PASSED if found else Status.FAILED


def file_stem(problem: str) -> str:
    """The name of a problem's file without its suffix.

    Raises:
        ConfigError: the name of the problem is none, and would be a path.
    """
    if not problem.isidentifier():
        raise ConfigError(f"{printable(problem)!r} is no name of a problem")
    return snake_case(problem)


def _write(path: Path, source: str) -> None:
    """Writes a source as it was read, bytes that are no UTF-8 included; never over another kernel.

    Raises:
        ConfigError: the file holds something else.
    """
    data = source.encode("utf-8", errors="surrogateescape")
    if path.exists() and path.read_bytes() != data:
        raise ConfigError(f"{path} holds another kernel; give another --output, or remove it")
    write_atomically(path, data)


def _record(name: str, kernel: BestKernel) -> dict[str, object]:
    timing = kernel.feedback.timing
    return {
        "file": name,
        "problem": kernel.attempt.problem,
        "agent": kernel.attempt.agent,
        "sample": kernel.attempt.sample,
        "turn": kernel.attempt.turn,
        "speedup": None if timing is None else timing.speedup,
        "speedup_low": None if timing is None else timing.speedup_low,
        "decided_by": kernel.value,
        "among": kernel.among,
        "source_sha256": kernel.feedback.source_sha256,
    }


def _print(files: dict[str, BestKernel], folder: Path) -> None:
    table = plain_table()
    for name in ("file", "agent", "sample", "turn", "speedup", "low", "among"):
        table.add_column(name, no_wrap=True, justify="left" if name in ("file", "agent") else "right")
    for name, kernel in files.items():
        timing, attempt = kernel.feedback.timing, kernel.attempt
        table.add_row(
            *(name, printable(attempt.agent or ""), str(attempt.sample), str(attempt.turn)),
            *(("", "") if timing is None else (f"{timing.speedup:.2f}x", f"{kernel.value:.2f}x")),
            str(kernel.among),
        )
    print_table(stdout(), table)
    stdout().print(f"{len(files)} kernels in {folder}. Next: pkb eval-dir {folder}", soft_wrap=True)
