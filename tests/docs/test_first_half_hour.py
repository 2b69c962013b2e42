"""docs/first_half_hour.md: its marked commands, run again in their order, print what stands there, numbers aside.

A block is marked by `compared="PATTERN"`: lines that fit it are compared, others may differ between runs. Blocks
without a mark take long. `make test` runs them as far as the first kernel that is refused, `make all` all.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT
from tests.whole_tables import IS_WHOLE

PAGE = (DOCS / "first_half_hour.md").read_text(encoding="utf-8")
BLOCK = re.compile(r'^```(console|python)(?: compared="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
STEPS = [found.groups() for found in BLOCK.finditer(PAGE)]
REFUSED = next(number for number, (_, _, text) in enumerate(STEPS) if "failure" in text)
SHOWN = STEPS if IS_WHOLE else [*STEPS[: REFUSED + 1], STEPS[-1]]
Run = Callable[[str], list[str]]


def comparable(pattern: str, lines: Sequence[str]) -> list[str]:
    """The lines that fit a pattern, without numbers, units, bars and layout."""
    return [_without_figures(line) for line in lines if line != "..." and re.search(pattern, line)]


def _without_figures(line: str) -> str:
    line = re.sub(r"[░▏▎▍▌▋▊▉█]+", "bar", line)
    line = re.sub(r"-?\d[\d.,]*(?:e[+-]?\d+)?(?: (?:ns|us|ms|s)\b)?", "#", line)
    return " ".join(line.split())


@pytest.fixture
def folder() -> Iterator[Path]:
    # The path of a socket has 107 characters at most, and that of pytest's folder may have more.
    with tempfile.TemporaryDirectory(prefix="pkb-", dir="/tmp") as made:
        for name in ("work", "bin", "run"):
            (Path(made) / name).mkdir(mode=0o700)
        yield Path(made)


@pytest.fixture
def run(folder: Path, compiled_before: Path) -> Iterator[Run]:
    """Runs a command in the working folder, with a background evaluator of its own, and returns the lines it prints."""
    pkb = folder / "bin/pkb"
    pkb.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m pkb_gym.cli "$@"\n')
    pkb.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{pkb.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        "PKB_RUNTIME_DIR": str(folder / "run"),
        "PKB_EVALUATOR": "background",
    }

    def call(command: str) -> list[str]:
        ran = subprocess.run(
            ["bash", "-c", command],
            cwd=folder / "work",
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
        return [line.rstrip() for line in ran.stdout.splitlines()]

    yield call
    call("pkb evaluator stop")


def test_most_commands_are_run() -> None:
    commands = [mark for kind, mark, _ in STEPS if kind == "console"]
    assert commands.count(None) <= 3 and len(commands) > 10
    for kind, mark, text in STEPS:
        if kind == "console":
            assert text.startswith("$ ")
        if mark:
            assert comparable(mark, text.splitlines()[1:]), f"nothing of {text.splitlines()[0]} is compared"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_commands_print_what_the_page_shows(folder: Path, run: Run) -> None:
    for kind, mark, text in SHOWN:
        first, *lines = text.splitlines()
        if kind == "python":
            path = folder / "work" / first.removeprefix("# ")
            path.parent.mkdir(exist_ok=True)
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        elif mark:
            printed = run(first.removeprefix("$ "))
            shown = [line for line in printed if _without_figures(line) in comparable(".", lines)]
            assert comparable(mark, shown) == comparable(mark, lines), "\n".join(printed)


def test_figures_are_not_compared() -> None:
    one = ["│ time  candidate 58.5 us, 34.8x [4.76, 133] ███░ 12 %   │", "other", "rank 1: -6.2e+32"]
    other = ["│ time  candidate 1.2 ms, 3x [2, 4] █░░░ 1.5 % │", "rank 0: 7"]
    assert comparable("time|rank", one) == comparable("time|rank", other)
    assert comparable("rank", ["rank 1: nan"]) != comparable("rank", ["rank 1: -6.2e+32"])
