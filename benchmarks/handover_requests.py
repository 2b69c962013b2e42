"""Requests of handovers on one GPU: early ones are found, honest kernels are not, and sampling costs no time.

    python -m benchmarks.handover_requests [--budget-s 85] [--out FOLDER]

First, candidates of each kind pass: a module that uses NCCL, one of plain PyTorch, an expert, and both dialects with
two ranks on the GPU. Then candidates that ask for their next call before their outputs are there, in turn, as in
`tests/candidates/cuda/hostile`; the expert again and again; the expert with and without sampling, in turn; early
requests by kernels at full speed; and the baseline. A run that is cut off, by the budget or otherwise, goes on where it
stopped when it is started again at the same commit.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.common import RESULTS, header, make_parser, unfinished
from pkb_gym.engine.compile import handover
from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.engine.support.atomic_write import write_atomically
from pkb_gym.problems.catalogue import expert_source, find_problem, reference_source
from tests.engine.candidates import FOLDER, read

PROBLEM = find_problem("AllReduce")
EARLY = ("answers_its_own_handovers", "asks_from_within_its_kernel", "asks_with_half_of_its_work_done")
AT_THE_END = "asks_at_its_end"
SLOW, FAST = "kBlocks = 1, kThreads = 32;", "kBlocks = 64, kThreads = 256;"
"""Shapes of the candidates' kernels."""

REFUSALS, FAST_ONES, HONEST, PAIRS = 10, 5, 20, 10
PLAIN_TORCH = "import torch\n\n\ndef solution(tensor: torch.Tensor) -> torch.Tensor:\n    return tensor.clone()\n"
COMPILERS = 8
TAIL = 2000
"""Characters of a message that are printed."""


@dataclass(frozen=True)
class Step:
    """One evaluation.

    Attributes:
        part: of the result, to which its row belongs.
        name: of the candidate, and what differs.
        source: its text.
        config: of the evaluation.
        expected: findings of which it must have one; empty if it must pass, None where either is of interest.
        sampled: whether its outputs are sampled.
    """

    part: str
    name: str
    source: str
    config: EvalConfig
    expected: tuple[str, ...] | None
    sampled: bool = True


def timed(size: str) -> EvalConfig:
    """On one rank, until it has been timed."""
    return EvalConfig(device="cuda", world_size=1, size=size, until="time")


