"""Attempts as the page shows them: printable, and nothing of a user's is run."""

from __future__ import annotations

import sys

import pytest

from pkb_gym.report.trajectories import MAX_EVENTS, order_of, reward_parts, trajectory
from pkb_gym.rewards import find_reward
from tests.metrics.attempts import attempt


def test_texts_are_printable():
    found = trajectory(attempt(source="int x; // \u202e\x1b[31m\ud800", reply="\x07", agent="a"))
    assert found.source == r"int x; // \u202e\x1b[31m\ud800" and found.reply == r"\x07"


def test_long_texts_are_cut():
    assert len(trajectory(attempt(reply="x" * 100_000)).reply) <= 20_000
    assert trajectory(attempt(reply="x"), with_replies=False).reply is None


def test_findings_are_shown():
    found = trajectory(attempt(failure="output_mismatch"))
    (mismatch,) = found.mismatches
    assert (mismatch.shape, mismatch.box, mismatch.worst) == ((2,), ((0, 0),), (0,))
    assert "1 of 2 elements differ" in mismatch.text and found.message == "example"
    facts = dict(trajectory(attempt(speedup=2.0, captured_us=80.0, tokens=5, cost_usd=0.25)).facts)
    assert facts["speedup over baseline"] == "2 (95 % interval 2 to 2)"
    names = [name for name in facts if name.endswith("baseline") and not name.startswith("speedup")]
    assert facts["captured baseline"] == "80 us" and names == ["captured baseline", "baseline"]
    assert facts["tokens"] == "50 read, 5 written" and facts["cost"] == "$0.2500"
    assert facts["of the roofline"] == "50.0%, bound by link"
    assert not found.is_python
    nothing = trajectory(attempt(failure="no_submission", reply="sorry"))
    assert nothing.source is None and nothing.reply == "sorry"


def test_a_timeline_is_cut():
    profile = {
        "ranks": (),
        "trace": [
            {"rank": 0, "kind": "kernel", "name": "k\x1b", "stream": 0, "start_us": i, "duration_us": 1.0}
            for i in range(MAX_EVENTS + 9)
        ],
    }
    one = attempt(speedup=1.0)
    feedback = one.feedback.model_validate(one.feedback.model_dump() | {"profile": profile})
    trace = trajectory(one.model_copy(update={"feedback": feedback})).trace
    assert len(trace) == MAX_EVENTS and trace[1].start == 1.0 and trace[0].name == r"k\x1b"


@pytest.mark.parametrize("name", ["default", "kevin@better", "fast_p:1.5"])
def test_parts_of_a_reward_add_up(name):
    one = attempt(speedup=2.0, reward_name=name)
    assert sum(reward_parts(one).values()) == pytest.approx(find_reward(name)(one.feedback))


@pytest.mark.parametrize("name", ["evil:reward", "evil:reward@eager", "evil:reward@eager@better", "nonsense", None])
def test_a_reward_that_results_name_is_not_imported(name, tmp_path, monkeypatch):
    """Results come from others: their reward's name must not run code."""
    (tmp_path / "evil.py").write_text("raise SystemExit('was imported')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert reward_parts(attempt(speedup=2.0, reward_name=name)) is None
    assert "evil" not in sys.modules


def test_the_order_is_that_of_agents_problems_samples_and_turns():
    one, two, three, four = (
        attempt("Gather", "z"),
        attempt("AllReduce", "z", turn=1),
        attempt("AllReduce", "z"),
        attempt("AllReduce", "a"),
    )
    assert order_of([one, two, three, four]) == [three, two, one, four]
