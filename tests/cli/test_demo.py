"""`pkb demo` with a fake evaluator."""

import threading

import pytest

from pkb_gym.cli import demo, main
from pkb_gym.cli.demo import COMPILE_ONLY, CONFIG, MISTAKES, PROBLEM, attempts
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
        self.wrong = {attempt.source: attempt.mistake for attempt in attempts() if attempt.mistake}
        self.calls, self.closed, self.fault, self.lock = [], False, fault, threading.Lock()

    def evaluate(self, problem, source, config, progress=None):
        with self.lock:
            self.calls.append((problem.name, source, config))
        if self.fault is not None:
            raise self.fault
        mistake = self.wrong.get(source)
        return timed(speedup=2.0) if mistake is None else failed(mistake.expected, message=f"{mistake.name} fell")

    def close(self):
        self.closed = True


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_changes_the_naive_source_at_one_place(mistake):
    naive = make_starter(find_problem(PROBLEM), "cpp").source
    assert naive.count(mistake.right) == 1
    assert naive.replace(mistake.right, mistake.wrong) != naive


def test_mistakes_show_the_compiler_and_the_check():
    assert [mistake.expected for mistake in MISTAKES] == ["compile_error", "race"]


def test_the_line_on_the_comparison_holds():
    """The text names size, dtype and ranks; the configuration decides them."""
    problem = find_problem(PROBLEM)
    size = problem.sizes[CONFIG.size]
    assert f"{CONFIG.world_size} ranks on the CPU" in demo.COMPARED
    assert f"{size['M']} x {size['N']} {problem.dtypes[0]}" in demo.COMPARED


def test_shows_each_attempt_why_the_wrong_ones_fell_and_one_card(capsys):
    evaluator = DemoEvaluator()
    assert main(["demo"], lambda key: evaluator) == 0
    out = capsys.readouterr().out
    assert out.startswith(demo.COMPARED)
    for mistake in MISTAKES:
        assert f"{mistake.name}: {mistake.expected}: {mistake.name} fell" in out
        assert mistake.about in out
    starts = [
        attempt.name for line in out.splitlines() for attempt in attempts() if line.startswith(f"{attempt.name} ")
    ]
    assert starts == ["naive", "misspelt", "no barrier", "expert"]
    assert "2.00x" in out and "roofline  ceiling" in out
    assert evaluator.closed


def test_only_right_attempts_are_timed_and_none_beside_another(capsys):
    evaluator = DemoEvaluator()
    main(["demo"], lambda key: evaluator)
    first, second = evaluator.calls[:4], evaluator.calls[4:]
    assert {(source in evaluator.wrong, config == CONFIG) for _, source, config in first} == {
        (False, False),
        (True, True),
    }
    assert all(config == COMPILE_ONLY for _, source, config in first if source not in evaluator.wrong)
    assert [(source in evaluator.wrong, config) for _, source, config in second] == [(False, CONFIG)] * 2


def test_an_infrastructure_failure_is_exit_status_3_and_closes(capsys):
    evaluator = DemoEvaluator(fault=InfrastructureError("no memory"))
    assert main(["demo"], lambda key: evaluator) == 3
    assert capsys.readouterr().err.endswith("pkb: error: no memory\n")
    assert evaluator.closed


def test_missing_expert_is_infrastructure_failure(monkeypatch, capsys):
    evaluator = DemoEvaluator()
    monkeypatch.setattr(demo, "expert_source", lambda problem, suffix: None)
    assert main(["demo"], lambda key: evaluator) == 3
    assert "AllReduce has no expert.cpp" in capsys.readouterr().err