def steps() -> Iterator[Step]:
    """All evaluations, the most important ones first."""
    expert = expert_source(PROBLEM, "cu")
    assert expert is not None
    nccl = reference_source(PROBLEM)
    shared = EvalConfig(device="cuda", world_size=2, ranks_per_gpu=2, size="published", until="check")
    yield Step("smoke", "module with NCCL", nccl, timed("published"), ())
    yield Step("smoke", "expert", expert, timed("published"), ())
    yield Step("smoke", "module of plain PyTorch", PLAIN_TORCH, timed("published"), ())
    yield Step("smoke", "expert, 2 ranks on the GPU", expert, shared, ())
    yield Step("smoke", "module with collectives, 2 ranks on the GPU", nccl, shared, ())
    sources = {name: read(FOLDER / "cuda" / "hostile" / f"{name}.cu") for name in (*EARLY, AT_THE_END)}
    for turn in range(REFUSALS):
        for name in EARLY:
            yield Step("early", name, sources[name].source, timed("tiny"), ("late_output",))
        if turn < HONEST // 4:
            yield Step("honest", "expert", expert, timed("published"), ())
    for _ in range(HONEST - HONEST // 4):
        yield Step("honest", "expert", expert, timed("published"), ())
    for _ in range(PAIRS):
        for sampled in (True, False):
            name = "with" if sampled else "without"
            yield Step("cost", f"expert, {name} samples", expert, timed("tiny"), () if sampled else None, sampled)
    for _ in range(FAST_ONES):
        for size in ("tiny", "published", "large"):
            for name in EARLY:
                source = sources[name].source.replace(SLOW, FAST)
                yield Step("fast", f"{name}, {size}", source, timed(size), None)
        for name in ("asking", "honest"):
            source = sources[AT_THE_END].source
            source = source if name == "asking" else source.replace("++calls > kHonestCalls", "false")
            yield Step("at the end", name, source, timed("tiny"), ())
    for _ in range(HONEST // 4):
        yield Step("honest", "module with NCCL", nccl, timed("published"), ())


class Evaluators:
    """One with sampling and one without; a context manager that closes them."""

    def __init__(self) -> None:
        self._made = {sampled: LocalEvaluator() for sampled in (True, False)}

    def __enter__(self) -> Evaluators:
        return self

    def __exit__(self, *_: object) -> None:
        for evaluator in self._made.values():
            evaluator.close()

    def evaluate(self, step: Step) -> Feedback:
        """Judges one candidate."""
        with _without_sampler(not step.sampled):
            return self._made[step.sampled].evaluate(PROBLEM, step.source, step.config)


@contextmanager
def _without_sampler(patched: bool) -> Iterator[None]:
    """An evaluator that begins its first evaluation here has no sampler."""
    if not patched:
        yield
        return
    with mock.patch.object(handover, "build_sampler", return_value=None):
        yield


def row_of(step: Step, feedback: Feedback, seconds: float) -> dict[str, Any]:
    """What the result keeps of an evaluation."""
    codes = sorted({finding.code for finding in feedback.integrity})
    verdict = "passed" if feedback.passed else str(feedback.failure)
    as_expected = None
    if step.expected is not None:
        as_expected = bool(set(codes) & set(step.expected)) if step.expected else feedback.passed and not codes
    row: dict[str, Any] = {"part": step.part, "name": step.name, "verdict": verdict, "findings": codes}
    row |= {"as_expected": as_expected, "seconds": round(seconds, 2), "message": feedback.message[:300]}
    if (timing := feedback.timing) is not None:
        times = (timing.baseline_us, timing.candidate_us, timing.candidate_handover_us)
        row |= dict(zip(("baseline_us", "candidate_us", "candidate_handover_us"), times, strict=True))
    return row


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Counts and medians by part and name."""
    found = []
    for part, name in dict.fromkeys((row["part"], row["name"]) for row in rows):
        of_name = [row for row in rows if (row["part"], row["name"]) == (part, name)]
        one: dict[str, Any] = {"part": part, "name": name, "evaluations": len(of_name)}
        one["passed"] = sum(row["verdict"] == "passed" for row in of_name)
        one["late_output"] = sum("late_output" in row["findings"] for row in of_name)
        one["unexpected"] = sum(row["as_expected"] is False for row in of_name)
        for field in ("baseline_us", "candidate_us", "candidate_handover_us"):
            if values := [row[field] for row in of_name if field in row]:
                one[field] = round(statistics.median(values), 3)
        found.append(one)
    return found


@contextmanager
def compiling_ahead(evaluators: Evaluators, wanted: Sequence[Step]) -> Iterator[None]:
    """All sources are compiled side by side meanwhile, each once; an evaluation finds them in the cache."""
    pool = ThreadPoolExecutor(COMPILERS)
    for step in {step.source: step for step in wanted if step.sampled}.values():
        config = step.config.model_copy(update={"until": "compile"})
        pool.submit(evaluators.evaluate, dataclasses.replace(step, config=config))
    try:
        yield
    finally:
        pool.shutdown(cancel_futures=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs what is missing within the budget; returns 1 if something was not as expected."""
    parser = make_parser("handover_requests", __doc__)
    parser.add_argument("--budget-s", type=float, default=85.0, help="no evaluation begins later (default: 85)")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    began, path = time.monotonic(), args.out / "handover_requests.json"
    rows: list[dict[str, Any]] = (unfinished(path) or {"rows": []})["rows"]
    wanted = list(steps())
    about = header() | {"gpus": list(gpus.names())}  # before the first write, which changes the checkout
    with Evaluators() as evaluators, compiling_ahead(evaluators, wanted[len(rows) :]):
        for step in wanted[len(rows) :]:
            if time.monotonic() - began > args.budget_s:
                break
            rows.append(_evaluated(evaluators, step))
            result = about | {"missing": len(wanted) - len(rows), "summary": summary(rows), "rows": rows}
            write_atomically(path, json.dumps(result, indent=1) + "\n")
    print(json.dumps(summary(rows), indent=1))
    return int(any(row["as_expected"] is False for row in rows))


def _evaluated(evaluators: Evaluators, step: Step) -> dict[str, Any]:
    began = time.monotonic()
    try:
        feedback = evaluators.evaluate(step)
    except InfrastructureError as error:
        print(f"{step.part}, {step.name}: {str(error)[-TAIL:]}", file=sys.stderr, flush=True)
        failed = {"part": step.part, "name": step.name, "verdict": "infrastructure", "findings": []}
        return failed | {"as_expected": False, "message": str(error)[-TAIL:]}
    row = row_of(step, feedback, time.monotonic() - began)
    if row["as_expected"] is False:
        print(f"{step.part}, {step.name}: {row['verdict']} {row['findings']}", file=sys.stderr)
        print(f"{feedback.message[-TAIL:]}\n{feedback.output[-TAIL:]}", file=sys.stderr, flush=True)
    return row


if __name__ == "__main__":
    sys.exit(main())
