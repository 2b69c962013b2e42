"""Many sources at once: equal requests once, no fault or delay of the evaluator is the policy's."""

from __future__ import annotations

import asyncio
import threading

import pytest

from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.support.source_digest import source_sha256
from pkb_gym.problems.catalogue import find_problem
from pkb_gym.training.evaluation.async_evaluator import AsyncEvaluator
from tests.envs.fake_evaluator import FakeEvaluator
from tests.waiting import PATIENCE_S

CONFIG = EvalConfig(device="cpu", world_size=2, size="tiny", language="cpp", until="time")


@pytest.fixture
def wrap():
    """Makes asynchronous evaluators, and ends them."""
    made = []

    def wrapped(evaluator, **options) -> AsyncEvaluator:
        made.append(AsyncEvaluator(evaluator, **options))
        return made[-1]

    yield wrapped
    for one in made:
        one.close()


def ask(wrapped: AsyncEvaluator, *sources: str):
    async def all_of_them():
        return await asyncio.gather(
            *(wrapped.evaluate(find_problem("AllReduce"), source, CONFIG) for source in sources)
        )

    return asyncio.run(all_of_them())


def test_equal_requests_are_evaluated_once(wrap):
    evaluator = FakeEvaluator()
    wrapped = wrap(evaluator)
    verdicts = ask(wrapped, "speedup 2", "speedup 3", "speedup 2")
    assert sorted(source for _, source, _ in evaluator.requested) == ["speedup 2", "speedup 3"]
    assert [verdict.is_duplicate for verdict in verdicts] == [False, False, True]
    assert verdicts[0].feedback is verdicts[2].feedback and verdicts[1].feedback.speedup == 3
    assert ask(wrapped, "speedup 3")[0].is_duplicate and len(evaluator.requested) == 2


def test_they_are_evaluated_side_by_side(wrap):
    evaluator = FakeEvaluator(meet=threading.Barrier(8))
    assert len(ask(wrap(evaluator), *(f"speedup {number + 1}" for number in range(8)))) == 8


def test_what_is_prefetched_is_joined(wrap):
    evaluator = FakeEvaluator()
    wrapped = wrap(evaluator)
    for _ in range(2):
        wrapped.prefetch(find_problem("AllReduce"), "speedup 2", CONFIG)
    (verdict,) = ask(wrapped, "speedup 2")
    assert verdict.feedback.speedup == 2 and not verdict.is_duplicate and len(evaluator.requested) == 1


class CrashesOnce(FakeEvaluator):
    """Raises at first."""

    def evaluate(self, problem, source, config, progress=None):
        if not self.requested:
            self.requested.append((problem.name, source, config))
            raise InfrastructureError("the service is gone")
        return super().evaluate(problem, source, config, progress)


def test_an_evaluator_that_crashes_is_asked_again(wrap):
    wrapped = wrap(CrashesOnce())
    (first,) = ask(wrapped, "speedup 2")
    assert (first.feedback, first.fault) == (None, "crashed")
    (second,) = ask(wrapped, "speedup 2")
    assert (second.feedback.speedup, second.fault, second.is_duplicate) == (2, None, False)


def test_a_fault_that_the_evaluator_reports_is_not_remembered(wrap):
    evaluator = FakeEvaluator()
    wrapped = wrap(evaluator)
    for times in (1, 2):
        (verdict,) = ask(wrapped, "infrastructure")
        assert (verdict.fault, verdict.is_duplicate, len(evaluator.requested)) == ("infrastructure", False, times)


def test_a_slow_evaluation_is_not_waited_for_and_the_next_request_begins_anew(wrap):
    release = threading.Event()

    class Slow(FakeEvaluator):
        def evaluate(self, problem, source, config, progress=None):
            found = super().evaluate(problem, source, config, progress)
            if len(self.requested) == 1:
                release.wait(PATIENCE_S)
            return found

    evaluator = Slow()
    wrapped = wrap(evaluator, deadline_s=0.05)
    try:
        (verdict,) = ask(wrapped, "speedup 2")
        assert (verdict.feedback, verdict.fault) == (None, "late")
        (verdict,) = ask(wrapped, "speedup 2")
        assert (verdict.feedback.speedup, verdict.is_duplicate, len(evaluator.requested)) == (2, False, 2)
    finally:
        release.set()


def test_the_hash_is_that_of_the_feedback(local_evaluator):
    source = "no source"
    feedback = local_evaluator.evaluate(find_problem("AllReduce"), source, CONFIG)
    assert feedback.source_sha256 == source_sha256(source)
