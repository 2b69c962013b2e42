"""`pkb demo` with a fake evaluator."""

import threading

import pytest

from pkb_gym.cli import demo, main
from pkb_gym.cli.demo import COMPILE_ONLY, CONFIG, LESSONS, attempts
from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.problems.catalogue import find_problem
from pkb_gym.rewards.examples import failed, timed
from pkb_gym.starters import make_starter

EXPERT = "// expert"


@pytest.fixture(autouse=True)
def experts(monkeypatch):
    monkeypatch.setattr(demo, "expert_source", lambda problem, suffix: EXPERT)


class DemoEvaluator:
    """Finds what each attempt is meant to show."""

    def __init__(self, fault=None):
        self.wrong = {
            attempt.source: lesson.expected
            for lesson in LESSONS
            for attempt in attempts()
            if is_wrong_of(attempt, lesson)
        }
        self.calls, self.closed, self.fault, self.lock = [], False, fault, threading.Lock()

    def evaluate(self, problem, source, config, progress=None):
        with self.lock:
            self.calls.append((problem.name, source, config))
        if self.fault is not None:
            raise self.fault
        failure = self.wrong.get(source)
        return timed(speedup=2.0) if failure is None else failed(failure, message=f"{problem.name} fell")

    def close(self):
        self.closed = True


def is_wrong_of(attempt, lesson):
    return attempt.is_wrong and attempt.problem.name == lesson.problem


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.problem)
def test_slip_changes_the_naive_source_at_one_place(lesson):
    naive = make_starter(find_problem(lesson.problem), "cpp").source
    assert naive.count(lesson.slip[0]) == 1
    assert naive.replace(*lesson.slip) != naive


def test_lessons_show_compiler_check_and_deadlock():
    assert {lesson.expected for lesson in LESSONS} == {"compile_error", "output_mismatch", "deadlock"}


def test_shows_three_attempts_of_each_problem_and_one_card(capsys):
    evaluator = DemoEvaluator()
    assert main(["demo"], lambda key: evaluator) == 0
    out = capsys.readouterr().out
    for lesson in LESSONS:
        assert f"wrong: {lesson.expected}: {lesson.problem} fell" in out
        assert lesson.what in out
    assert [line.split()[0] for line in out.splitlines() if line.startswith(("naive ", "wrong ", "expert "))] == [
        "naive",
        "wrong",
        "expert",
    ] * len(LESSONS)
    assert "2.00x" in out and "roofline  ceiling" in out
    assert evaluator.closed


def test_only_right_attempts_are_timed_and_none_beside_another(capsys):
    evaluator = DemoEvaluator()
    main(["demo"], lambda key: evaluator)
    first, second = evaluator.calls[:9], evaluator.calls[9:]
    assert sorted((source in evaluator.wrong, config == CONFIG) for _, source, config in first) == (
        [(False, False)] * 6 + [(True, True)] * 3
    )
    assert all(config == COMPILE_ONLY for _, source, config in first if source not in evaluator.wrong)
    assert [(source in evaluator.wrong, config) for _, source, config in second] == [(False, CONFIG)] * 6


def test_our_fault_is_exit_status_3_and_closes(capsys):
    evaluator = DemoEvaluator(fault=InfrastructureError("no memory"))
    assert main(["demo"], lambda key: evaluator) == 3
    assert capsys.readouterr().err.endswith("pkb: error: no memory\n")
    assert evaluator.closed


def test_missing_expert_is_our_fault(monkeypatch, capsys):
    evaluator = DemoEvaluator()
    monkeypatch.setattr(demo, "expert_source", lambda problem, suffix: None)
    assert main(["demo"], lambda key: evaluator) == 3
    assert "HyenaCP has no expert.cpp" in capsys.readouterr().err
