"""200 clients of `pkb serve` against the evaluator without a service: throughput, added latency, and no answer lost.

python -m benchmarks.service_load [--clients N] [--jobs N] [--rounds N] [--budget-s S] [--resume] [--out FOLDER]

AllReduce on the CPU, size tiny, 2 ranks, until the check, compiled ahead. The service is a process of its own with a
journal and a file of results, as in production; its clients are threads of this process, each with connections of its
own. Every evaluation has a seed of its own, so that none is answered by another's, and one of several sources, so that
an answer to another request is found.

Rounds alternate between the two, so that a slow minute of the machine meets both:

    latency      evaluations one at a time, each by both, the first of them in turn
    throughput   half of the local evaluations, the jobs of all clients, the other half

A share is that of one round; the result has the median. The result is written after each round, and no round begins
that would outlast the budget; `--resume` adds the missing rounds to those of the same commit.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self, TypeAlias

from benchmarks.common import RESULTS, header, make_parser
from pkb_gym.engine.evaluators.evaluator import Evaluator
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.evaluators.remote import RemoteEvaluator
from pkb_gym.engine.records.attempt import Attempt
from pkb_gym.engine.records.attempt_file import read_attempts
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.engine.support.atomic_write import write_atomically
from pkb_gym.engine.support.row_json import row_json
from pkb_gym.engine.support.source_digest import source_sha256
from pkb_gym.problems.catalogue import expert_source, find_problem

NAME = "service_load"
PROBLEM = find_problem("AllReduce")
CONFIG = EvalConfig(device="cpu", world_size=2, size="tiny", until="check")
SOURCES = 4
LOCAL_THREADS = 8
"""Callers of the evaluator without a service: sources are read while a candidate runs, and one candidate runs at a
time, so that more callers gain nothing."""

START_S, TIMEOUT_S = 60.0, 3600.0

Answer: TypeAlias = tuple["Job", Feedback]


@dataclass(frozen=True)
class Job:
    """One request.

    Attributes:
        source: Text of the kernel.
        seed: Seed, different for every job.
    """

    source: str
    seed: int

    def run(self, evaluator: Evaluator) -> Feedback:
        """Has it evaluated."""
        return evaluator.evaluate(PROBLEM, self.source, CONFIG.model_copy(update={"seed": self.seed}))


@dataclass(frozen=True)
class Tally:
    """The results of jobs.

    Attributes:
        jobs: Number of submitted jobs.
        lost: Number of jobs without an answer, or that are not in the file of results.
        doubled: Number of jobs that are in the file of results more than once.
        mixed_up: Number of answers to another request, and lines of another one.
        failed: Number of answers that found the kernel wrong, or the machine at fault.
    """

    jobs: int
    lost: int
    doubled: int
    mixed_up: int
    failed: int

    def __add__(self, other: Self) -> Tally:
        return Tally(**{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)})


def tally(jobs: Sequence[Job], answers: Sequence[Answer], kept: Sequence[Attempt]) -> Tally:
    """Compares what was asked with the answers and with the file of results."""
    requested = Counter((source_sha256(job.source), job.seed) for job in jobs)
    answered = Counter(_of(feedback) for _, feedback in answers)
    lines = Counter(_of(attempt.feedback) for attempt in kept if attempt.feedback is not None)
    mixed = sum(_of(feedback) != (source_sha256(job.source), job.seed) for job, feedback in answers)
    return Tally(
        jobs=len(jobs),
        lost=(requested - answered).total() + (requested - lines).total(),
        doubled=(lines - requested).total(),
        mixed_up=mixed,
        failed=sum(not feedback.passed for _, feedback in answers),
    )


@dataclass(frozen=True)
class Round:
    """The figures of one round.

    Attributes:
        local_ms, service_ms: Milliseconds of each evaluation, one at a time and in the same order.
        local_per_s: Evaluations per second without the service, before and after those of its clients.
        service_per_s: Evaluations per second of all clients.
        tally: Counts of the jobs of this round.
        faults: Number of infrastructure failures and replaced evaluators of the service.
        wall_s: Wall time of the round, in seconds.
    """

    local_ms: list[float]
    service_ms: list[float]
    local_per_s: list[float]
    service_per_s: float
    tally: Tally
    faults: int
    wall_s: float

    @classmethod
    def of(cls, content: dict[str, Any]) -> Self:
        """A round as `asdict` has it."""
        return cls(**content | {"tally": Tally(**content["tally"])})


def run_jobs(jobs: Sequence[Job], evaluators: Sequence[Evaluator]) -> tuple[list[Answer], float]:
    """Has jobs evaluated by as many threads as there are evaluators, each with one of them.

    Returns:
        The answers, and evaluations per second.
    """

    def work(number: int) -> list[Answer]:
        return [(job, job.run(evaluators[number])) for job in jobs[number :: len(evaluators)]]

    began = time.perf_counter()
    with ThreadPoolExecutor(len(evaluators)) as threads:
        answers = [answer for some in threads.map(work, range(len(evaluators))) for answer in some]
    return answers, len(jobs) / (time.perf_counter() - began)


def one_at_a_time(jobs: Sequence[Job], evaluators: Sequence[Evaluator]) -> list[list[tuple[Answer, float]]]:
    """Each job by each evaluator, the first of them in turn; of each evaluator, the answers and milliseconds."""
    found: list[list[tuple[Answer, float]]] = [[] for _ in evaluators]
    for number, job in enumerate(jobs):
        for place in range(len(evaluators)):
            which = (number + place) % len(evaluators)
            began = time.perf_counter()
            feedback = job.run(evaluators[which])
            found[which].append(((job, feedback), (time.perf_counter() - began) * 1e3))
    return found


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[tuple[str, str]]:
    """The url and the token of a service with a journal and results in a folder."""
    command = [sys.executable, "-m", "pkb_gym.cli", "serve", "--device", "cpu", "--with-parent"]
    command += ["--token-file", str(folder / "token"), "--journal", str(folder / "journal.sqlite")]
    command += ["--results", str(folder / "results.jsonl")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            yield ready["url"], (folder / "token").read_text(encoding="ascii").strip()
        finally:
            process.terminate()
            process.wait(START_S)


class Measurement:
    """The local evaluator, the service and its clients, and the jobs that they were given.

    Args:
        sources: Texts of kernels, each with a digest of its own.
        first_seed: Seed of the first job.
        local: Evaluator without a service.
        clients: Clients of the service.
        results: File that the service writes.
    """

    def __init__(
        self,
        sources: Sequence[str],
        first_seed: int,
        local: Evaluator,
        clients: Sequence[RemoteEvaluator],
        results: Path,
    ) -> None:
        self._sources, self._next_seed = sources, first_seed
        self._local, self._clients, self._results = local, clients, results
        self._faults = 0

    def new_jobs(self, count: int) -> list[Job]:
        """Jobs that nobody was given."""
        first, self._next_seed = self._next_seed, self._next_seed + count
        return [Job(self._sources[seed % len(self._sources)], seed) for seed in range(first, first + count)]

    def warm_up(self) -> None:
        """Has both compile every source and start their processes."""
        jobs = self.new_jobs(2 * len(self._sources))
        run_jobs(jobs, [self._local])
        run_jobs(jobs, self._clients[:1])

    def round(self, jobs: int, latencies: int, local: int) -> Round:
        """One round; see the module for its parts."""
        began = time.perf_counter()
        first = self._next_seed
        alone = self.new_jobs(latencies)
        by_local, by_service = one_at_a_time(alone, [self._local, self._clients[0]])
        many = self.new_jobs(jobs)
        before = self._local_per_s(local // 2)
        answers, service_per_s = run_jobs(many, self._clients)
        after = self._local_per_s(local // 2)
        status = self._clients[0].status()
        known, self._faults = self._faults, status.infrastructure_faults + status.restarts
        kept = read_attempts(self._results)
        return Round(
            local_ms=[round(ms, 2) for _, ms in by_local],
            service_ms=[round(ms, 2) for _, ms in by_service],
            local_per_s=[round(before, 3), round(after, 3)],
            service_per_s=round(service_per_s, 3),
            tally=tally(
                [*alone, *many],
                [*(answer for answer, _ in by_service), *answers],
                [each for each in kept if each.requested.seed >= first],
            ),
            faults=self._faults - known,
            wall_s=round(time.perf_counter() - began, 1),
        )

    def _local_per_s(self, count: int) -> float:
        return run_jobs(self.new_jobs(count), [self._local] * LOCAL_THREADS)[1]


@contextlib.contextmanager
def measuring(clients: int, first_seed: int) -> Iterator[Measurement]:
    """A measurement that is warmed up."""
    expert = expert_source(PROBLEM)
    assert expert is not None
    sources = [f"{expert}\n// variant {number}\n" for number in range(SOURCES)]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        local = stack.enter_context(LocalEvaluator())
        url, token = stack.enter_context(serving(folder))
        remote = [stack.enter_context(RemoteEvaluator(url, token, timeout_s=TIMEOUT_S)) for _ in range(clients)]
        measurement = Measurement(sources, first_seed, local, remote, folder / "results.jsonl")
        measurement.warm_up()
        yield measurement


def summary(clients: int, rounds: Sequence[Round]) -> dict[str, Any]:
    """The figures of all rounds, and the rounds."""
    local_ms, service_ms = (
        statistics.median(ms for each in rounds for ms in own(each))
        for own in (lambda each: each.local_ms, lambda each: each.service_ms)
    )
    shares = [each.service_per_s / statistics.mean(each.local_per_s) for each in rounds]
    everything = sum((each.tally for each in rounds), Tally(0, 0, 0, 0, 0))
    return {
        "clients": clients,
        "local_p50_ms": round(local_ms, 2),
        "service_p50_ms": round(service_ms, 2),
        "added_p50_ms": round(service_ms - local_ms, 2),
        "local_per_s": round(statistics.median(rate for each in rounds for rate in each.local_per_s), 2),
        "service_per_s": round(statistics.median(each.service_per_s for each in rounds), 2),
        "share_of_local": round(statistics.median(shares), 3),
        "shares": [round(share, 3) for share in shares],
        "faults": sum(each.faults for each in rounds),
        **asdict(everything),
        "rounds": [asdict(each) for each in rounds],
    }


def earlier_rounds(path: Path, commit: str, clients: int) -> list[Round]:
    """The rounds of this commit and as many clients in a result; none where there is no result."""
    if not path.exists():
        return []
    content = json.loads(path.read_text(encoding="utf-8"))
    found = content["commit"], content["clients"]
    if found != (commit, clients):
        raise SystemExit(f"{path} is of commit {found[0]} with {found[1]} clients, not this one: leave out --resume")
    return [Round.of(each) for each in content["rounds"]]


def fill(
    rounds: list[Round], wanted: int, budget_s: float, one: Callable[[], Round], keep: Callable[[list[Round]], None]
) -> None:
    """Adds rounds to a list until there are enough of them, or until the next would outlast the budget.

    Args:
        rounds: Rounds of an earlier run, which count.
        wanted: Number of rounds, at least 1.
        budget_s: Wall time from now, in seconds.
        one: Function that runs a round.
        keep: Function that is called with all rounds after each.
    """
    until, longest_s = time.monotonic() + budget_s, 0.0
    while len(rounds) < wanted and time.monotonic() + longest_s <= until:
        began = time.monotonic()
        rounds.append(one())
        longest_s = max(longest_s, time.monotonic() - began)
        keep(rounds)


def main() -> None:
    """Measures and saves."""
    began = time.monotonic()
    parser = make_parser(NAME, __doc__)
    parser.add_argument("--clients", type=int, default=200, help="at once (default: 200)")
    parser.add_argument("--jobs", type=int, default=5000, help="of all clients and rounds together (default: 5000)")
    parser.add_argument("--latencies", type=int, default=100, help="evaluations one at a time by each (default: 100)")
    parser.add_argument("--local", type=int, default=500, help="evaluations without a service (default: 500)")
    parser.add_argument("--rounds", type=int, default=10, help="into which these are divided (default: 10)")
    parser.add_argument("--budget-s", type=float, default=1080.0, help="wall time at most (default: 1080)")
    parser.add_argument("--resume", action="store_true", help="add to the rounds of the same commit in --out")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result (default: %(default)s)")
    args = parser.parse_args()
    about, path = header(), args.out / f"{NAME}.json"
    rounds = earlier_rounds(path, about["commit"], args.clients) if args.resume else []
    sizes = [count // args.rounds for count in (args.jobs, args.latencies, args.local)]

    def keep(found: list[Round]) -> None:
        result = summary(args.clients, found)
        write_atomically(path, row_json(about | result))
        shown = {name: value for name, value in result.items() if name != "rounds"}
        print(f"round {len(found)} of {args.rounds}, {found[-1].wall_s:g} s: {json.dumps(shown)}", flush=True)

    with measuring(args.clients, sum(each.tally.jobs for each in rounds)) as measurement:
        budget_s = args.budget_s - (time.monotonic() - began)
        fill(rounds, args.rounds, budget_s, lambda: measurement.round(*sizes), keep)
    if len(rounds) < args.rounds:
        print(f"{args.rounds - len(rounds)} of {args.rounds} rounds are missing: go on with --resume", file=sys.stderr)


def _of(feedback: Feedback) -> tuple[str, int]:
    return feedback.source_sha256, feedback.config.seed


if __name__ == "__main__":
    main()
