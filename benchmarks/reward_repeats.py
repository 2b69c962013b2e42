"""Right kernels of a learning run, evaluated again and again: how far a reward repeats.

Every distinct right kernel on a prompt is judged `--times` times, each time by services that know nothing of the times
before. `reward_study` reads the file beside the run's own results, if both were made on one machine:

    python -m benchmarks.reward_repeats RUN.tar.gz --times 3 --services 7 --output REPEATS.jsonl
    python -m benchmarks.reward_study RUN.tar.gz REPEATS.jsonl
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from benchmarks.common import make_parser
from benchmarks.evaluation_rate import distinct
from benchmarks.reward_study import attempts_of
from pkb_gym.engine.evaluators.evaluator import Evaluator
from pkb_gym.engine.records.attempt import Attempt
from pkb_gym.engine.support.atomic_write import write_atomically
from pkb_gym.problems.catalogue import find_problem
from pkb_gym.rewards.reward import is_right
from pkb_gym.training.evaluation.owner import start_evaluation
from pkb_gym.training.processes.host_group import HostGroup

NAME = "reward_repeats"


def right_kernels(attempts: Sequence[Attempt]) -> list[Attempt]:
    """The distinct ones that were right."""
    return distinct(one for one in attempts if one.feedback is not None and is_right(one.feedback))


def judged_again(attempts: Sequence[Attempt], evaluator: Evaluator, sample: int) -> list[Attempt]:
    """The attempts with new feedback, as samples of this number."""

    def one(attempt: Attempt) -> Attempt:
        feedback = evaluator.evaluate(find_problem(attempt.problem), str(attempt.source), attempt.requested)
        return attempt.model_copy(update={"feedback": feedback, "sample": sample, "reward": None})

    with ThreadPoolExecutor(len(attempts)) as pool:
        return list(pool.map(one, attempts))


def main(argv: Sequence[str] | None = None) -> None:
    """Judges them, and writes a line for each evaluation."""
    parser = make_parser(NAME, __doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="run.tar.gz of `learning_run`, or results.jsonl")
    parser.add_argument("--times", type=int, default=3, help="evaluations of each kernel (default: %(default)s)")
    parser.add_argument("--services", type=int, default=1, help="side by side (default: %(default)s)")
    parser.add_argument("--most", type=int, default=100, help="kernels (default: %(default)s)")
    parser.add_argument("--output", type=Path, required=True, help="file of the results")
    args = parser.parse_args(argv)
    kernels = right_kernels(list(attempts_of(args.run)))[: args.most]
    if not kernels:
        parser.error(f"{args.run} has no right kernel")
    found: list[Attempt] = []
    for sample in range(args.times):
        with tempfile.TemporaryDirectory(prefix="pkb-repeats-") as cache:
            os.environ["PKB_CACHE_DIR"] = cache
            with closing(start_evaluation("dedicated", HostGroup(), services=args.services)) as schedule:
                found += judged_again(kernels, schedule.evaluator, sample)
        args.output.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(args.output, "".join(one.to_line() + "\n" for one in found))
        print(f"{sample + 1} of {args.times}: {len(kernels)} kernels", flush=True)


if __name__ == "__main__":
    main()
