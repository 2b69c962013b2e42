"""Parts of the time of a pair of blocks, by the evaluator's clock: the places to make slow evaluations quicker.

python -m benchmarks.pair_parts [--device cpu|cuda] [--world-size N] [--size SIZE] [--evaluations N]

Prints the median over all pairs of the evaluations of AllReduce's expert that follow the first ones, which measure what
blocks cost, too.
"""

from __future__ import annotations

import contextlib
import functools
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

from benchmarks.common import header, make_parser
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.gangs.candidate_gang import CandidateGang
from pkb_gym.engine.gangs.reference_gang import ReferenceGang
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.stages.baseline_cache import MEASUREMENTS
from pkb_gym.engine.stages.candidate_run import CandidateRun
from pkb_gym.engine.stages.time import time_blocks
from pkb_gym.problems.catalogue import expert_source, find_problem

PARTS: dict[str, tuple[type, str]] = {
    "making inputs, and bringing the candidate to its gate meanwhile": (CandidateRun, "prepare_armed"),
    "binding arguments": (CandidateGang, "bind"),
    "coming to the gate": (CandidateGang, "arm"),
    "baseline": (ReferenceGang, "run"),
    "candidate, with its staging": (CandidateGang, "run_armed"),
    "staging": (ReferenceGang, "stage"),
    "ending the block": (ReferenceGang, "end_block"),
    "comparing": (ReferenceGang, "compare"),
}
"""Each is called once for a pair."""

TIMED = {"baseline": lambda ran: ran, "candidate, with its staging": lambda ran: ran[0]}
"""Parts that hold a timed block -> its nanoseconds."""


class Pairs:
    """The times of the parts of all pairs of blocks, in milliseconds.

    Attributes:
        parts: Milliseconds of each part and of its block, one for each pair.
        evaluations: Evaluations whose blocks were timed, each with its milliseconds.
    """

    def __init__(self) -> None:
        self.parts: dict[str, list[float]] = defaultdict(list)
        self.evaluations: list[float] = []
        self._times_blocks = False

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Notes what is timed meanwhile."""
        with contextlib.ExitStack() as patches:
            patches.enter_context(patch("pkb_gym.engine.stages.pipeline.time_blocks", self._blocks(time_blocks)))
            for part, (owner, name) in PARTS.items():
                patches.enter_context(patch.object(owner, name, self._noted(part, getattr(owner, name))))
            yield

    def _blocks(self, call: Callable[..., None]) -> Callable[..., None]:
        def timed(*args: object) -> None:
            self._times_blocks, began = True, time.perf_counter()
            try:
                call(*args)
            finally:
                self._times_blocks = False
                self.evaluations.append((time.perf_counter() - began) * 1e3)

        return timed

    def _noted(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def noted(*args: object, **named: object) -> Any:  # noqa: ANN401 - of several functions
            began = time.perf_counter()
            result = call(*args, **named)
            if self._times_blocks:
                self.parts[part].append((time.perf_counter() - began) * 1e3)
                if part in TIMED:
                    self.parts[f"{part}: its block"].append(TIMED[part](result) / 1e6)
            return result

        return noted

    def medians(self) -> dict[str, float]:
        """The median of each part, in milliseconds; of the pairs in an evaluation, and of timing in all."""
        pairs = len(self.parts["baseline"]) / len(self.evaluations)
        found = {part: round(statistics.median(times), 2) for part, times in self.parts.items()}
        return found | {"pairs": round(pairs, 2), "timing": round(statistics.median(self.evaluations), 1)}


def measure(config: EvalConfig, evaluations: int) -> dict[str, float]:
    """Times the parts of a pair of blocks."""
    problem = find_problem("AllReduce")
    source = expert_source(problem, "cu" if config.device == "cuda" else "cpp")
    assert source is not None
    pairs = Pairs()
    with LocalEvaluator() as evaluator:
        for count in range(MEASUREMENTS + evaluations):
            with pairs.watch() if count >= MEASUREMENTS else contextlib.nullcontext():
                feedback = evaluator.evaluate(problem, source, config)
                assert feedback.passed, feedback.message
    return pairs.medians()


def main() -> None:
    """Measures and prints."""
    parser = make_parser("pair_parts", __doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--world-size", type=int, default=2, metavar="N", help="default: %(default)s")
    parser.add_argument("--size", default="tiny", help="default: %(default)s")
    parser.add_argument("--evaluations", type=int, default=10, metavar="N", help="default: %(default)s")
    args = parser.parse_args()
    config = EvalConfig(device=args.device, world_size=args.world_size, size=args.size, until="time")
    print(json.dumps(header() | measure(config, args.evaluations), indent=1))


if __name__ == "__main__":
    main()
