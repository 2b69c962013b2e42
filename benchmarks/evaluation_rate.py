r"""Evaluations a minute through services side by side on the CPU, as the recipes start them (`--evaluation_services`).

The submissions of an evaluated policy are judged again, all at once, by each number of services. Equal requests are
judged once. Each number has a cache of its own, so that all sources are compiled.

    python -m benchmarks.evaluation_rate RUNS/rings_sft/results.jsonl --services 1 7 --most 64 --kernel-timeout 4
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, make_parser, save
from pkb_gym.engine.evaluators.evaluator import Evaluator
from pkb_gym.engine.records.attempt import Attempt
from pkb_gym.engine.records.attempt_file import read_attempts
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.problems.catalogue import find_problem
from pkb_gym.training.evaluation.owner import start_evaluation
from pkb_gym.training.processes.host_group import HostGroup

NAME = "evaluation_rate"
WAITING = "waiting for its turn"
LONGEST = 5
"""Evaluations that the result lists."""


def distinct(attempts: Iterable[Attempt]) -> list[Attempt]:
    """The first of equal requests, of those that submitted something."""
    found: dict[tuple[str, str, str], Attempt] = {}
    for attempt in attempts:
        if attempt.source is not None:
            found.setdefault((attempt.problem, attempt.requested.model_dump_json(), attempt.source), attempt)
    return list(found.values())


def judge(attempts: Sequence[Attempt], evaluator: Evaluator, timeout_s: float | None) -> dict[str, Any]:
    """Judges all at once, and returns the duration and the time of each part."""

    def one(attempt: Attempt) -> tuple[Attempt, Feedback]:
        requested = attempt.requested.model_copy(update={"timeout_s": timeout_s} if timeout_s else {})
        feedback = evaluator.evaluate(find_problem(attempt.problem), str(attempt.source), requested)
        return attempt.model_copy(update={"feedback": feedback}), feedback

    began = time.monotonic()
    with ThreadPoolExecutor(len(attempts)) as pool:
        found = list(pool.map(one, attempts))
    wall_s = time.monotonic() - began
    stages = Counter[str]()
    for _, feedback in found:
        stages.update(feedback.durations_s)
    verdicts = Counter(now.verdict for now, _ in found)
    order = sorted(found, key=lambda pair: -working_s(pair[1]))
    return {
        "evaluations": len(found),
        "wall_s": round(wall_s, 2),
        "per_minute": round(60 * len(found) / wall_s, 1),
        "stages_s": {name: round(spent_s, 2) for name, spent_s in stages.items()},
        "verdicts": dict(verdicts.most_common()),
        "other_verdicts": sum(now.verdict != was.verdict for was, (now, _) in zip(attempts, found, strict=True)),
        "longest": [[now.problem, now.verdict, round(working_s(feedback), 2)] for now, feedback in order[:LONGEST]],
    }


def working_s(feedback: Feedback) -> float:
    """Seconds of an evaluation without those in which it waited for others."""
    return sum(spent_s for name, spent_s in feedback.durations_s.items() if name != WAITING)


def main(argv: Sequence[str] | None = None) -> None:
    """Judges the submissions by each number of services, and writes the result."""
    parser = make_parser(NAME, __doc__)
    parser.add_argument("results", type=Path, metavar="FILE", help="results.jsonl of `evaluate_policy.py`")
    parser.add_argument("--services", type=int, nargs="+", default=[1, 2], help="(default: %(default)s)")
    parser.add_argument("--most", type=int, default=64, help="submissions (default: %(default)s)")
    parser.add_argument("--kernel-timeout", type=float, help="seconds of a block of calls (default: as they were)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result (default: %(default)s)")
    args = parser.parse_args(argv)
    attempts = distinct(read_attempts(args.results))[: args.most]
    if not attempts:
        parser.error(f"{args.results} has no submission")
    rates = []
    for services in args.services:
        with tempfile.TemporaryDirectory(prefix="pkb-rate-") as cache:
            os.environ["PKB_CACHE_DIR"] = cache
            began = time.monotonic()
            with closing(start_evaluation("dedicated", HostGroup(), services=services)) as schedule:
                start_s = round(time.monotonic() - began, 1)
                found = judge(attempts, schedule.evaluator, args.kernel_timeout)
        rates.append({"services": services, "start_s": start_s} | found)
        print(rates[-1], flush=True)
    save(NAME, {"kernel_timeout_s": args.kernel_timeout, "rates": rates}, args.out)


if __name__ == "__main__":
    main()
