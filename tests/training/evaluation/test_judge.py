"""Many sources at once: each question once, no fault or delay of the evaluator is the policy's."""

from __future__ import annotations

import asyncio
import threading

import pytest

from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.support.source_digest import source_sha256
from pkb_gym.problems.catalogue import find_problem
from pkb_gym.training.evaluation.judge import Judge
from tests.envs.fake_evaluator import FakeEvaluator

CONFIG = EvalConfig(device="cpu", world_size=2, size="tiny", language="cpp", until="time")


@pytest.fixture
def judging():
    """Makes judges, and ends them."""
    made = []

    def judge(evaluator, **options) -> Judge:
        made.append(Judge(evaluator, **options))
        return made[-1]

    yield judge
    for one in made:
        one.close()


def ask(judge: Judge, *sources: str):
    async def all_of_them():
        return await asyncio.gather(*(judge.judge(find_problem("AllReduce"), source, CONFIG) for source in sources))

    return asyncio.run(all_of_them())


def test_equal_questions_are_evaluated_once(judging):
    evaluator = FakeEvaluator()
    judge = judging(evaluator)
    verdicts = ask(judge, "speedup 2", "speedup 3", "speedup 2")
    assert sorted(source for _, source, _ in evaluator.asked) == ["speedup 2", "speedup 3"]
    assert [verdict.is_duplicate for verdict in verdicts] == [False, False, True]
    assert verdicts[0].value == verdicts[2].value < verdicts[1].value
    assert ask(judge, "speedup 3")[0].is_duplicate and len(evaluator.asked) == 2


def test_they_are_evaluated_side_by_side(judging):
    evaluator = FakeEvaluator(meet=threading.Barrier(8))
    assert len(ask(judging(evaluator), *(f"speedup {number + 1}" for number in range(8)))) == 8


def test_what_is_prefetched_is_joined(judging):
    evaluator = FakeEvaluator()
    judge = judging(evaluator)
    for _ in range(2):
        judge.prefetch(find_problem("AllReduce"), "speedup 2", CONFIG)
    (verdict,) = ask(judge, "speedup 2")
    assert verdict.value is not None and not verdict.is_duplicate and len(evaluator.asked) == 1


class Falls(FakeEvaluator):
    """Raises at first."""

    def evaluate(self, problem, source, config, progress=None):
        if not self.asked:
            self.asked.append((problem.name, source, config))
            raise InfrastructureError("the service is gone")
        return super().evaluate(problem, source, config, progress)


def test_an_evaluator_that_falls_gives_no_value_and_is_asked_again(judging):
    judge = judging(Falls())
    (failed,) = ask(judge, "speedup 2")
    assert (failed.value, failed.feedback, failed.fault) == (None, None, "crashed")
    assert ask(judge, "speedup 2")[0].value is not None


def test_a_fault_that_the_evaluator_reports_gives_no_value(judging):
    evaluator = FakeEvaluator()
    judge = judging(evaluator)
    for times in (1, 2):
        (verdict,) = ask(judge, "infrastructure")
        assert (verdict.value, verdict.fault, len(evaluator.asked)) == (None, "infrastructure", times)


def test_a_slow_evaluation_is_not_waited_for(judging):
    release = threading.Event()

    class Slow(FakeEvaluator):
        def evaluate(self, problem, source, config, progress=None):
            release.wait(10)
            return super().evaluate(problem, source, config, progress)

    judge = judging(Slow(), deadline_s=0.05)
    try:
        (verdict,) = ask(judge, "speedup 2")
        assert (verdict.value, verdict.fault) == (None, "late")
    finally:
        release.set()


def test_the_hash_is_that_of_the_feedback(local_evaluator):
    source = "no source"
    feedback = local_evaluator.evaluate(find_problem("AllReduce"), source, CONFIG)
    assert feedback.source_sha256 == source_sha256(source)
