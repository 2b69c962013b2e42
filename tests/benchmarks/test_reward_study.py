"""Presets on the same evaluations, against numbers computed by hand."""

from __future__ import annotations

import doctest
from dataclasses import replace

import pytest

from benchmarks import reward_study
from benchmarks.reward_study import Evaluated, arms_of, judged, judged_in_training, study, submissions_of, valued
from pkb_gym.engine.records.attempt import Attempt
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.support.source_digest import source_sha256
from pkb_gym.rewards.examples import failed, timed
from pkb_gym.training.results.policy_summary import prompt_key
from tests.benchmarks.test_learning_run_report import write_archive
from tests.training.results.test_policy_summary import row

A, B = (prompt_key(row(problem, 0, 0, 0.0)) for problem in "AB")


def right(prompt: str, kernel: str, time_us: float, **rewards: float) -> Evaluated:
    found = timed(baseline_us=100, speedup_low=100 / time_us)
    return Evaluated(prompt, kernel, found, dict.fromkeys(reward_study.PRESETS, 0.0) | rewards)


def wrong(prompt: str, kernel: str, **rewards: float) -> Evaluated:
    found = failed("compile_error")
    return Evaluated(prompt, kernel, found, dict.fromkeys(reward_study.PRESETS, 0.0) | rewards)


EVALUATIONS = [
    right(A, "x", 10, kevin=10.3, kernelbench=1.0),
    right(A, "x", 11, kevin=9.3, kernelbench=1.0),  # again
    right(A, "y", 20, kevin=5.3, kernelbench=1.0),
    wrong(A, "z"),
    right(B, "x", 10, kevin=2.0, kernelbench=1.0),
    right(B, "y", 5, kevin=1.0, kernelbench=0.0),  # the faster one has less
    wrong(B, "z"),
]


def test_examples_in_docstrings_hold():
    result = doctest.testmod(reward_study)
    assert result.attempted and not result.failed


def test_figures_by_hand():
    found = study(EVALUATIONS, group=2)
    assert (found["evaluations"], found["right"], found["prompts"], found["problems"]) == (7, 5, 2, 2)
    assert found["repeated"] == 1 and found["caught"] == 0
    kevin, kernelbench = found["presets"]["kevin"], found["presets"]["kernelbench"]
    assert kevin["flat"]["mean"] == 0.0
    assert kernelbench["flat"]["mean"] == pytest.approx((3 / 6 + 1 / 3) / 2)  # of A: 1, 1, 1, 0; of B: 1, 0, 0
    assert kevin["ties"]["mean"] == 0.0 and kernelbench["ties"]["mean"] == pytest.approx(2 / 3)
    assert kevin["order"]["mean"] == pytest.approx(2 / 3)  # both pairs of A, not that of B
    assert kernelbench["order"]["mean"] == pytest.approx((0.5 + 0.5 + 0) / 3)
    # Of A alone: 1 for the kernel that was repeated, 25 and 16 for the pairs of different kernels.
    assert kevin["noise"]["mean"] == pytest.approx(1 / 20.5) and kevin["noise"]["clusters"] == 1
    assert kernelbench["noise"] is None  # different kernels of A have one reward
    assert kevin["margin"] == pytest.approx(1.0) and kernelbench["margin"] == 0.0
    assert kevin["right_range"] == [1.0, 10.3] and kevin["caught"] is None


def test_the_greatest_reward_of_what_was_caught_is_listed():
    caught = replace(wrong(A, "w", kevin=0.2), feedback=timed(speedup_low=2.0, caught="late_output"))
    found = study([*EVALUATIONS, caught], group=2)
    assert found["caught"] == 1 and found["presets"]["kevin"]["caught"] == 0.2


def test_attempts_are_valued_by_every_preset_and_what_was_not_judged_is_left_out():
    config = EvalConfig(size="tiny", language="cpp", dtype="bfloat16", world_size=2)
    done = Attempt(problem="A", requested=config, source="x", feedback=timed(speedup_low=2.0), reward=1.0)
    lost = done.model_copy(update={"feedback": failed("infrastructure")})
    (found,) = valued(judged([done, lost, done.model_copy(update={"feedback": None})]))
    assert (found.rewards["kevin"], found.rewards["dr_kernel"], found.rewards["kernelbench"]) == (2.3, 3.0, 1.0)
    assert found.prompt == A


def test_one_evaluation_that_answered_two_submissions_is_no_repetition():
    answered_again = EVALUATIONS[0]
    found = study([*EVALUATIONS, answered_again], group=2)
    assert found["repeated"] == 2  # x at 11 us is another evaluation than either submission at 10 us
    assert study([EVALUATIONS[0], answered_again], group=2)["repeated"] == 0
    # Flat groups count submissions: of A now 1, 1, 1, 1, 0.
    assert found["presets"]["kernelbench"]["flat"]["mean"] == pytest.approx((6 / 10 + 1 / 3) / 2)


def test_submissions_of_rollouts_are_valued_anew():
    feedback = timed(speedup_low=2.0)
    line = {**row("A", 0, 0, 0.0, turn=0), "source_hash": "x", "feedback": feedback.model_dump(mode="json")}
    rollouts = [line, {**line, "turn": 1}, {**line, "feedback": None}]
    (found,) = valued(judged_in_training(rollouts))
    assert (found.prompt, found.kernel, found.rewards["kevin"]) == (A, "x", 2.3)


def test_what_a_run_collected_is_read_and_a_stage_that_was_broken_off_as_far_as_it_came(tmp_path):
    config = EvalConfig(size="tiny", language="cpp", dtype="bfloat16", world_size=2)

    def attempt(source: str) -> dict:
        made = Attempt(problem="A", requested=config, source=source, feedback=timed(speedup_low=2.0), reward=1.0)
        return made.model_dump(mode="json")

    feedback = timed(speedup_low=2.0).model_dump(mode="json")
    files = {
        "rings_sft/results.jsonl": attempt("x"),
        "rings_sft/parts/0.jsonl": {"prompt": 0, "sample": 0, "attempts": [attempt("x")]},
        "samples/parts/0.jsonl": {"prompt": 0, "sample": 0, "attempts": [attempt("y"), attempt("z")]},
        "grpo/rollouts.jsonl": {**row("A", 0, 0, 0.0, turn=0), "source_hash": "w", "feedback": feedback},
    }
    write_archive(tmp_path / "run.tar.gz", files)
    found = [one.kernel for one in submissions_of(tmp_path / "run.tar.gz")]
    assert found == [source_sha256("x"), source_sha256("y"), source_sha256("z"), "w"]


def test_kernels_of_a_prompt_by_hand():
    x, y, z = arms_of([one for one in EVALUATIONS if one.prompt == A], "kevin")
    assert (x.draws, x.values, x.right, x.time_us) == (2, [10.3, 9.3], 1.0, pytest.approx((10 * 11) ** 0.5))
    assert (y.draws, y.values, y.right, y.time_us) == (1, [5.3], 1.0, pytest.approx(20))
    assert (z.draws, z.values, z.right, z.time_us) == (1, [0.0], 0.0, None)
