"""The learning of `reward_learning`, from example records."""

from __future__ import annotations

import pytest

from benchmarks.reward_learning import RIGHT_AT_FIRST, Policy, default, former_default, kinds, replayed, trained
from pkb_gym.rewards.examples import failed, timed

RECORDS = {
    "nothing": [failed("output_mismatch", nothing_written=True)],
    "right": [timed(speedup=1.0)],
    "expert": [timed(speedup=2.0)],
    "race": [failed("race")],
}
COPIES = {"nothing": 1, "right": 1, "expert": 1, "race": 6}


def test_the_former_default_by_hand() -> None:
    """Doing nothing had 0.25, and twice the speed, half the way to the roofline, 1.5."""
    assert former_default(RECORDS["nothing"][0]) == 0.25 and default(RECORDS["nothing"][0]) == 0.0
    assert former_default(RECORDS["expert"][0]) == pytest.approx(1.5)
    assert former_default(failed("compile_error")) == 0.05 and former_default(failed("runtime_error")) == 0.2


def test_a_policy_begins_right_in_one_of_twenty_and_learns() -> None:
    assert sum(Policy(["right", "a", "expert", "b"]).probabilities()[::2]) == pytest.approx(RIGHT_AT_FIRST)
    curve = trained(default, RECORDS, COPIES, steps=300, seed=0)
    first, last = (at["right"] + at["expert"] for at in (curve[0], curve[-1]))
    assert first == pytest.approx(RIGHT_AT_FIRST) and last > 0.9
    assert curve == trained(default, RECORDS, COPIES, steps=300, seed=0)


def test_sources_and_recorded_verdicts() -> None:
    found = kinds()
    assert len({kind.source for kind in found}) == len(found) and sum(kind.copies for kind in found) == 39
    rows = replayed({"former": 0.25, "default": 0.0})
    assert all(row["gain_over_nothing"]["default"] > 0 for row in rows)
    assert any(row["gain_over_nothing"]["former"] < 0 for row in rows)
