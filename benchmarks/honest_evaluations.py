"""Right kernels over and over, each time with another seed: one that is refused is a false alarm.

    python -m benchmarks.honest_evaluations [--device cpu] [--evaluations 2000] [--jobs N] [PROBLEM ...]

Every problem's reference and, where there is one, its expert, at `tiny`, until they have been timed. Jobs are
evaluators in processes of their own, each with processors and temporary files of its own, so that none waits for
another's timing. Where the result of an earlier run of this commit, device and world size lies in the folder, the run
goes on behind it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Literal

from benchmarks.common import RESULTS, header, make_parser
from benchmarks.fault_targets import EvaluatorTarget, Submission, Verdict, environment_of
from benchmarks.side_by_side import Share, default_jobs, shares
from pkb_gym.engine.hardware.calibrate import measure_processors
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import Device, EvalConfig
from pkb_gym.engine.support import env_vars
from pkb_gym.engine.support.atomic_write import write_atomically
from pkb_gym.problems.catalogue import catalogue, expert_source, find_problem, reference_source

BUDGET_S = 0.1
"""Timing of each: what matters here is that timed calls are right."""

ATTEMPTS = 3
"""A kernel that the machine could not judge is judged again at most so often."""

EVERY_S = 20.0
"""Between two writings of the result."""


@dataclass
class Row:
    """A kernel's evaluations.

    Attributes:
        problem: that it solves.
        kernel: which.
        seeds: of the evaluations so far.
        refused: the message of each that did not pass.
        unjudged: how many the machine could not judge.
    """

    problem: str
    kernel: Literal["expert", "reference"]
    seeds: list[int] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    unjudged: int = 0

    def enter(self, seed: int, verdict: Verdict) -> None:
        """One evaluation more."""
        self.seeds.append(seed)
        if verdict.is_infrastructure:
            self.unjudged += 1
            print(f"{self.problem}, {self.kernel}, seed {seed}: {verdict.message[:300]}", file=sys.stderr)
        elif verdict.failure is not None:
            self.refused.append(f"seed {seed}: {verdict.failure}: {verdict.message[:500]}")
            print(f"{self.problem}, {self.kernel}, {self.refused[-1]}", file=sys.stderr)


@dataclass(frozen=True)
class Kernel:
    """A right source.

    Attributes:
        row: its evaluations.
        source: text.
    """

    row: Row
    source: str


def right_kernels(problems: Iterable[Problem], device: Device) -> Iterator[Kernel]:
    """Each reference and expert, with an empty row."""
    for problem in problems:
        yield Kernel(Row(problem.name, "reference"), reference_source(problem))
        expert = expert_source(problem, "cpp" if device == "cpu" else "cu")
        if expert is not None:
            yield Kernel(Row(problem.name, "expert"), expert)


def first_evaluations(kernels: Sequence[Kernel], evaluations: int) -> list[tuple[Kernel, int]]:
    """So many evaluations, the kernels in turn, each time with another seed; without those that are in the rows."""
    rounds = ((kernel, seed) for seed in count() for kernel in kernels)
    wanted = [next(rounds) for _ in range(evaluations if kernels else 0)]
    return [(kernel, seed) for kernel, seed in wanted if seed not in kernel.row.seeds]


EvaluateSubmission = Callable[[Submission], Verdict]


class Sweep:
    """Evaluations that several judges share.

    Args:
        work: what is left to do.
        device: that kernels run on.
        world_size: number of ranks.
        save: called now and then, never by two threads at once.
    """

    def __init__(
        self, work: Sequence[tuple[Kernel, int]], device: Device, world_size: int, save: Callable[[], None]
    ) -> None:
        self._work, self._device, self._world_size, self._save = iter(work), device, world_size, save
        self._lock = threading.Lock()
        self._saved = time.monotonic()

    def work_with(self, evaluate: EvaluateSubmission) -> None:
        """Evaluates until nothing is left."""
        while (taken := self._take()) is not None:
            kernel, seed = taken
            verdict = self._evaluate(evaluate, kernel, seed)
            with self._lock:
                kernel.row.enter(seed, verdict)
                if time.monotonic() - self._saved > EVERY_S:
                    self._saved = time.monotonic()
                    self._save()

    def _take(self) -> tuple[Kernel, int] | None:
        with self._lock:
            return next(self._work, None)

    def _evaluate(self, evaluate: EvaluateSubmission, kernel: Kernel, seed: int) -> Verdict:
        config = EvalConfig(
            device=self._device,
            world_size=self._world_size,
            size="tiny",
            until="time",
            seed=seed,
            timing_budget_s=BUDGET_S,
        )
        submission = Submission(kernel.row.kernel, kernel.row.problem, kernel.source, None, config)
        verdict = evaluate(submission)
        for _ in range(ATTEMPTS - 1):
            if verdict.is_infrastructure:
                verdict = evaluate(submission)
        return verdict


def calibrate(of_machine: Sequence[Share]) -> None:
    """Measures the processors of each size of share while nothing else runs, for all evaluators."""
    by_size = {len(processors): processors for processors in (share.processors() for share in of_machine)}
    for processors in by_size.values():
        measure_processors(processors)


def run_share(sweep: Sweep, share: Share, folder: Path) -> None:
    """Takes part in a sweep with an evaluator in a process of its own; its thread stays on the share's processors.

    Args:
        sweep: of all shares.
        share: of the machine.
        folder: for temporary files.
    """
    os.sched_setaffinity(0, share.processors())  # of this thread, and of the processes that it starts
    cache = env_vars.cache_dir()
    target = EvaluatorTarget(cache, environment_of(share.temporary_folder(folder), cache))

    def evaluate(submission: Submission) -> Verdict:
        target.start()  # anew, should it have ended
        return target.evaluate(submission)

    try:
        sweep.work_with(evaluate)
    finally:
        target.close()


def read_earlier(path: Path, about: dict[str, Any], kernels: Sequence[Kernel]) -> None:
    """Fills the rows from an earlier result, if that is of the same commit, device and world size."""
    if not path.exists():
        return
    found = json.loads(path.read_text(encoding="utf-8"))
    if any(found.get(name) != about[name] for name in ("commit", "device", "world_size")):
        return
    rows = {(row["problem"], row["kernel"]): row for row in found["rows"]}
    for kernel in kernels:
        if row := rows.get((kernel.row.problem, kernel.row.kernel)):
            kernel.row.seeds, kernel.row.refused = row["seeds"], row["refused"]
            kernel.row.unjudged = row["unjudged"]


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """The header above the rows, and the rows."""
    return {
        "evaluations": sum(len(row.seeds) for row in rows),
        "refused": sum(len(row.refused) for row in rows),
        "unjudged": sum(row.unjudged for row in rows),
        "rows": [asdict(row) | {"seeds": sorted(row.seeds)} for row in rows],
    }


def main() -> int:
    """Evaluates and saves; 1 if a right kernel was refused."""
    parser = make_parser("honest_evaluations", __doc__)
    parser.add_argument("problems", nargs="*", metavar="PROBLEM", help="see: pkb list (default: all)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--world-size", type=int, default=2, help="number of ranks (default: %(default)s)")
    parser.add_argument("--evaluations", type=int, default=2000, help="in all (default: %(default)s)")
    parser.add_argument("--jobs", type=int, help="evaluators (default: 1 on GPUs, else a processor for each rank)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result (default: %(default)s)")
    args = parser.parse_args()
    jobs = args.jobs or (1 if args.device == "cuda" else default_jobs(args.world_size))
    if args.device == "cuda" and jobs > 1:
        parser.error(f"--jobs {jobs}: one evaluator at a time can use the GPUs; leave --jobs out")
    problems = [find_problem(name) for name in args.problems] or list(catalogue())
    kernels = list(right_kernels(problems, args.device))
    about = header() | {"device": args.device, "world_size": args.world_size, "jobs": jobs}
    name = "honest_evaluations" if args.device == "cpu" else f"honest_evaluations_{args.world_size}_gpus"
    path = args.out / f"{name}.json"
    read_earlier(path, about, kernels)
    rows = [kernel.row for kernel in kernels]

    def save() -> None:
        write_atomically(path, json.dumps(about | summary(rows), indent=1) + "\n")

    sweep = Sweep(first_evaluations(kernels, args.evaluations), args.device, args.world_size, save)
    if args.device == "cpu":
        calibrate(shares(jobs))
    with tempfile.TemporaryDirectory(prefix="pkb-honest-") as folder:
        threads = [threading.Thread(target=run_share, args=(sweep, share, Path(folder))) for share in shares(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    save()
    found = summary(rows)
    print(f"{found['evaluations']} evaluations, {found['refused']} refused, {found['unjudged']} not judged")
    return 1 if found["refused"] else 0


if __name__ == "__main__":
    sys.exit(main())
