"""The caching evaluator: equal requests once, no fault remembered, a bound, a store."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from pkb_gym.engine.errors import ConfigError, StoreError
from pkb_gym.engine.evaluators.caching import CachingEvaluator
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure
from pkb_gym.engine.records.service import EvaluationRequest
from pkb_gym.problems.catalogue import find_problem
from tests.envs.fake_evaluator import FakeEvaluator
from tests.waiting import PATIENCE_S

PROBLEM = find_problem("AllReduce")
CONFIG = EvalConfig(device="cpu", world_size=2, size="tiny", language="cpp")


class HoldsBack(FakeEvaluator):
    """Notes what has begun, and finishes nothing before it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()
        self.go = threading.Event()

    def evaluate(self, problem, source, config, progress=None):
        self.begun.set()
        assert self.go.wait(PATIENCE_S)
        return super().evaluate(problem, source, config, progress)


class Store:
    """A store in memory that refuses to be written by two threads at once."""

    def __init__(self) -> None:
        self.kept = {}
        self.writing = threading.Lock()

    def get(self, key):
        return self.kept.get(key)

    def append(self, key, feedback):
        assert self.writing.acquire(blocking=False)
        time.sleep(0.01)  # gives the others time to come too
        assert key not in self.kept
        self.kept[key] = feedback
        self.writing.release()


def key(source: str) -> str:
    return EvaluationRequest(problem=PROBLEM.name, source=source, config=CONFIG).key


@pytest.fixture
def threads():
    with ThreadPoolExecutor(4) as pool:
        yield pool


def test_requests_in_progress_are_joined(threads):
    evaluator = HoldsBack()
    cache = CachingEvaluator(evaluator)
    waiting = threads.submit(cache.evaluate, PROBLEM, "speedup 2", CONFIG)
    assert evaluator.begun.wait(PATIENCE_S)
    futures = [cache.submit(threads, PROBLEM, "speedup 2", CONFIG) for _ in range(9)]
    assert len(set(futures)) == 1 and cache.recall(PROBLEM, "speedup 2", CONFIG) is None
    evaluator.go.set()
    assert waiting.result(PATIENCE_S) is futures[0].result(PATIENCE_S)
    assert len(evaluator.requested) == 1


def test_finished_requests_are_remembered(threads):
    evaluator = FakeEvaluator()
    cache = CachingEvaluator(evaluator)
    feedback = cache.evaluate(PROBLEM, "speedup 2", CONFIG)
    assert cache.evaluate(PROBLEM, "speedup 2", CONFIG) is feedback
    assert cache.submit(threads, PROBLEM, "speedup 2", CONFIG).result() is feedback
    assert cache.recall(PROBLEM, "speedup 2", CONFIG) is feedback and cache.recall(PROBLEM, "x", CONFIG) is None
    assert len(evaluator.requested) == 1


def test_other_requests_are_evaluated():
    evaluator = FakeEvaluator()
    cache = CachingEvaluator(evaluator)
    cache.evaluate(PROBLEM, "speedup 2", CONFIG)
    cache.evaluate(find_problem("Gather"), "speedup 2", CONFIG)
    cache.evaluate(PROBLEM, "speedup 3", CONFIG)
    cache.evaluate(PROBLEM, "speedup 2", CONFIG.model_copy(update={"turn": 1}))
    assert len(evaluator.requested) == 4


def test_infrastructure_failures_are_not_remembered(threads):
    evaluator = FakeEvaluator()
    cache = CachingEvaluator(evaluator)
    for times in (1, 2):
        assert cache.evaluate(PROBLEM, "infrastructure", CONFIG).failure is Failure.INFRASTRUCTURE
        assert len(evaluator.requested) == times and cache.recall(PROBLEM, "infrastructure", CONFIG) is None
    assert cache.submit(threads, PROBLEM, "infrastructure", CONFIG).result().failure is Failure.INFRASTRUCTURE
    assert len(evaluator.requested) == 3


class Refuses(FakeEvaluator):
    """Raises at first."""

    def evaluate(self, problem, source, config, progress=None):
        found = super().evaluate(problem, source, config, progress)
        if len(self.requested) == 1:
            raise ConfigError("not here")
        return found


def test_exceptions_are_not_remembered(threads):
    for evaluate in (
        lambda cache: cache.evaluate(PROBLEM, "speedup 2", CONFIG),
        lambda cache: cache.submit(threads, PROBLEM, "speedup 2", CONFIG).result(),
    ):
        cache = CachingEvaluator(Refuses())
        with pytest.raises(ConfigError, match="not here"):
            evaluate(cache)
        assert evaluate(cache).speedup == 2


