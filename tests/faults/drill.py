"""Kills processes of the evaluator at random moments, and takes disk, descriptors and cache away from it.

Each kill strikes while three sources are judged side by side: right, wrong and crashing ones, whose verdicts are known.
Each of them has to end with its verdict, or as `infrastructure`, and then with its verdict when it is judged again. A
killed rank of a candidate is the candidate's `runtime_error`, once a kill: the machine has no record of the drill's.
Half of the kills strike an evaluator in a child process, half one behind `pkb serve`. Gangs that stand by are killed
while nothing is judged, before the next source comes. At the end, no process, shared memory or temporary file may be
left over. Kills are numbered, and the seed decides each.

python -m tests.faults.drill [--device cpu|cuda] [--kills N] [--seed N] [--budget-s S] [--repeats N] [--only FAULT]
                             [--compiled FOLDER]

Exit status: 0 if there was no wrong verdict and nothing was left behind, else 1.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import psutil

from pkb_gym.engine.records.config import Device
from tests.faults.resources import Fault, resource_faults
from tests.faults.rows import Row, report
from tests.faults.standby import FallenStandby
from tests.faults.submissions import draw_submission
from tests.faults.targets import (
    EvaluatorTarget,
    ServiceTarget,
    Submission,
    Target,
    Through,
    Verdict,
    Victim,
    environment_of,
    victims,
)

PR_SET_CHILD_SUBREAPER = 36
VICTIMS: dict[Victim, int] = {
    "evaluator": 1,
    "zygote": 1,
    "reference leader": 2,
    "reference rank": 2,
    "candidate leader": 3,
    "candidate rank": 4,
    "compiler": 3,
}
"""Relative frequency of each kind: those whose replacement takes seconds, for importing torch, have the lowest."""

OF_SERVICE, OF_EVALUATOR, OF_STANDBY = ".", "compile-of-evaluator", "compile-of-standby"
"""Folders of the targets' caches."""

AT_ONCE = 3
LOOK_S = 0.02
LATEST_S = 1.5
"""The latest moment of a kill, after its evaluations have begun."""

ATTEMPTS = 4
"""A source that was not judged is judged again at most so often."""

ROUNDS = 20
"""A process of a kind is looked for in at most so many rounds of evaluations, sooner each time."""

GONE_S = 15.0
"""The longest time in which a process must end."""


