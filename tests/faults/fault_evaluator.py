"""A local evaluator in a process of its own, so that it can be killed, short of descriptors or of disk.

Reads one JSON object a line: {"id", "problem", "source", "config"} is evaluated, side by side with others, and answered
by {"id", "failure", "message"}; {"id", "spare"} leaves the process so many of its descriptors (null: all of them) and
is answered by {"id", "open"}, how many the evaluator has open. Ends with its standard input.

python -m tests.faults.fault_evaluator CACHE_FOLDER [--without-sandbox] [--standing-by]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pkb_gym.engine.compile import sandboxed_compiler
from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.evaluators import local
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.gangs import zygote
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure
from pkb_gym.engine.stages import execution_environment
from pkb_gym.problems.catalogue import find_problem
from tests.faults.standby import CpuGangsStandBy

THREADS = 8
MAX_DESCRIPTORS = 512
"""The limit of this process and, as limits are inherited, of each that it starts."""


def evaluate(evaluator: LocalEvaluator, order: dict[str, Any]) -> dict[str, Any]:
    """The verdict on one order."""
    config = EvalConfig.model_validate(order["config"])
    try:
        feedback = evaluator.evaluate(find_problem(order["problem"]), order["source"], config)
    except InfrastructureError as error:
        return {"failure": Failure.INFRASTRUCTURE.value, "message": str(error)}
    except Exception as error:
        return {"failure": type(error).__name__, "message": str(error)}
    return {"failure": feedback.failure and feedback.failure.value, "message": feedback.message}


class Descriptors:
    """Takes descriptors away from this process."""

    def __init__(self) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (MAX_DESCRIPTORS, MAX_DESCRIPTORS))
        self._taken: list[int] = []

    def leave(self, spare: int | None) -> dict[str, Any]:
        """Leaves so many descriptors free; all where it is None."""
        while self._taken:
            os.close(self._taken.pop())
        open_now = len(list(Path("/proc/self/fd").iterdir())) - 1  # without the listing's own
        if spare is not None:
            with contextlib.suppress(OSError):
                while True:
                    self._taken.append(os.open(os.devnull, os.O_RDONLY))
            for _ in range(min(spare, len(self._taken))):
                os.close(self._taken.pop())
        return {"open": open_now}


def main() -> None:
    """Serves orders until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cache", type=Path)
    parser.add_argument("--without-sandbox", action="store_true")
    parser.add_argument("--standing-by", action="store_true", help="gangs of the CPU stand by as those of GPUs do")
    args = parser.parse_args()
    if args.without_sandbox:
        for module in (sandboxed_compiler, execution_environment, zygote):
            module.bubblewrap_works = lambda: False  # type: ignore[attr-defined]  # as where it is not installed
    if args.standing_by:
        local.GangPool = CpuGangsStandBy  # type: ignore[attr-defined]
    answers, descriptors = threading.Lock(), Descriptors()

    def answer(order: dict[str, Any], found: dict[str, Any]) -> None:
        with answers:
            print(json.dumps({"id": order["id"]} | found), flush=True)

    with LocalEvaluator(cache_dir=args.cache) as evaluator, ThreadPoolExecutor(THREADS) as threads:

        def work(order: dict[str, Any]) -> None:
            answer(order, evaluate(evaluator, order))

        for line in sys.stdin:
            order = json.loads(line)
            if "spare" in order:
                answer(order, descriptors.leave(order["spare"]))
            else:
                threads.submit(work, order)


if __name__ == "__main__":
    main()
