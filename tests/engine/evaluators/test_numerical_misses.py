"""A kernel whose sums are now and then just outside the tolerance is wrong, whenever that comes up, and no cheat."""

from __future__ import annotations

import re
from pathlib import Path

from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.problem.inputs import checked_calls
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure
from pkb_gym.engine.stages.check import MAX_INTERRUPTED, MAX_PREEMPTED
from pkb_gym.problems.catalogue import find_problem

WORLD_SIZE = 2
CHECKED = checked_calls(WORLD_SIZE) + MAX_INTERRUPTED + MAX_PREEMPTED
AT_THE_EDGE = f"""\
import torch
import torch.distributed as dist

calls = []


def solution(tensor):
    calls.append(None)
    out, most = tensor.clone(), tensor.abs()
    dist.all_reduce(out)
    dist.all_reduce(most)
    if len(calls) > {CHECKED} and int(tensor.view(torch.int16)[0, 0]) % 4 == 3:
        out[0, 0] += 1.25 * 2.0**-8 * dist.get_world_size() * most[0, 0]
    return out
"""
"""One element misses |out - sum| <= 2^-8 W sum |x_r| by a quarter after the check, for seven in 16 pairs of inputs: a
busy machine times few calls."""


def test_a_numerical_miss_while_timed_is_a_mismatch_that_names_its_trial(tmp_path: Path) -> None:
    """One of 1024 sums of a right kernel was outside the tolerance in trial 214, and the kernel accused of cheating."""
    config = EvalConfig(
        device="cpu",
        size="tiny",
        world_size=WORLD_SIZE,
        until="time",
        language="python",
        timeout_s=20.0,
        timing_budget_s=0.5,
    )
    with LocalEvaluator(key=b"right until timed 4", cache_dir=tmp_path) as evaluator:
        found = evaluator.evaluate(find_problem("AllReduce"), AT_THE_EDGE, config)
    assert found.failure is Failure.OUTPUT_MISMATCH, found.message
    assert found.integrity == () and found.race is None
    missed = r"while timed: rank \d, out \(32, 48\) bfloat16, trial \d+: 1 of 1536 elements differ"
    assert re.match(missed, found.message), found.message
    assert found.check is not None and found.check.passed