class Drill:
    """Strikes, and counts what comes of it.

    Args:
        folder: Empty folder, for caches and temporary files.
        seed: Decides each kill.
        device: Device that sources run on.
        compiled: Folder of caches whose content those of the targets begin with; None for empty ones.

    Attributes:
        seed, device: Seed and device of the drill.
        struck: Number of kills so far.
    """

    def __init__(self, folder: Path, seed: int, device: Device = "cpu", compiled: Path | None = None) -> None:
        self.seed, self.device, self.struck = seed, device, 0
        self._rows: dict[tuple[str, Through], Row] = {}
        self._others = frozenset(psutil.Process().children(recursive=True))  # of whoever runs this
        self._temporary, self._cache = folder / "queue" / "tmp", folder / "cache"
        self._temporary.mkdir(parents=True)
        self._folder, self._environment = folder, environment_of(self._temporary, self._cache)
        for name in (OF_SERVICE, OF_EVALUATOR, OF_STANDBY) if compiled else ():
            shutil.copytree(compiled, self._cache / name, dirs_exist_ok=True)
        self._targets: dict[Through, Target] = {
            "evaluator": EvaluatorTarget(self._cache / OF_EVALUATOR, self._environment),
            "service": ServiceTarget(folder / "token", self._environment),
        }
        self._struck: set[Through] = set()

    @property
    def rows(self) -> list[Row]:
        """All rows, by fault."""
        return [self._rows[key] for key in sorted(self._rows)]

    def count(self, fault: str, through: Through, first: Sequence[tuple[Submission, Verdict]], target: Target) -> None:
        """Enters the verdicts on submissions that a fault met; judges again what was not judged."""
        right = retried = 0
        wrong = []
        struck_ranks = int(fault == "candidate rank killed")
        for submission, verdict in first:
            if struck_ranks and verdict.names_a_kill:
                struck_ranks -= 1
                right += 1
                continue
            again = verdict
            for _ in range(ATTEMPTS):
                if not again.is_infrastructure:
                    break
                target.start()
                again = target.evaluate(submission)
            if again.failure != submission.failure:
                found = f"{submission.name}: {again.failure} in place of {submission.failure}: {again.message[:300]}"
                wrong.append(f"{found} (at first {verdict.failure}: {verdict.message[:300]})")
                print(f"{fault}, through the {through}: {wrong[-1]}", file=sys.stderr)
            elif verdict.is_infrastructure:
                retried += 1
            else:
                right += 1
        row = self._rows.setdefault((fault, through), Row(fault, through))
        self._rows[fault, through] = row.with_fault(len(first), right, retried, wrong)

    def strike(self) -> None:
        """The next kill, with its evaluations.

        Raises:
            TimeoutError: no process of that kind was there.
        """
        draw = random.Random(f"{self.seed} {self.struck}")
        through: Through = draw.choice(("evaluator", "service"))
        (victim,) = draw.choices(list(VICTIMS), list(VICTIMS.values()))
        target = self._targets[through]
        self._struck.add(through)
        target.start()
        for attempt in range(ROUNDS):
            submissions = [
                draw_submission(draw, self.device, fresh=victim == "compiler" and not number)
                for number in range(AT_ONCE)
            ]
            with ThreadPoolExecutor(AT_ONCE) as threads:
                answers = [threads.submit(target.evaluate, submission) for submission in submissions]
                time.sleep(draw.uniform(0, LATEST_S) / (1 + attempt))
                killed = False
                while not killed and wait(answers, LOOK_S).not_done:
                    killed = _kill_one(target.pid, victim, draw)
            first = [(submission, answer.result()) for submission, answer in zip(submissions, answers, strict=True)]
            if killed:
                self.count(f"{victim} killed", through, first, target)
                break
            self.count("none", through, first, target)
        else:
            raise TimeoutError(f"no {victim} ran while {ROUNDS * AT_ONCE} sources were judged")
        self.struck += 1

    def take_away(self, repeats: int, only: str | None = None) -> None:
        """Every other fault, or only those of one name, so often."""
        if not repeats:
            return
        for fault in self._other_faults():
            if only not in (None, fault.name):
                continue
            with fault as target:
                for number in range(repeats):
                    draw = random.Random(f"{self.seed} {fault.name} {number}")
                    submission = draw_submission(draw, self.device, fresh=fault.compiles)
                    if not fault.compiles:
                        target.evaluate(submission)  # it is in the cache then
                    with fault.taken_away(draw):
                        first = target.evaluate(submission)
                    self.count(fault.name, fault.through, [(submission, first)], target)

    def _other_faults(self) -> Iterator[Fault]:
        """Those of resources are the same on every device; on the CPU no gang stands by behind a service."""
        if self.device == "cpu":
            yield from resource_faults(self._cache, self._environment)
            arguments = ["--standing-by"]
        else:
            arguments = []
            yield FallenStandby(ServiceTarget(self._folder / "token-of-standby", self._environment), "service")
        evaluator = EvaluatorTarget(self._cache / OF_STANDBY, self._environment, arguments)
        yield FallenStandby(evaluator, "evaluator")

    def close(self) -> list[str]:
        """Ends everything after one more evaluation of each target that was struck; one line for each leftover."""
        for target in (self._targets[through] for through in sorted(self._struck)):
            target.start()
            target.evaluate(draw_submission(random.Random(0), self.device, fresh=False))
            target.close()
        return self.left_over()

    def left_over(self) -> list[str]:
        """Processes and temporary files that do not go away."""
        until = time.monotonic() + GONE_S
        while True:
            processes = [
                child
                for child in psutil.Process().children(recursive=True)
                if child not in self._others and _runs(child)
            ]
            files = [*self._temporary.iterdir(), *self._cache.rglob(".*")]
            files += Path("/dev/shm").glob("pkb*")
            if not (processes or files) or time.monotonic() > until:
                return [f"process {child.pid}: {' '.join(child.cmdline())[:200]}" for child in processes] + [
                    f"file {path.name}" for path in files
                ]
            time.sleep(0.1)


def _kill_one(pid: int, victim: Victim, draw: random.Random) -> bool:
    """Whether there was a process of that kind, and it was killed."""
    found = victims(pid, victim)
    if not found:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(draw.choice(found), signal.SIGKILL)
        return True
    return False


def _runs(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        if process.status() != psutil.STATUS_ZOMBIE:
            return True
        with contextlib.suppress(ChildProcessError):  # an orphan, which is ours to reap
            os.waitpid(process.pid, os.WNOHANG)
    return False


@contextlib.contextmanager
def running_drill(seed: int, device: Device, compiled: Path | None) -> Iterator[Drill]:
    """A drill in a folder of its own; orphans become this process's children, and are found."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory(prefix="pkb-drill-") as folder:
        yield Drill(Path(folder), seed, device, compiled)


def main() -> int:
    """Takes things away, strikes until the number or the budget is reached, and prints what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="(default: cpu)")
    parser.add_argument("--only", metavar="FAULT", help='of the faults that are no kill, such as "standby gang killed"')
    parser.add_argument("--kills", type=int, default=300, help="at random moments (default: 300)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="begin no further kill after so long")
    parser.add_argument("--repeats", type=int, default=20, help="of every other fault (default: 20)")
    parser.add_argument("--compiled", type=Path, metavar="FOLDER", help="caches to begin with (default: empty ones)")
    args = parser.parse_args()
    began = time.monotonic()
    with running_drill(args.seed, args.device, args.compiled) as drill:
        try:
            drill.take_away(args.repeats, args.only)
            while drill.struck < args.kills and time.monotonic() - began < args.budget_s:
                drill.strike()
        finally:
            left_over = drill.close()
    return report(drill.rows, drill.struck, left_over)


if __name__ == "__main__":
    sys.exit(main())
