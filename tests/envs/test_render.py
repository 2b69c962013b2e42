"""Cards and pictures of whatever an evaluation may find."""

from __future__ import annotations

import re
import sys

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.emulation import DetectedError, Emulation
from pkb_gym.engine.records.feedback import LAST_OUTPUT
from pkb_gym.engine.records.race_check import RaceCheckReport
from pkb_gym.engine.stages.execution_environment import resolve_here
from pkb_gym.envs import PKBEnv
from pkb_gym.envs.render import bar, card_text, roofline_picture
from pkb_gym.envs.text.brief import brief_feedback
from pkb_gym.envs.text.feedback import feedback_text
from pkb_gym.problems.catalogue import find_problem
from pkb_gym.rewards.examples import failed, timed
from tests.rewards.strategies import feedbacks
from tests.whole_tables import examples

pytestmark = pytest.mark.usefixtures("evaluator")
PROBLEM = find_problem("AllReduce")
CONFIG = resolve_here(EvalConfig(device="cpu", world_size=4), PROBLEM)


def plain(feedback, reward=None) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", card_text(PROBLEM, CONFIG, feedback, reward))


def test_the_card_of_a_right_kernel():
    card = plain(timed(baseline_us=100, roofline_us=25, speedup_low=2.0), reward=1.5)
    assert "AllReduce 4 ranks, cpu, tiny, bfloat16, robust" in card
    assert "✓ static > ✓ compile > ✓ run > ✓ check > ✓ time > profile" in card
    assert "100 of 100 outputs right in 4 trials" in card
    assert "candidate 50 us, baseline 100 us, 2x [2, 2]" in card
    assert "ceiling 25 us by the link" in card and "50 %" in card and "25 %" in card
    assert "1.500" in card


def test_card_and_text_mention_ranks_that_shared_gpus():
    right = timed(speedup=2.0)
    shared = right.model_copy(update={"config": right.config.model_copy(update={"ranks_per_gpu": 4})})
    assert "4 to a GPU: checked, not timed" in plain(shared)
    assert "Ranks shared GPUs, up to 4 on each: it is checked and not timed." in feedback_text(shared)
    assert "GPU" not in plain(right) and "GPU" not in feedback_text(right)


def test_the_card_of_a_wrong_kernel():
    card = plain(failed("output_mismatch", earned_share=0.5), reward=0.4)
    assert "✓ run > ✗ check > time" in card
    assert "failure" in card and "output_mismatch: example" in card
    assert "50 of 100 outputs right" in card and "got 0.0, expected 1.0" in card.replace("\n", " ")
    assert "roofline" not in card


def test_the_card_shows_what_was_written_once():
    """Prints of a passing kernel were on no card; those of a failing one stood among the words of its failure."""
    written = "".join(f"rank 0: step {step}\n" for step in range(20))
    card = plain(timed(speedup=2.0).model_copy(update={"output": written}))
    assert "output" in card and "... 8 earlier lines" in card and "step 7" not in card and "rank 0: step 19" in card
    feedback = failed("runtime_error", message=f"rank 0 fell{LAST_OUTPUT}{written}")
    card = plain(feedback.model_copy(update={"output": written}))
    assert "rank 0 fell" in card and card.count("step 19") == 1


def test_card_and_text_show_races_that_do_not_fail():
    weak = DetectedError(
        kind="race",
        finding_class="weak_order",
        first="kernel.cu:3",
        second="kernel.cu:9",
        text="weak order on 4 bytes",
        exposure="the flag has to overtake the data",
    )
    equal = weak.model_copy(update={"finding_class": "benign", "text": "benign race on 8 bytes"})
    emulation = Emulation(schedules=("together",), calls=2, warp_instructions=9, findings=(weak, equal))
    feedback = timed(speedup=2.0).model_copy(update={"emulation": emulation})
    card, text = plain(feedback), feedback_text(feedback)
    assert "weak order" in card and "weak order on 4 bytes. To show it, the flag has to overtake the data" in card
    assert "benign race on 8 bytes" in card
    assert "- warning, no failure by itself: weak order on 4 bytes. To show it, the flag" in text
    assert "- no failure: benign race on 8 bytes" in text


