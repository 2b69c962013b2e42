"""Processor time of every CUDA expert on emulated GPUs at tiny, 2 ranks: compile, plain run, run with the detector.

python -m benchmarks.emulated_experts [PROBLEM ...] [--before FOLDER] [--repeats N]

Times are those of all processes of an evaluation, of user and system, which a busy machine changes little. They come
from a control group and need root. Sources are compiled once; runs are medians. Two checkouts take turns. The build of
the emulator is timed by the clock, too, which needs an idle machine.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import commit, make_parser, save
from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.emulator import build_emulator
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.problems.catalogue import catalogue, expert_source, find_problem

ROOT = Path(__file__).resolve().parents[1]
GROUPS = Path("/sys/fs/cgroup")
PARTS = ("compile_s", "plain_s", "detector_s")


def processor_seconds() -> Callable[[], float]:
    """A clock of processor time in seconds: of this process and of all that it starts from now on.

    Raises:
        OSError: this user may make no control group.
    """
    version_1 = GROUPS / "cpuacct"
    group = (version_1 if version_1.is_dir() else GROUPS) / f"emulated_experts_{os.getpid()}"
    group.mkdir(exist_ok=True)
    (group / "cgroup.procs").write_text(str(os.getpid()))
    atexit.register(_leave, group)
    if version_1.is_dir():
        return lambda: int((group / "cpuacct.usage").read_text()) / 1e9
    return lambda: int((group / "cpu.stat").read_text().split()[1]) / 1e6


def _leave(group: Path) -> None:
    """Moves this process out of a control group, and removes the group where no other process is in it."""
    with contextlib.suppress(OSError):
        (group.parent / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


def measure(names: Sequence[str], folder: Path) -> dict[str, Any]:
    """The commit of the checkout, the build of its emulator, and one row a problem.

    Args:
        names: Names of problems that have an expert.
        folder: Folder of compiled files; what lies there is not compiled again.
    """
    now, rows = processor_seconds(), []
    cache = CompileCache.in_folder(folder)
    began, began_s = now(), time.monotonic()
    build_emulator(cache)
    built = {"emulator_build_s": now() - began, "emulator_build_wall_s": time.monotonic() - began_s}
    with LocalEvaluator(cache=cache) as evaluator:

        def evaluate(name: str, **settings: Any) -> float:
            """Processor time of an evaluation."""
            config = EvalConfig(
                device="emulated", size="tiny", world_size=2, compile_timeout_s=1200.0, timeout_s=1200.0, **settings
            )
            source = expert_source(find_problem(name), "cu")
            assert source is not None, f"{name} has no CUDA expert"
            began = now()
            feedback = evaluator.evaluate(find_problem(name), source, config)
            assert feedback.passed or config.until == "compile", f"{name}: {feedback.message}"
            return now() - began

        compiles = [evaluate(name, until="compile") for name in names]
        evaluate(names[0])  # starts the processes that evaluations share
        for name, compile_s in zip(names, compiles, strict=True):
            runs = {part: evaluate(name, **race_check(part == "detector_s")) for part in PARTS[1:]}
            rows.append({"problem": name, "compile_s": compile_s, **runs})
            print(rows[-1], file=sys.stderr)
    return {"commit": commit(), **built, "rows": rows}


def race_check(runs: bool) -> dict[str, Any]:
    """The option of a configuration; an earlier checkout has it under another name."""
    if "race_check" in EvalConfig.model_fields:
        return {"race_check": "on" if runs else "off"}
    return {"detect_races": runs}


def read_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = make_parser("emulated_experts", __doc__)
    parser.add_argument("problems", nargs="*", metavar="PROBLEM", help="default: all that have a CUDA expert")
    parser.add_argument(
        "--before", type=Path, metavar="FOLDER", help="another checkout, measured in turn with this one"
    )
    parser.add_argument("--repeats", type=int, default=3, help="runs of each (default: 3)")
    parser.add_argument(
        "--once", type=Path, help=argparse.SUPPRESS
    )  # one of the runs, and its folder of compiled files
    return parser.parse_args()


def main() -> None:
    """Measures and saves."""
    arguments = read_arguments()
    names = arguments.problems or [problem.name for problem in catalogue() if expert_source(problem, "cu")]
    if arguments.once:
        print(json.dumps(measure(names, arguments.once)))
        return
    checkouts = {"after": ROOT} | ({"before": arguments.before.resolve()} if arguments.before else {})
    found: dict[str, list[dict[str, Any]]] = {checkout: [] for checkout in checkouts}
    with tempfile.TemporaryDirectory() as compiled:
        for _ in range(arguments.repeats):
            for checkout, folder in checkouts.items():
                once = ["--once", f"{compiled}/{checkout}", *names]
                command = [sys.executable, "-P", __file__, *once]
                path = os.pathsep.join(map(str, (folder, folder / "emulator")))
                done = subprocess.run(
                    command, cwd=ROOT, env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE, check=True
                )
                found[checkout].append(json.loads(done.stdout))
    save("emulated_experts", {"checkouts": {name: summary(runs) for name, runs in found.items()}})


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The rows of a checkout and their sums: medians of the runs, and compiles, which only the first has."""
    rows = []
    for of_problem in zip(*(run["rows"] for run in runs), strict=True):
        first: dict[str, Any] = of_problem[0]
        values = {part: statistics.median(row[part] for row in of_problem) for part in PARTS} | {
            PARTS[0]: first[PARTS[0]]
        }
        rows.append({"problem": first["problem"]} | {part: round(value, 2) for part, value in values.items()})
    sums = {part: round(sum(row[part] for row in rows), 1) for part in PARTS}
    return {
        "commit": runs[0]["commit"],
        **{part: round(runs[0][part], 1) for part in ("emulator_build_s", "emulator_build_wall_s")},
        **sums,
        "rows": rows,
    }


if __name__ == "__main__":
    main()
