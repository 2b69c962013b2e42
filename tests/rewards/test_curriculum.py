"""Curriculum helpers: a reward that fades into another, and how hard problems are."""

from __future__ import annotations

import doctest
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pkb_gym.rewards.curriculum
import pkb_gym.rewards.difficulty
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.attempt import Attempt
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.rewards import BestSoFar, FastP, Ladder, to_json
from pkb_gym.rewards.curriculum import Fade
from pkb_gym.rewards.difficulty import Difficulty, difficulties, read_feedbacks
from pkb_gym.rewards.examples import failed, timed
from pkb_gym.rewards.reward import is_right
from tests.rewards.strategies import NOT_JUDGED, feedbacks

SCHEDULE = Fade(begin=10, end=110)


@pytest.mark.parametrize("module", [pkb_gym.rewards.curriculum, pkb_gym.rewards.difficulty])
def test_examples_in_docstrings_hold(module):
    result = doctest.testmod(module)
    assert result.attempted and not result.failed


def test_the_share_rises_from_0_to_1():
    assert [SCHEDULE.share(step) for step in (-5, 0, 10, 60, 110, 10**9)] == [0, 0, 0, 0.5, 1, 1]


def test_at_its_ends_it_is_one_of_both():
    assert SCHEDULE.at(0) == SCHEDULE.early and SCHEDULE.at(110) == SCHEDULE.late


@given(feedback=feedbacks(), step=st.integers(0, 120))
def test_between_its_ends_it_lies_between_both(feedback, step):
    value, early, late = (one(feedback) for one in (SCHEDULE.at(step), SCHEDULE.early, SCHEDULE.late))
    if feedback.failure in NOT_JUDGED:
        assert value is early is late is None
    else:
        assert min(early, late) - 1e-12 <= value <= max(early, late) + 1e-12


@given(wrong=feedbacks(), right=feedbacks(right=True), step=st.integers(0, 120))
def test_right_earns_more_than_wrong_at_every_step(wrong, right, step):
    if wrong.failure not in NOT_JUDGED and not is_right(wrong):
        assert SCHEDULE.at(step)(right) > SCHEDULE.at(step)(wrong)


def test_partial_credit_fades_and_performance_comes():
    almost, fast = failed("output_mismatch", right_share=1.0), timed(roofline_us=25, speedup_low=2.0)
    assert [SCHEDULE.at(step)(almost) for step in (0, 60, 110)] == pytest.approx([0.547, 0.2735, 0])
    assert [SCHEDULE.at(step)(fast) for step in (0, 60, 110)] == pytest.approx([1, 1.25, 1.5])


def test_a_schedule_pickles_and_so_does_the_reward_of_a_step():
    assert pickle.loads(pickle.dumps(SCHEDULE)) == SCHEDULE
    assert pickle.loads(pickle.dumps(SCHEDULE.at(60))) == SCHEDULE.at(60)


def test_a_schedule_goes_through_json():
    other = Fade(3, 7, early=0.5 * Ladder(), late=FastP(1.5).clip(0, 0.5))
    for schedule in (SCHEDULE, other):
        assert Fade.from_json(schedule.to_json()) == schedule


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "a schedule's record is"),
        ("[1]", "a schedule's record is"),
        ('{"begin": 1, "end": 2}', "a schedule's record is"),
        ("[" * 100_000, "a schedule's record is"),
        ('{"begin": ' + "1" * 5000 + ', "end": 2, "early": {}, "late": {}}', "a schedule's record is"),
        (" " * (1 << 20), "a schedule's record is"),
        (SCHEDULE.to_json().replace('"begin": 10', '"begin": 1.5'), "whole numbers of steps, got 1.5 and 110"),
        (SCHEDULE.to_json().replace('"begin": 10', '"begin": -1'), "a schedule's record: 0 <= begin < end is needed"),
        (SCHEDULE.to_json().replace('"Ladder"', '"Lader"'), "Did you mean 'Ladder'"),
        (
            json.dumps(json.loads(SCHEDULE.to_json()) | {"late": json.loads(to_json(BestSoFar(Ladder())))}),
            "fades one component into another, got a BestSoFar",
        ),
    ],
)
def test_what_is_no_schedule_is_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        Fade.from_json(text)


@pytest.mark.parametrize(("begin", "end"), [(-1, 5), (5, 5), (6, 5)])
def test_schedules_that_do_not_go_forward_are_refused(begin, end):
    with pytest.raises(ValueError, match="0 <= begin < end is needed"):
        Fade(begin, end)


def test_the_pass_rate_is_that_of_the_beta_distribution():
    """By hand: Beta(4, 2) has mean 4/6."""
    problem = Difficulty(right=3, wrong=1, prior=(1.0, 1.0))
    assert problem.pass_rate == pytest.approx(2 / 3) and problem.difficulty == pytest.approx(1 / 3)


@given(right=st.integers(0, 10**6), wrong=st.integers(0, 10**6))  # beyond, rates differ by less than floats do
def test_nothing_is_ever_certain_and_more_right_ones_make_it_easier(right, wrong):
    problem = Difficulty(right, wrong)
    assert 0 < problem.pass_rate < 1
    assert Difficulty(right + 1, wrong).pass_rate > problem.pass_rate > Difficulty(right, wrong + 1).pass_rate


@pytest.mark.parametrize("counts", [(-1, 0), (0, -1)])
def test_counts_that_cannot_be_are_refused(counts):
    with pytest.raises(ValueError, match="counts must not be negative"):
        Difficulty(*counts)
    with pytest.raises(ValueError, match="those of the prior must be positive"):
        Difficulty(1, 1, prior=(0.0, 1.0))


def records():
    other = {"problem": "HyenaCP"}
    hard = [failed("output_mismatch").model_copy(update=other), failed("infrastructure").model_copy(update=other)]
    return [timed(), timed(), failed("compile_error"), timed(caught="late_output"), *hard]


def test_problems_come_hardest_first_and_faults_of_ours_do_not_count():
    found = difficulties(records())
    assert list(found.items()) == [("HyenaCP", Difficulty(0, 1)), ("AllReduce", Difficulty(2, 2))]


def test_a_results_file_is_read_and_so_are_bare_records(tmp_path):
    lines = [Attempt(problem=one.problem, requested=EvalConfig(), feedback=one).to_line() for one in records()]
    results, bare, cut = (tmp_path / name for name in ("results.jsonl", "bare.jsonl", "cut.jsonl"))
    results.write_text("\n".join(lines) + "\n")
    bare.write_text("\n".join(one.model_dump_json() for one in records()) + "\n\n")
    cut.write_text("\n".join(lines) + "\n" + lines[0][:100])
    for path in (results, bare, cut):
        assert list(read_feedbacks(path)) == records()


@pytest.mark.parametrize(
    "line",
    [
        *(b"{", b"[1]", b"3", b'{"feedback": 1}', b'{"problem": "AllReduce"}'),
        *(b'{"feedback": ' + b"1" * 5000 + b"}", b"[" * 100_000, b'"\xff"'),
    ],
    ids=lambda line: ascii(line[:20]),
)
def test_what_is_no_record_is_refused_with_its_line(tmp_path, line):
    path = tmp_path / "results.jsonl"
    path.write_bytes(timed().model_dump_json().encode() + b"\n" + line + b"\n")
    with pytest.raises(ConfigError, match=r"results.jsonl, line 2: no record of an evaluation"):
        list(read_feedbacks(path))
