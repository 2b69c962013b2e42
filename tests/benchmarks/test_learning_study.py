"""Arms at equal evaluations, against numbers computed by hand."""

from __future__ import annotations

import json

import pytest

from benchmarks.learning_study import Arm, compare, main, read_arm
from pkb_gym.engine.errors import ConfigError
from pkb_gym.training.results.policy_summary import prompt_key
from tests.training.results.test_policy_summary import row

A, B = (prompt_key(row(problem, 0, 0, 0.0)) for problem in "AB")
GRPO = Arm(0, "grpo", {A: [1.0, 1.5], B: [0.5, 0.2]}, training=4)
"""Two evaluations of each prompt in training, two on it."""
BEST_OF_N = Arm(0, "best_of_n", {A: [0.1, 0.1, 1.2, 0.1, 9.0], B: [None, 0.3, 0.1, 0.2, 9.0]}, training=0)


def test_arms_are_compared_at_the_subjects_evaluations_by_hand():
    grpo, control = compare([GRPO, BEST_OF_N], "grpo")
    assert (grpo.evaluations, control.evaluations) == (4.0, 4.0)  # the fifth sample came too late
    assert grpo.reward.mean == pytest.approx((1.5 + 0.5) / 2) and control.reward.mean == pytest.approx((1.2 + 0.3) / 2)
    assert control.subject_gain.mean == pytest.approx((0.3 + 0.2) / 2) and grpo.subject_gain is None
    assert control.subject_gain.clusters == 2
    assert control.subject_gain.standard_error == pytest.approx(0.05)  # of 0.3 and 0.2
    assert grpo.curve == ((3.0, 0.75), (4.0, 1.0))
    assert control.curve[:3] == ((1.0, 0.1), (2.0, pytest.approx(0.2)), (3.0, pytest.approx(0.75)))


def test_an_arm_that_ended_early_is_marked():
    short = Arm(0, "evolve", {A: [1.0], B: [0.0]}, training=0)
    assert compare([GRPO, short], "grpo")[1].evaluations == 1.0


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(ConfigError, match="seed 1 needs one arm 'grpo'"):
        compare([GRPO, Arm(1, "sft", {A: [1.0]}, 0)], "grpo")
    with pytest.raises(ConfigError, match="no prompt in common"):
        compare([Arm(0, "grpo", {A: [1.0]}, 0), Arm(0, "sft", {B: [1.0]}, 0)], "grpo")
    for text in ("grpo=x", "0:=x", "a:grpo=x", "0:grpo"):
        with pytest.raises(ConfigError, match="expected SEED:NAME=RESULTS"):
            read_arm(text)


def test_runs_are_read_and_results_rendered(tmp_path, capsys):
    results, rollouts = tmp_path / "results.jsonl", tmp_path / "rollouts.jsonl"
    rows = [row("A", 0, 1, 0.2), row("A", 0, 0, 0.9, turn=1), row("A", 0, 0, 0.1)]
    silent = [{**row(problem, 0, 2, -1.0), "failure": "no_submission"} for problem in "AB"]
    results.write_text("".join(json.dumps(one) + "\n" for one in [*rows, *silent]))
    trained = [{"is_duplicate": False}, {"is_duplicate": True}, {"is_duplicate": False, "failure": "no_submission"}]
    rollouts.write_text("".join(json.dumps(one) + "\n" for one in trained))
    arm = read_arm(f"3:grpo={results},{rollouts}")
    assert (arm.seed, arm.training, arm.rewards) == (3, 1, {A: [0.1, 0.9, 0.2], B: []})
    assert arm.best({A: 0.4, B: 0.4}) == {} and arm.best({A: 1.5, B: 1.5}) == {A: 0.1, B: -1.0}
    assert arm.spent == {A: 3.5, B: 0.5}
    out, svg = tmp_path / "study.json", tmp_path / "study.svg"
    main(["--arm", f"3:grpo={results},{rollouts}", "--arm", f"3:sft={results}", "--out", str(out)])
    table = capsys.readouterr().out
    assert "| 3 | sft | 0 | 1.5 | -0.050 ± 0.950 | 0.000 ± 0.000 |  |" in table
    main(["--render", str(out), "--svg", str(svg)])
    assert capsys.readouterr().out == table and svg.read_text().count("<svg") == 1