def test_all_who_joined_get_the_exception(threads):
    class HoldsBackAndRefuses(HoldsBack):
        def evaluate(self, problem, source, config, progress=None):
            super().evaluate(problem, source, config, progress)
            raise ConfigError("not here")

    evaluator = HoldsBackAndRefuses()
    cache = CachingEvaluator(evaluator)
    first = threads.submit(cache.evaluate, PROBLEM, "speedup 2", CONFIG)
    assert evaluator.begun.wait(PATIENCE_S)
    second = cache.submit(threads, PROBLEM, "speedup 2", CONFIG)
    evaluator.go.set()
    for future in (first, second):
        with pytest.raises(ConfigError, match="not here"):
            future.result(PATIENCE_S)
    assert len(evaluator.requested) == 1


def test_what_was_cancelled_is_begun_anew(threads):
    evaluator = HoldsBack()
    cache = CachingEvaluator(evaluator)
    with ThreadPoolExecutor(1) as one:
        running = cache.submit(one, PROBLEM, "speedup 1", CONFIG)
        cancelled = cache.submit(one, PROBLEM, "speedup 2", CONFIG)
        assert evaluator.begun.wait(PATIENCE_S)
        one.shutdown(wait=False, cancel_futures=True)
        evaluator.go.set()
    assert running.result(PATIENCE_S).speedup == 1 and cancelled.cancelled()
    with pytest.raises(RuntimeError, match="shutdown"):
        cache.submit(one, PROBLEM, "speedup 3", CONFIG)
    assert [cache.evaluate(PROBLEM, f"speedup {n}", CONFIG).speedup for n in (2, 3)] == [2, 3]


def test_what_is_forgotten_is_not_joined(threads):
    evaluator = HoldsBack()
    cache = CachingEvaluator(evaluator)
    first = cache.submit(threads, PROBLEM, "speedup 2", CONFIG)
    cache.forget(first)
    second = cache.submit(threads, PROBLEM, "speedup 2", CONFIG)
    assert second is not first
    cache.forget(first)
    assert cache.submit(threads, PROBLEM, "speedup 2", CONFIG) is second, "another evaluation has taken its place"
    evaluator.go.set()
    assert first.result(PATIENCE_S) == second.result(PATIENCE_S) and len(evaluator.requested) == 2


def test_memory_is_bounded():
    evaluator = FakeEvaluator()
    cache = CachingEvaluator(evaluator, capacity=2)
    for source in ("speedup 1", "speedup 2", "speedup 3"):
        cache.evaluate(PROBLEM, source, CONFIG)
    assert [cache.recall(PROBLEM, f"speedup {n}", CONFIG) is None for n in (1, 2, 3)] == [True, False, False]
    cache.evaluate(PROBLEM, "speedup 1", CONFIG)
    assert len(evaluator.requested) == 4 and cache.recall(PROBLEM, "speedup 2", CONFIG) is None


def test_feedback_is_kept_in_the_store_and_found_there(threads):
    store, evaluator = Store(), FakeEvaluator()
    feedback = CachingEvaluator(evaluator, store=store).evaluate(PROBLEM, "speedup 2", CONFIG)
    assert store.kept == {key("speedup 2"): feedback}
    again = CachingEvaluator(evaluator, store=store)
    assert again.recall(PROBLEM, "speedup 2", CONFIG) is again.evaluate(PROBLEM, "speedup 2", CONFIG) is feedback
    assert again.submit(threads, PROBLEM, "speedup 2", CONFIG).result() is feedback
    assert len(evaluator.requested) == 1


def test_the_store_is_written_by_one_thread_at_a_time(threads):
    store = Store()
    cache = CachingEvaluator(FakeEvaluator(meet=threading.Barrier(4)), store=store)
    futures = [cache.submit(threads, PROBLEM, f"speedup {n}", CONFIG) for n in range(1, 9)]
    assert [future.result(PATIENCE_S).speedup for future in futures] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert len(store.kept) == 8


def test_infrastructure_failures_are_not_stored():
    store = Store()
    CachingEvaluator(FakeEvaluator(), store=store).evaluate(PROBLEM, "infrastructure", CONFIG)
    assert not store.kept


def test_a_store_that_fails_is_reported():
    class Full(Store):
        def append(self, key, feedback):
            raise StoreError("the disk is full")

    with pytest.raises(StoreError, match="the disk is full"):
        CachingEvaluator(FakeEvaluator(), store=Full()).evaluate(PROBLEM, "speedup 2", CONFIG)


def test_progress_is_reported_and_closing_closes():
    class Reporting(FakeEvaluator):
        def evaluate(self, problem, source, config, progress=None):
            progress("compile")
            return super().evaluate(problem, source, config)

    evaluator, reported = Reporting(), []
    cache = CachingEvaluator(evaluator)
    cache.evaluate(PROBLEM, "speedup 2", CONFIG, reported.append)
    assert reported == ["compile"]
    cache.close()
    assert evaluator.closed
