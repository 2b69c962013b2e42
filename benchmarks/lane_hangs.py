"""What a candidate that hangs costs those that are checked beside it.

python -m benchmarks.lane_hangs [--device cpu|cuda] [--world-size N] [--size SIZE] [--evaluations N]

Evaluations until check of AllReduce's expert, one after the other: alone, and beside a kernel that computes for ever in
another lane until its deadline. Every verdict is counted.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, make_parser, save
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Feedback, Stage
from pkb_gym.problems.catalogue import expert_source, find_problem

PROBLEM = find_problem("AllReduce")
HANGS = {
    "cpu": """#include "pkb/symm.h"
void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  for (volatile int64_t i = 0;; ++i) {
  }
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
""",
    "cuda": """#include "pkb/symm.h"
__global__ void hang(volatile int* flag) {
  while (*flag != 12345) {
  }
}
void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  hang<<<1, 1, 0, static_cast<cudaStream_t>(comm.stream)>>>(static_cast<int*>(out.data_ptr()));
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
""",
}
"""Source of a kernel without an end, by device."""

DEADLINE_S = 30.0
"""Deadline of the hanging kernel in seconds, at most: it is cut short once the others have been evaluated."""


def evaluations(evaluator: LocalEvaluator, source: str, config: EvalConfig, count: int) -> dict[str, Any]:
    """Median seconds and verdicts of so many evaluations."""
    seconds, verdicts = list[float](), Counter[str]()
    for _ in range(count):
        began = time.monotonic()
        feedback = evaluator.evaluate(PROBLEM, source, config)
        seconds.append(time.monotonic() - began)
        verdicts[_verdict(feedback)] += 1
    return {"median_s": round(statistics.median(seconds), 3), "verdicts": dict(verdicts)}


def measure(config: EvalConfig, count: int) -> dict[str, Any]:
    """Evaluations alone and beside the kernel that hangs."""
    source = expert_source(PROBLEM, "cu" if config.device == "cuda" else "cpp")
    assert source is not None
    hangs = config.model_copy(update={"timeout_s": DEADLINE_S})
    in_check = threading.Event()
    found: list[Feedback] = []
    with LocalEvaluator() as evaluator:
        for text in (source, HANGS[config.device]):
            evaluator.evaluate(PROBLEM, text, config.model_copy(update={"until": Stage.COMPILE.value}))
        evaluator.evaluate(PROBLEM, source, config)  # starts what is started once
        alone = evaluations(evaluator, source, config, count)

        def hang() -> None:
            def note(stage: str) -> None:
                if stage == Stage.CHECK.value:
                    in_check.set()

            found.append(evaluator.evaluate(PROBLEM, HANGS[config.device], hangs, progress=note))

        hanging = threading.Thread(target=hang)
        hanging.start()
        in_check.wait()
        beside = evaluations(evaluator, source, config, count)
        has_ended = not hanging.is_alive()
    hanging.join()
    return {
        "alone": alone,
        "beside": beside,
        "hanging": _verdict(found[0]) if has_ended else "still running when the others had been evaluated",
    }


def _verdict(feedback: Feedback) -> str:
    return "passed" if feedback.failure is None else feedback.failure.value


def main() -> None:
    """Measures and saves."""
    options = _options()
    config = EvalConfig(
        device=options.device, world_size=options.world_size, size=options.size, until=Stage.CHECK.value
    )
    result = {"device": options.device, "world_size": options.world_size, "size": options.size}
    save(f"lane_hangs_{options.device}", result | measure(config, options.evaluations), options.out)


def _options() -> argparse.Namespace:
    parser = make_parser("lane_hangs", __doc__)
    parser.add_argument("--device", choices=tuple(HANGS), default="cpu", help="(default: %(default)s)")
    parser.add_argument("--world-size", type=int, default=1, metavar="N", help="ranks (default: %(default)s)")
    parser.add_argument("--size", default="tiny", help="(default: %(default)s)")
    parser.add_argument("--evaluations", type=int, default=10, metavar="N", help="each way (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FOLDER", help="(default: results)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
