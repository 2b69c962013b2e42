"""Two evaluators, and several threads with one, on the same machine at the same time."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.problems.catalogue import find_problem
from tests.engine.candidates import FOLDER, read

GOOD = read(FOLDER / "good" / "waits_for_peers.cpp")
BAD = read(FOLDER / "broken" / "segfault_on_one_rank.cpp")


def run_together(*works) -> list[Feedback]:
    found: list[Feedback | BaseException] = [RuntimeError("not run")] * len(works)

    def run(index: int) -> None:
        try:
            found[index] = works[index]()
        except BaseException as error:
            found[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    for one in found:
        assert isinstance(one, Feedback), one
    return found


def evaluate(evaluator: LocalEvaluator, candidate, until: str = "time") -> Feedback:
    config = candidate.config.model_copy(update={"until": until})
    return evaluator.evaluate(find_problem(candidate.problem), candidate.source, config)


def test_two_evaluators_share_machine_and_cache(tmp_path: Path) -> None:
    with LocalEvaluator(cache_dir=tmp_path) as one, LocalEvaluator(cache_dir=tmp_path) as other:
        for feedback in run_together(lambda: evaluate(one, GOOD), lambda: evaluate(other, GOOD)):
            assert feedback.passed, feedback.message
            assert feedback.timing is not None


def test_threads_share_one_evaluator(local_evaluator: LocalEvaluator) -> None:
    works = [lambda candidate=candidate: evaluate(local_evaluator, candidate, "check") for candidate in (GOOD, BAD) * 2]
    failures = [feedback.failure for feedback in run_together(*works)]
    assert failures == [None, Failure.RUNTIME_ERROR] * 2


def test_a_closed_evaluator_says_so(tmp_path: Path) -> None:
    evaluator = LocalEvaluator(cache_dir=tmp_path)
    evaluator.close()
    evaluator.close()
    with pytest.raises(InfrastructureError, match="closed"):
        evaluate(evaluator, GOOD)


def test_closing_in_the_middle_is_no_failure_of_the_candidate(tmp_path: Path) -> None:
    slow = read(FOLDER / "broken" / "endless_loop.cpp")
    evaluator = LocalEvaluator(cache_dir=tmp_path)
    evaluator.warm_up(2)
    began = threading.Event()

    def work() -> Feedback:
        config = slow.config.model_copy(update={"timeout_s": 30.0})
        return evaluator.evaluate(
            find_problem("AllReduce"), slow.source, config, progress=lambda stage: stage == "check" and began.set()
        )

    def close() -> Feedback:
        began.wait(60)
        evaluator.close()
        return evaluate_elsewhere

    evaluate_elsewhere = Feedback.model_construct()
    feedback = run_together(work, close)[0]
    assert feedback.failure is Failure.INFRASTRUCTURE, feedback.message
