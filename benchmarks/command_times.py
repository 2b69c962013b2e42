"""Times of `pkb` commands from the prompt to their end, and the parts of a compile.

python -m benchmarks.command_times

Commands run as processes of their own, with caches and sockets in a temporary folder; Python's compiled modules are
there after the first run, which is not counted.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.common import make_parser, save
from pkb_gym.cli.evaluate import STARTING_COMMAND
from pkb_gym.engine.compile.gxx import COMPILER_FLAGS, FLAGS
from pkb_gym.engine.compile.precompiled import PREFIX, precompiled_header
from pkb_gym.engine.compile.sandboxed_compiler import CompilerLimits, run_sandboxed
from pkb_gym.engine.compile.toolchain import INCLUDE, ffi_root, include_arguments, library_arguments
from pkb_gym.problems.catalogue import expert_source, find_problem
from pkb_gym.serve.background import running, stop

PROBLEM = "AllReduce"
OPTIONS = ("--device", "cpu", "--world-size", "2", "--size", "tiny", "--json")
REPETITIONS = 5
LIMITS = CompilerLimits(timeout_s=120.0)


def main() -> None:
    """Measures and keeps the result."""
    make_parser("command_times", __doc__).parse_args()
    source = expert_source(find_problem(PROBLEM))
    assert source is not None
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="pkb-") as name:
        commands = Commands(Path(name), source)
        try:
            result = {
                "load_average_before": load,
                "problem": PROBLEM,
                "options": " ".join(OPTIONS),
                "version_s": commands.median("--version"),
                "list_s": commands.median("list"),
                "eval": commands.evaluations(),
            }
        finally:
            for evaluator in running(commands.sockets):
                stop(evaluator)
        os.environ["PKB_CACHE_DIR"] = str(Path(name, "compile_by_stage"))
        result["compile"] = compile_by_stage(source)
    save("command_times", result)


class Commands:
    """Runs `pkb` with caches and sockets of its own.

    Args:
        folder: Folder for caches and sockets of all commands.
        source: Text of a kernel that passes.
    """

    def __init__(self, folder: Path, source: str) -> None:
        self.sockets = folder / "run"
        self._kernel, self._source, self._texts = folder / "kernel.cpp", source, 0
        self._environment = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
            "PKB_CACHE_DIR": str(folder / "cache"),
            "PKB_EVALUATOR": "background",
            "PKB_RUNTIME_DIR": str(self.sockets),
            "PYTHONPYCACHEPREFIX": str(folder / "modules"),
        }

    def median(self, *words: str) -> float:
        """Median seconds of a command."""
        self.run(*words)
        return statistics.median(self.run(*words)[0] for _ in range(REPETITIONS))

    def evaluations(self) -> dict[str, dict[str, Any]]:
        """Seconds from the command to its end, and of them by stage, for one evaluation in each state."""
        self._evaluate("--fresh")  # measures the machine's peaks, and precompiles the header
        self._new_text()
        measured = {
            "fresh": self._evaluate("--fresh"),
            "fresh_compiled_before": self._evaluate("--fresh"),
        }
        self._new_text()
        measured["background_first"] = self._evaluate()
        self._new_text()
        measured["background_second"] = self._evaluate()
        again = [self._evaluate() for _ in range(REPETITIONS)]
        measured["background_compiled_before"] = sorted(again, key=lambda each: each["wall_s"])[REPETITIONS // 2]
        return measured

    def run(self, *words: str) -> tuple[float, str]:
        """Seconds that a command took, and what it printed."""
        began = time.monotonic()
        ran = subprocess.run(
            [sys.executable, "-m", "pkb_gym.cli", *words],
            env=self._environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return time.monotonic() - began, ran.stdout

    def _new_text(self) -> None:
        """Nothing of the kernel is in any cache."""
        self._texts += 1
        self._kernel.write_text(f"{self._source}\n// {self._texts}\n", encoding="utf-8")

    def _evaluate(self, *words: str) -> dict[str, Any]:
        if not self._texts:
            self._new_text()
        wall_s, printed = self.run("eval", PROBLEM, str(self._kernel), *OPTIONS, *words)
        durations_s = json.loads(printed)["durations_s"]
        evaluation_s = sum(seconds for name, seconds in durations_s.items() if name != STARTING_COMMAND)
        return {
            "wall_s": wall_s,
            "outside_the_evaluation_s": wall_s - evaluation_s,
            "durations_s": durations_s,
        }


def compile_by_stage(source: str) -> dict[str, float]:
    """Seconds of the parts of a compile; medians, but for what happens once."""
    measured = {"precompiling_once_s": _seconds(lambda: precompiled_header(COMPILER_FLAGS))}
    folder = precompiled_header(COMPILER_FLAGS)
    readable = (INCLUDE, ffi_root(), *(() if folder is None else (folder,)))
    prefix = () if folder is None else ("-include", str(folder / PREFIX))
    files = {"kernel.cpp": source.encode()}

    def sandboxed(*command: str) -> None:
        assert run_sandboxed(command, files=files, readable=readable, limits=LIMITS).status == 0

    begin, end = ("g++", *FLAGS, *include_arguments()), ("kernel.cpp", "-o", "kernel.so", *library_arguments())
    measured["sandbox_s"] = _median(lambda: sandboxed("true"))
    measured["parsing_s"] = _median(lambda: sandboxed(*begin, "-fsyntax-only", "kernel.cpp"))
    measured["parsing_precompiled_s"] = _median(lambda: sandboxed(*begin, *prefix, "-fsyntax-only", "kernel.cpp"))
    measured["whole_s"] = _median(lambda: sandboxed(*begin, *end))
    measured["whole_precompiled_s"] = _median(lambda: sandboxed(*begin, *prefix, *end))
    with tempfile.TemporaryDirectory(prefix="pkb-") as name:
        Path(name, "kernel.cpp").write_text(source, encoding="utf-8")

        def plain(*options: str) -> Callable[[], object]:
            return lambda: subprocess.run([*begin, *options, *end], cwd=name, capture_output=True, check=True)

        measured["processor_s"] = _processor_seconds(plain())
        measured["processor_precompiled_s"] = _processor_seconds(plain(*prefix))
    return measured


def _seconds(action: Callable[[], object]) -> float:
    began = time.monotonic()
    action()
    return time.monotonic() - began


def _median(action: Callable[[], object]) -> float:
    return statistics.median(_seconds(action) for _ in range(REPETITIONS))


def _processor_seconds(action: Callable[[], object]) -> float:
    """Processor time of the processes that it starts, median; without a sandbox, whose processes are not counted."""

    def used() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    def once() -> float:
        before = used()
        action()
        return used() - before

    return statistics.median(once() for _ in range(REPETITIONS))


if __name__ == "__main__":
    main()
