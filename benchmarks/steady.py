"""50 cached evaluations in a row: memory, open files and processes must not grow.

python -m benchmarks.steady
"""

from __future__ import annotations

import psutil

from benchmarks.common import save
from pkb_gym.engine.config import EvalConfig
from pkb_gym.engine.local import LocalEvaluator
from pkb_gym.problems.catalogue import expert_source, find_problem

EVALUATIONS = 50
SETTLING = 10
"""Evaluations after which everything that is made once has been made."""


def usage() -> dict[str, float]:
    """This process and its descendants: proportional memory in MiB, open files here, processes."""
    me = psutil.Process()
    family = [me, *me.children(recursive=True)]
    memory = sum(process.memory_full_info().pss for process in family)
    return {"memory_mib": round(memory / 2**20, 1), "files": me.num_fds(), "processes": len(family)}


def main() -> None:
    """Measures and saves."""
    problem = find_problem("AllReduce")
    source = expert_source(problem)
    assert source is not None
    config = EvalConfig(device="cpu", world_size=4, size="tiny")
    with LocalEvaluator() as evaluator:
        samples = []
        for _ in range(EVALUATIONS):
            feedback = evaluator.evaluate(problem, source, config)
            assert feedback.passed, feedback.message
            samples.append(usage())
    save("steady", {"after_settling": samples[SETTLING - 1], "after_all": samples[-1], "evaluations": EVALUATIONS})


if __name__ == "__main__":
    main()
