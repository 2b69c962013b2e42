"""Kills processes of the evaluator at random moments, and takes disk, descriptors and cache away from it.

Each kill strikes while three sources are judged side by side: right, wrong and crashing ones, whose verdicts are known.
Each of them has to end with its verdict, or as `infrastructure`, and then with its verdict when it is judged again.
Half of the kills strike an evaluator in a child process, half one behind `pkb serve`. Gangs that stand by are killed
while nothing is judged, before the next source comes. At the end, no process, shared memory or temporary file may be
left over. Kills are numbered, and the seed decides each: where the result of an earlier run of this commit lies in the
folder, the run goes on behind it. Jobs share the kills; each has targets, processors and temporary files of its own.

python -m benchmarks.fault_drill [--device cpu|cuda] [--kills N] [--seed N] [--budget-s S] [--repeats N] [--jobs N]
    [--out FOLDER]
python -m benchmarks.fault_drill [--device cpu|cuda] --only FAULT [--seed N] [--repeats N] [--out FOLDER]

The second form renews the rows of one fault that is no kill at a random moment, such as "standby gang killed".

Exit status: 0 if there was no wrong verdict and nothing was left behind, else 1.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from benchmarks.common import RESULTS, header
from benchmarks.fault_resources import Fault, resource_faults
from benchmarks.fault_rows import Row, report
from benchmarks.fault_shares import merged, run_shares
from benchmarks.fault_standby import FallenStandby
from benchmarks.fault_submissions import draw_submission
from benchmarks.fault_targets import (
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
from benchmarks.side_by_side import Share
from pkb_gym.engine.records.config import Device
from pkb_gym.engine.support.atomic_write import write_atomically

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
"""How often each kind is drawn: those whose replacement takes seconds, for importing torch, least."""

RESULT_OF = {"cpu": "fault_drill.json", "cuda": "fault_drill_gpus.json"}
WHOLE = Share(0, 1)
AT_ONCE = 3
LOOK_S = 0.02
LATEST_S = 1.5
"""The latest moment of a kill, after its evaluations have begun."""

ATTEMPTS = 4
"""A source that was not judged is judged again at most so often."""

GONE_S = 15.0
"""The longest time in which a process must end."""

EVERY_S = 30.0


class Drill:
    """Strikes, and counts what comes of it.

    Args:
        folder: an empty one, for caches and temporary files.
        seed: decides each kill.
        rows: of an earlier run.
        struck: kills of that run.
        share: of the kills and other faults; its own are those whose numbers leave the share's when divided.
        device: that sources run on.

    Attributes:
        seed, struck, share, device: see above.
    """

    def __init__(
        self,
        folder: Path,
        seed: int,
        rows: Sequence[Row] = (),
        struck: int = 0,
        share: Share = WHOLE,
        device: Device = "cpu",
    ) -> None:
        self.seed, self.struck, self.share, self.device = seed, struck, share, device
        self._rows = {(row.fault, row.through): row for row in rows}
        self._others = frozenset(psutil.Process().children(recursive=True))  # of whoever runs this
        self._temporary, self._cache = share.temporary_folder(folder), folder / "cache"
        self._folder, self._environment = folder, environment_of(self._temporary, self._cache)
        self._targets: dict[Through, Target] = {
            "evaluator": EvaluatorTarget(self._cache / "compile-of-evaluator", self._environment),
            "service": ServiceTarget(folder / "token", self._environment),
        }
        self._struck: set[Through] = set()

    @property
    def number(self) -> int:
        """The number of the next kill, among those of all shares."""
        return self.share.number + self.struck * self.share.count

    @property
    def rows(self) -> list[Row]:
        """All rows, by fault."""
        return [self._rows[key] for key in sorted(self._rows)]

    def count(self, fault: str, through: Through, first: Sequence[tuple[Submission, Verdict]], target: Target) -> None:
        """Enters the verdicts on submissions that a fault met; judges again what was not judged."""
        right = retried = 0
        wrong = []
        for submission, verdict in first:
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
        """The next kill, with its evaluations."""
        draw = random.Random(f"{self.seed} {self.number}")
        through: Through = draw.choice(("evaluator", "service"))
        (victim,) = draw.choices(list(VICTIMS), list(VICTIMS.values()))
        target = self._targets[through]
        self._struck.add(through)
        target.start()
        for attempt in range(10):  # until a process of that kind was there
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
        self.struck += 1

    def take_away(self, repeats: int, only: str | None = None) -> None:
        """Every other fault, or only those of one name, so often."""
        known = {(row.fault, row.through) for row in self.rows}
        if not repeats:
            return
        for index, fault in enumerate(self._other_faults()):
            key = fault.name, fault.through
            if key in known or index % self.share.count != self.share.number or only not in (None, fault.name):
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
        evaluator = EvaluatorTarget(self._cache / "compile-of-standby", self._environment, arguments)
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


def earlier(path: Path, seed: int) -> tuple[list[Row], int, list[str]]:
    """Rows, number of kills and leftovers of an earlier run of the same commit and seed; nothing otherwise."""
    if not path.exists():
        return [], 0, []
    found = json.loads(path.read_text(encoding="utf-8"))
    if (found["commit"], found["seed"]) != (header()["commit"], seed):
        return [], 0, []
    return [Row(**row) for row in found["rows"]], found["kills"], found["left_over"]


def drill(
    path: Path,
    about: dict[str, Any],
    kills: int,
    budget_s: float,
    repeats: int,
    seed: int,
    share: Share,
    device: Device = "cpu",
) -> int:
    """Strikes until the number or the budget is reached, and saves; 0 if all is sound.

    Args:
        path: of the result.
        about: what stands at its head.
        kills: in all runs of this share together.
        budget_s: no further kill begins after so long.
        repeats: of every other fault.
        seed: decides each kill.
        share: of the machine and the kills.
        device: that sources run on.
    """
    rows, struck, left_over = earlier(path, seed)
    began = time.monotonic()
    with running_drill(seed, rows, struck, share, device) as of_share:

        def save(found: Sequence[str]) -> None:
            result = {"seed": seed, "kills": of_share.struck, "left_over": [*left_over, *found]}
            result |= {"rows": [row.record() for row in of_share.rows if row.fault != "none" or row.wrong]}
            write_atomically(path, json.dumps(about | result, indent=1) + "\n")

        saved = began
        try:
            of_share.take_away(repeats)
            while of_share.struck < kills and time.monotonic() - began < budget_s:
                of_share.strike()
                if time.monotonic() - saved > EVERY_S:
                    saved = time.monotonic()
                    save([])
        finally:
            found = of_share.close()
            save(found)
    return report(of_share.rows, of_share.struck, [*left_over, *found])


@contextlib.contextmanager
def running_drill(seed: int, rows: Sequence[Row], struck: int, share: Share, device: Device) -> Iterator[Drill]:
    """A drill in a folder of its own; orphans become this process's children, and are found."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.sched_setaffinity(0, share.processors())
    with tempfile.TemporaryDirectory(prefix="pkb-drill-") as folder:
        yield Drill(Path(folder), seed, rows, struck, share, device)


