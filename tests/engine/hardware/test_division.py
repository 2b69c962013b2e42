"""The division of a machine's processors."""

from __future__ import annotations

import os

import pytest

from pkb_gym.engine.evaluators import local
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.hardware.division import MOST_TIMED, Division, divide, division
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.stages.compile import compile_source
from pkb_gym.problems.catalogue import find_problem
from tests import fake_gpus


@pytest.mark.parametrize(
    ("processors", "ranks", "timed"), [(16, 1, 6), (16, 2, 4), (30, 4, 3), (32, 2, 6), (64, 8, 4), (128, 8, 6)]
)
def test_every_rank_keeps_processors_of_its_own_share(processors, ranks, timed):
    division = divide(range(100, 100 + processors), ranks)
    share = processors // ranks
    for rank in range(ranks):
        own = set(range(100 + rank * share, 100 + (rank + 1) * share))
        assert len(own & division.timed) == timed
    assert division.timed | division.working == set(range(100, 100 + processors))
    assert not division.timed & division.working


@pytest.mark.parametrize(("processors", "ranks"), [(2, 2), (8, 2), (16, 4), (7, 8), (16, 0), (0, 0)])
def test_a_machine_that_is_too_small_is_not_divided(processors, ranks):
    division = divide(range(processors), ranks)
    assert not division.timed and not division.working


def test_a_machine_without_gpus_is_not_divided(monkeypatch):
    fake_gpus.pretend(monkeypatch)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    assert division() == Division(frozenset(), frozenset())
    fake_gpus.pretend(monkeypatch, "NVIDIA H200", "NVIDIA H200")
    assert len(division().working) == 64 - 2 * MOST_TIMED


def test_compilers_run_on_processors_for_work(monkeypatch, tmp_path):
    before, seen = os.sched_getaffinity(0), []
    work = frozenset({max(before)})

    def compile_here(*args):
        seen.append(os.sched_getaffinity(0))
        return compile_source(*args)

    monkeypatch.setattr(local, "division", lambda: Division(frozenset(), work))
    monkeypatch.setattr(local, "compile_source", compile_here)
    config = EvalConfig(device="cpu", language="cpp", until="compile")
    with LocalEvaluator(cache_dir=tmp_path) as evaluator:
        evaluator.evaluate(find_problem("AllReduce"), '#include "pkb/symm.h"\nvoid solution(', config)
    assert seen == [work]
    assert os.sched_getaffinity(0) == before
