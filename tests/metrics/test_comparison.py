"""Two agents, problem by problem."""

from __future__ import annotations

import math

import pytest

from pkb_gym.metrics.comparison import compare
from pkb_gym.metrics.results import results_by_agent
from tests.metrics.attempts import attempt


def compared(a, b, **options):
    (of_a,), (of_b,) = results_by_agent(a), results_by_agent(b)
    return compare(of_a, of_b, **options)


A = [
    attempt("AllReduce", speedup=2.0),
    attempt("AllReduce", sample=1),
    attempt("Gather"),
    attempt("Gather", sample=1),
    attempt("Scatter", speedup=0.5),
    attempt("HyenaCP", speedup=1.0),
]
B = [
    attempt("AllReduce", "b"),
    attempt("AllReduce", "b", sample=1),
    attempt("Gather", "b", speedup=3.0),
    attempt("Scatter", "b", speedup=1.5),
    attempt("Broadcast", "b", speedup=1.0),
]


def test_differences_are_paired_by_problem():
    found = compared(A, B)
    assert (found.a, found.b, found.problems) == ("a", "b", 3)
    assert (found.only_a, found.only_b) == (("HyenaCP",), ("Broadcast",))
    passed, fast, by_low, area, log = found.differences
    assert by_low.metric == "fast_1 by lower end"
    assert (passed.metric, passed.a, passed.b) == ("pass@1", pytest.approx(0.5), pytest.approx(2 / 3))
    assert passed.difference.mean == pytest.approx((-0.5 + 1.0 + 0.0) / 3)
    assert fast.difference.mean == pytest.approx((-0.5 + 1.0 + 1.0) / 3)
    assert area.difference.low <= area.difference.mean <= area.difference.high
    assert log.difference.mean == pytest.approx(math.log(1.5) - math.log(0.5)) and log.difference.clusters == 1


def test_problems_that_are_hard_for_both_leave_no_doubt():
    """Every problem gains one sample of two: however different they are, the interval is a point."""
    names = ["AllReduce", "Gather", "Scatter", "HyenaCP"]
    a = [
        attempt(name, sample=i, speedup=1.0 if i < number % 2 else None)
        for number, name in enumerate(names)
        for i in range(2)
    ]
    b = [
        attempt(name, sample=i, speedup=1.0 if i <= number % 2 else None)
        for number, name in enumerate(names)
        for i in range(2)
    ]
    gain = compared(a, b).differences[0].difference
    assert (gain.mean, gain.low, gain.high) == (0.5, 0.5, 0.5)


def test_flips_say_who_solves_what():
    flips = {(flip.problem, flip.what): (flip.gained, flip.a, flip.b) for flip in compared(A, B).flips}
    assert flips == {
        ("AllReduce", "right"): (False, "1/2", "0/2"),
        ("AllReduce", "faster"): (False, "1/2", "0/2"),
        ("Gather", "right"): (True, "0/2", "1/1"),
        ("Gather", "faster"): (True, "0/2", "1/1"),
        ("Scatter", "faster"): (True, "0/1", "1/1"),
    }


def test_over_the_captured_baseline():
    a, b = [attempt(speedup=2.0, captured_us=40.0)], [attempt(agent="b", speedup=4.0, captured_us=40.0)]
    assert compared(a, b).flips == ()
    assert [flip.what for flip in compared(a, b, baseline="captured").flips] == ["faster"]
    a = [attempt(speedup=2.0, captured_us=60.0, registered_us=40.0)]
    assert compared(a, b, baseline="captured").flips == ()
    assert [flip.what for flip in compared(a, b, baseline="registered").flips] == ["faster"]


def test_without_a_shared_problem_there_is_nothing_to_compare():
    assert compared([attempt("Gather")], [attempt("Scatter", "b")]) is None