def renew(path: Path, about: dict[str, Any], fault: str, repeats: int, seed: int, device: Device) -> int:
    """Has one fault anew, and replaces its rows in a result; they name their own commit. 0 if all is sound.

    Args:
        path: of the result.
        about: of this run.
        fault: its name.
        repeats: how often.
        seed: decides each.
        device: that sources run on.

    Raises:
        FileNotFoundError: there is no result.
    """
    result = json.loads(path.read_text(encoding="utf-8"))
    with running_drill(seed, (), 0, WHOLE, device) as of_fault:
        of_fault.take_away(repeats, fault)
        left_over = of_fault.close()
    fresh = [replace(row, commit=about["commit"]) for row in of_fault.rows]
    rows = [Row(**row) for row in result["rows"] if row["fault"] != fault] + fresh
    rows.sort(key=lambda row: (row.fault, row.through))
    result |= {"rows": [row.record() for row in rows], "left_over": [*result["left_over"], *left_over]}
    write_atomically(path, json.dumps(result, indent=1) + "\n")
    return report(fresh, 0, left_over)


def main() -> int:
    """Strikes, by itself or by several processes side by side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="(default: cpu)")
    parser.add_argument("--only", metavar="FAULT", help="renew the rows of this fault alone")
    parser.add_argument("--kills", type=int, default=300, help="in all runs together (default: 300)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="begin no further kill after so long")
    parser.add_argument("--repeats", type=int, default=20, help="of every other fault (default: 20)")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the kills (default: 1)")
    parser.add_argument("--share", type=int, help=argparse.SUPPRESS)  # of the jobs: this process is one of them
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    about = header()  # now: results that are saved meanwhile change the checkout
    path = args.out / RESULT_OF[args.device]
    if args.only is not None:
        return renew(path, about, args.only, args.repeats, args.seed, args.device)
    if args.share is not None:
        share = Share(args.share, args.jobs)
        kills = kills_of(share, args.kills)
        return drill(path, about, kills, args.budget_s, args.repeats, args.seed, share, args.device)
    if args.jobs == 1:
        return drill(path, about, args.kills, args.budget_s, args.repeats, args.seed, WHOLE, args.device)
    folder = args.out / f"{path.stem}_{args.jobs}_shares"
    whole = merged(run_shares(args.jobs, folder, sys.argv[1:], path.name))
    write_atomically(path, json.dumps(about | whole, indent=1) + "\n")
    if whole["kills"] >= args.kills:
        shutil.rmtree(folder)
    return report([Row(**row) for row in whole["rows"]], whole["kills"], whole["left_over"])


def kills_of(share: Share, kills: int) -> int:
    """How many of all kills are a share's."""
    return len(range(share.number, kills, share.count))


if __name__ == "__main__":
    sys.exit(main())
