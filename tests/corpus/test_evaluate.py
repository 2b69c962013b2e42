"""Batches of candidates: what is kept, what is left, what ends the batch."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace

import pytest

from pkb_gym.corpus.evaluate import BatchEvaluator, Candidate, TimeLimits
from pkb_gym.corpus.journal import FeedbackJournal
from pkb_gym.corpus.tasks import Task
from pkb_gym.engine.errors import ConfigError, StoreError
from pkb_gym.engine.evaluators.caching import CachingEvaluator
from tests.envs.fake_evaluator import FakeEvaluator

TASK = Task("AllReduce", "cpp", 2, "tiny", "bfloat16", 0, "brief")
LIMITS = TimeLimits(timing_budget_s=0.1, timeout_s=5.0)


def batches(evaluator, **options) -> BatchEvaluator:
    return BatchEvaluator(CachingEvaluator(evaluator), LIMITS, jobs=3, **options)


def candidates(*sources: str) -> list[Candidate]:
    return [Candidate(TASK, source) for source in sources]


def test_each_candidate_has_its_feedback_and_equal_ones_are_evaluated_once():
    evaluator, reported = FakeEvaluator(meet=threading.Barrier(2)), []
    one, two, again = candidates("speedup 1", "speedup 2", "speedup 1")
    full = replace(one, task=replace(TASK, style="full"))
    found = batches(evaluator, report=lambda *result: reported.append(result)).evaluate([one, full, two, again])
    assert {candidate: feedback.speedup for candidate, feedback in found.items()} == {one: 1, two: 2, full: 1}
    assert sorted(source for _, source, _ in evaluator.requested) == ["speedup 1", "speedup 2"]
    assert dict(reported) == found and len(reported) == 3
    (config, *_) = (config for *_, config in evaluator.requested)
    assert (config.until, config.turn, config.timing_budget_s, config.timeout_s) == ("time", 0, 0.1, 5.0)


def test_what_is_in_the_journal_is_found_after_the_deadline_too(tmp_path):
    known, new = candidates("speedup 1", "speedup 2")
    evaluator = FakeEvaluator()
    with FeedbackJournal(tmp_path / "journal.jsonl") as journal:
        BatchEvaluator(CachingEvaluator(evaluator, store=journal), LIMITS, jobs=1).evaluate([known])
    with FeedbackJournal(tmp_path / "journal.jsonl") as journal:
        cache = CachingEvaluator(evaluator, store=journal)
        late = BatchEvaluator(cache, LIMITS, jobs=1, deadline=time.monotonic())
        assert list(late.evaluate([known, new])) == [known]
    assert (late.left, late.faults, len(evaluator.requested)) == (1, 0, 1)


def test_infrastructure_failures_are_counted():
    made = batches(FakeEvaluator())
    assert len(made.evaluate(candidates("infrastructure", "speedup 1"))) == 1
    assert (made.faults, made.left) == (1, 0)


def test_a_task_that_makes_no_sense_ends_the_batch():
    class Refuses(FakeEvaluator):
        def evaluate(self, problem, source, config, progress=None):
            raise ConfigError("no such thing here")

    evaluator = Refuses()
    with pytest.raises(ConfigError, match="no such thing here"):
        batches(evaluator).evaluate(candidates("speedup 1"))
    assert evaluator.closed, "or the threads would go on"


def test_a_full_disk_ends_the_batch(tmp_path, monkeypatch):
    """A fault of single evaluations would have all the others evaluated for nothing."""

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with FeedbackJournal(tmp_path / "journal.jsonl") as journal:
        made = BatchEvaluator(CachingEvaluator(FakeEvaluator(), store=journal), LIMITS, jobs=1)
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(StoreError, match="No space left on device"):
                made.evaluate(candidates("speedup 1"))
        assert len(journal) == 0 and not (tmp_path / "journal.jsonl").read_bytes()
