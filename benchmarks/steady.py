"""Many cached evaluations in a row: memory, open files and processes must not grow.

python -m benchmarks.steady
"""

from __future__ import annotations

import psutil

from benchmarks.common import make_parser, save
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.problems.catalogue import expert_source, find_problem

EVALUATIONS, EVERY = 200, 20
"""Number of evaluations, and of evaluations between two samples of the usage."""


def usage() -> dict[str, float]:
    """This process and its descendants: resident memory in MiB, open files here, processes.

    Resident memory counts a page once for each process that maps it. Other measures move by themselves: forked ranks
    share pages with their zygote until they write to them, and how many share a page changes with what else runs.
    """
    me = psutil.Process()
    family = [me, *me.children(recursive=True)]
    memory = sum(process.memory_info().rss for process in family)
    return {"memory_mib": round(memory / 2**20, 1), "files": me.num_fds(), "processes": len(family)}


def main() -> None:
    """Measures and saves."""
    make_parser("steady", __doc__).parse_args()
    problem = find_problem("AllReduce")
    source = expert_source(problem)
    assert source is not None
    config = EvalConfig(device="cpu", world_size=4, size="tiny")
    with LocalEvaluator() as evaluator:
        samples = []
        for count in range(1, EVALUATIONS + 1):
            feedback = evaluator.evaluate(problem, source, config)
            assert feedback.passed, feedback.message
            if count % EVERY == 0:
                samples.append({"evaluations": count} | usage())
    save("steady", {"samples": samples})


if __name__ == "__main__":
    main()
