"""What the tests on a real cluster share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.problems.catalogue import find_problem

NODE_CPUS = 6
"""Room for the gangs of two pools."""

BY_MAKE_CLUSTER = bool(os.environ.get("PKB_TEST_CLUSTER"))
by_make_cluster = pytest.mark.skipif(not BY_MAKE_CLUSTER, reason="takes minutes on a Ray cluster: `make cluster`")

PROBLEM = find_problem("AllReduce")
ON_TWO = EvalConfig(device="cpu", world_size=2, size="tiny")
FAKE = "evaluator=tests.cluster.fake_pool_evaluator:FakePoolEvaluator"
# 1.2 CPUs a gang: none fits on the head, which has one and compiles.
FAKE_POOL = f"ray?pool=fake&{FAKE}&checks_per_gang=2&shared_most=1&exclusive_most=1&cpus_per_rank=0.6"
ONE_GANG = "shared_most=0&exclusive_most=1&cpus_per_rank=0.6"


def logged(path: Path) -> list[list[str]]:
    """Lines that fake judges wrote: last stage, seed, "found" or "compiled", process."""
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []
