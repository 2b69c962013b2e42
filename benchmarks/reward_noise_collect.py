"""Block samples of real evaluations on the CPU, for `benchmarks.reward_noise`.

The same candidate is judged again and again, each time by a new gang: once an expert kernel, once the baseline itself.
Where other work runs on the machine, say so: the load average is kept with the samples.

python -m benchmarks.reward_noise_collect [PROBLEM ...]
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.common import RESULTS, header, read_problems
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.timing import Block
from pkb_gym.engine.support.atomic_write import write_atomically
from pkb_gym.problems.catalogue import expert_source, find_problem, reference_source

PROBLEMS = ("AllReduce", "GemmAllReduce", "HyenaCP")
REPETITIONS = {"tiny": 20, "published": 10}
WORLD_SIZE = 2
NAME = "reward_noise_samples"


def evaluations(evaluator: LocalEvaluator, name: str, size: str, source: str) -> list[list[list[float]]]:
    """The block pairs, (baseline_us, candidate_us), of repeated evaluations of one source."""
    config = EvalConfig(device="cpu", world_size=WORLD_SIZE, size=size, until="time")
    found = []
    for _ in range(REPETITIONS[size]):
        feedback = evaluator.evaluate(find_problem(name), source, config)
        assert feedback.timing is not None, feedback.message
        found.append(pairs(feedback.timing.blocks))
    return found


def pairs(blocks: Sequence[Block]) -> list[list[float]]:
    """Blocks in four significant digits."""
    return [[float(f"{block.baseline_us:.4g}"), float(f"{block.candidate_us:.4g}")] for block in blocks]


def main() -> None:
    """Measures and saves."""
    names = read_problems("reward_noise_collect", __doc__) or PROBLEMS
    rows: list[dict[str, Any]] = []
    load = [round(os.getloadavg()[0], 1)]
    with LocalEvaluator() as evaluator:
        for name in names:
            expert = expert_source(find_problem(name))
            assert expert is not None
            sources = {"baseline": reference_source(find_problem(name)), "expert": expert}
            for size in REPETITIONS:
                for candidate, source in sources.items():
                    found = evaluations(evaluator, name, size, source)
                    rows.append({"problem": name, "size": size, "candidate": candidate, "evaluations": found})
                    load.append(round(os.getloadavg()[0], 1))
                    print(f"{name} {size} {candidate}: {[len(one) for one in found]} blocks", file=sys.stderr)
    head = header() | {"world_size": WORLD_SIZE, "load_average": load, "unit": "microseconds: [baseline, candidate]"}
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    text = json.dumps(head, indent=1).removesuffix("\n}") + f',\n "rows": [\n{lines}\n]\n}}\n'
    write_atomically(RESULTS / f"{NAME}.json", text)


if __name__ == "__main__":
    main()