def test_card_and_text_show_the_verdict_of_the_race_detector_beside_gpus():
    def shown(verdict, reason="", detector="emulator"):
        report = RaceCheckReport(detector=detector, verdict=verdict, reason=reason, size="tiny", duration_s=1.0)
        feedback = timed(speedup=2.0).model_copy(update={"race_check": report})
        return " ".join(plain(feedback).split()), feedback_text(feedback)

    card, text = shown("no_race")
    assert "races the emulated run at size tiny shows no race" in card
    assert "\n\nRace check: the emulated run at size tiny shows no race.\n\n" in text
    card, text = shown("not_judged", "the emulated driver has no cuStreamWriteValue")
    assert "races warning, no failure: the race detector does not judge" in card
    assert "does not judge this source, since the emulated driver has no cuStreamWriteValue." in text
    assert "Race check" not in shown("race")[1], "the failure has it"
    assert "races a run under Triton's GSan at size tiny shows no race" in shown("no_race", detector="gsan")[0]
    text = shown("not_judged", "its outputs are wrong there", "gsan")[1]
    assert "no failure: Triton's GSan does not judge this source, since its outputs are wrong there." in text


def test_the_card_before_the_first_submission():
    assert "Nothing was submitted yet." in plain(None)


@given(feedback=feedbacks())
@settings(max_examples=examples(50))
def test_every_feedback_has_a_card(feedback):
    card = plain(feedback, reward=0.0)
    assert "stages" in card and all(len(line) <= 100 for line in card.splitlines() if line.isascii())


def test_brackets_of_the_candidate_are_no_markup():
    """rich reads [red] in a string as a colour; what a candidate writes must be shown as it is."""
    card = plain(failed("runtime_error", message="a[red] = [/nothing]"))
    assert "a[red] = [/nothing]" in card


def test_bars_are_filled_by_the_share():
    assert [bar(share, 4).plain for share in (0, 0.5, 1, 7)] == ["░░░░", "██░░", "████", "████"]


@pytest.mark.parametrize("feedback", [None, failed("compile_error"), timed(), timed(roofline_us=0.0)])
def test_pictures_are_pixels(feedback):
    picture = roofline_picture(PROBLEM, CONFIG, feedback)
    assert picture.dtype == np.uint8 and picture.shape == (400, 640, 3)
    assert len(np.unique(picture)) > 2


def test_pictures_need_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"needs matplotlib: pip install 'pkb-gym\[plot\]'"):
        roofline_picture(PROBLEM, CONFIG, None)


@pytest.mark.parametrize("mode", ["ansi", "rgb_array"])
def test_an_environment_renders_its_last_submission(mode):
    env = gym.make("PKB/AllReduce-v0", evaluator="fake", device="cpu", render_mode=mode)
    env.reset(seed=0)
    before = env.render()
    env.step("speedup 2")
    after = env.render()
    assert type(before) is type(after) is {"ansi": str, "rgb_array": np.ndarray}[mode]
    assert not np.array_equal(before, after)


def test_an_unknown_mode_is_refused():
    with pytest.raises(ConfigError, match="render_mode must be None, 'ansi' or 'rgb_array', got 'svg'"):
        PKBEnv("AllReduce", render_mode="svg")


def test_the_captured_baseline_leads_where_launches_bind_the_eager_one():
    launched = timed(baseline_us=100, speedup=4.0, speedup_low=3.0, captured_us=40)
    text, card = feedback_text(launched), re.sub(r"[│\s]+", " ", plain(launched))
    assert "faster than the baseline as CUDA graphs (1.6x)" in text
    assert "candidate 25 us, baseline as CUDA graphs, without launches, 40 us; speedup 1.6" in text
    assert "Eager, the baseline takes 100 us, 4 times the candidate's time" in text
    assert "baseline as CUDA graphs 40 us, 1.6x [1.2, 2]" in card and "eager baseline 100 us, 4x" in card
    assert "captured baseline 40 us, speedup 1.60 (1.20 to 2.00)" in brief_feedback(launched, None)


def test_the_eager_baseline_leads_where_the_device_binds_it():
    bound = timed(baseline_us=100, speedup=4.0, captured_us=95)
    text, card = feedback_text(bound), re.sub(r"[│\s]+", " ", plain(bound))
    assert "candidate 25 us, baseline 100 us; speedup 4" in text and "the baseline takes 95 us: 3.8 times" in text
    assert "baseline 100 us, 4x" in card and "baseline as CUDA graphs 95 us" in card
    registered = timed(baseline_us=100, speedup=4.0, captured_us=95, registered_us=80)
    text, card = feedback_text(registered), re.sub(r"[│\s]+", " ", plain(registered))
    assert "With NCCL on registered memory these graphs take 80 us: 3.2 times the candidate's time" in text
    assert "on registered memory 80 us, 3.2x" in card and registered.timing.leading.baseline == "eager"
    alone = timed(baseline_us=100, speedup=4.0)
    assert alone.timing.leading == ("eager", 100.0, 4.0, 4.0, 4.0) and alone.timing.speedup_captured is None
    assert "CUDA graph" not in feedback_text(alone) + plain(alone)
