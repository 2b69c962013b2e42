"""200 clients of `pkb serve` against the evaluator without a service: throughput, added latency, and no answer lost.

python -m benchmarks.service_load

AllReduce on the CPU, size tiny, 2 ranks, until the check, compiled ahead. The service is a process of its own with a
journal and a file of results, as in production; its clients are threads of this process, each with connections of its
own. Every evaluation has a seed of its own, so that none is answered by another's, and one of several sources, so that
an answer to another request is found.
"""

from __future__ import annotations

import argparse
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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

from benchmarks.common import make_parser, save
from pkb_gym.engine.evaluators.evaluator import Evaluator
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.evaluators.remote import RemoteEvaluator
from pkb_gym.engine.records.attempt import Attempt
from pkb_gym.engine.records.attempt_file import read_attempts
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.engine.support.source_digest import source_sha256
from pkb_gym.problems.catalogue import expert_source, find_problem

PROBLEM = find_problem("AllReduce")
CONFIG = EvalConfig(device="cpu", world_size=2, size="tiny", until="check")
SOURCES = 4
LOCAL_THREADS = (1, 8, 64)
"""Callers of the evaluator without a service; the best throughput is compared with."""

START_S, TIMEOUT_S = 60.0, 3600.0

Answer: TypeAlias = tuple["Job", Feedback]


@dataclass(frozen=True)
class Job:
    """One request.

    Attributes:
        source: of the kernel.
        seed: different for every job.
    """

    source: str
    seed: int

    def run(self, evaluator: Evaluator) -> Feedback:
        """Has it evaluated."""
        return evaluator.evaluate(PROBLEM, self.source, CONFIG.model_copy(update={"seed": self.seed}))


@dataclass(frozen=True)
class Tally:
    """What became of jobs.

    Attributes:
        jobs: that were submitted.
        lost: jobs without an answer, or that are not in the file of results.
        doubled: jobs that are in the file of results more than once.
        mixed_up: answers to another request, and lines of another one.
        failed: answers that found the kernel wrong, or the machine at fault.
    """

    jobs: int
    lost: int
    doubled: int
    mixed_up: int
    failed: int


def tally(jobs: Sequence[Job], answers: Sequence[Answer], kept: Sequence[Attempt]) -> Tally:
    """Compares what was asked with the answers and with the file of results."""
    asked = Counter((source_sha256(job.source), job.seed) for job in jobs)
    answered = Counter(_of(feedback) for _, feedback in answers)
    lines = Counter(_of(attempt.feedback) for attempt in kept if attempt.feedback is not None)
    mixed = sum(_of(feedback) != (source_sha256(job.source), job.seed) for job, feedback in answers)
    return Tally(
        jobs=len(jobs),
        lost=(asked - answered).total() + (asked - lines).total(),
        doubled=(lines - asked).total(),
        mixed_up=mixed,
        failed=sum(not feedback.passed for _, feedback in answers),
    )


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
    """Each job by each evaluator in turn, so that a slow moment meets all of them; answers and milliseconds."""
    found: list[list[tuple[Answer, float]]] = [[] for _ in evaluators]
    for job in jobs:
        for evaluator, own in zip(evaluators, found, strict=True):
            began = time.perf_counter()
            feedback = job.run(evaluator)
            own.append(((job, feedback), (time.perf_counter() - began) * 1e3))
    return found


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[tuple[str, str]]:
    """The url and the token of a service with a journal and results in a folder."""
    command = [sys.executable, "-m", "pkb_gym.cli", "serve", "--device", "cpu", "--with-parent"]
    command += ["--token-file", str(folder / "token"), "--journal", str(folder / "journal.jsonl")]
    command += ["--results", str(folder / "results.jsonl")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            yield ready["url"], (folder / "token").read_text(encoding="ascii").strip()
        finally:
            process.terminate()
            process.wait(START_S)


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, object]:
    """All figures."""
    expert = expert_source(PROBLEM)
    assert expert is not None
    sources = [f"{expert}\n// variant {number}\n" for number in range(SOURCES)]
    seeds = iter(range(10**9))

    def new_job() -> Job:
        seed = next(seeds)
        return Job(sources[seed % SOURCES], seed)

    def new_jobs(count: int) -> list[Job]:
        return [new_job() for _ in range(count)]

    with contextlib.ExitStack() as stack:
        local = stack.enter_context(LocalEvaluator())
        url, token = stack.enter_context(serving(folder))

        def client() -> RemoteEvaluator:
            return stack.enter_context(RemoteEvaluator(url, token, timeout_s=TIMEOUT_S))

        first = client()
        jobs = new_jobs(2 * SOURCES)
        run_jobs(jobs, [local])
        answers = run_jobs(jobs, [first])[0]
        jobs += (alone := new_jobs(arguments.latencies))
        by_local, by_service = one_at_a_time(alone, [local, first])
        answers += [answer for answer, _ in by_service]
        before = _local_throughput(local, new_jobs, arguments.local)
        jobs += (many := new_jobs(arguments.jobs))
        found, service_per_s = run_jobs(many, [client() for _ in range(arguments.clients)])
        after = _local_throughput(local, new_jobs, arguments.local)
        status = first.status()
    local_per_s = max(statistics.mean(pair) for pair in zip(before, after, strict=True))
    local_ms, service_ms = (statistics.median(ms for _, ms in own) for own in (by_local, by_service))
    result = tally(jobs, [*answers, *found], read_attempts(folder / "results.jsonl"))
    return {
        "clients": arguments.clients,
        "latencies": arguments.latencies,
        "local_p50_ms": round(local_ms, 2),
        "service_p50_ms": round(service_ms, 2),
        "added_p50_ms": round(service_ms - local_ms, 2),
        "local_per_s": {
            str(threads): [round(early, 2), round(late, 2)]
            for threads, early, late in zip(LOCAL_THREADS, before, after, strict=True)
        },
        "service_per_s": round(service_per_s, 2),
        "share_of_local": round(service_per_s / local_per_s, 3),
        "restarts": status.restarts,
        "infrastructure_faults": status.infrastructure_faults,
    } | asdict(result)


def _local_throughput(local: LocalEvaluator, new_jobs: Callable[[int], list[Job]], count: int) -> list[float]:
    """Evaluations per second by as many callers as `LOCAL_THREADS` says."""
    return [run_jobs(new_jobs(count), [local] * threads)[1] for threads in LOCAL_THREADS]


def _of(feedback: Feedback) -> tuple[str, int]:
    return feedback.source_sha256, feedback.config.seed


def main() -> None:
    """Measures and saves."""
    parser = make_parser("service_load", __doc__)
    parser.add_argument("--clients", type=int, default=200, help="at once (default: 200)")
    parser.add_argument("--jobs", type=int, default=5000, help="of all clients together (default: 5000)")
    parser.add_argument("--latencies", type=int, default=200, help="evaluations one at a time (default: 200)")
    parser.add_argument("--local", type=int, default=200, help="evaluations for each local throughput (default: 200)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        save("service_load", measure(arguments, Path(folder)))


if __name__ == "__main__":
    main()
