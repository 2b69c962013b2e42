"""One episode: rewards, the best so far, the budget, failures of the evaluator, messages."""

from __future__ import annotations

import doctest
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pkb_gym import envs
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.envs import episode as module
from pkb_gym.envs.episode import Episode
from pkb_gym.envs.spaces import observe
from pkb_gym.envs.text.brief import brief_feedback
from pkb_gym.envs.text.feedback import feedback_text
from pkb_gym.envs.wrappers import chat_message
from pkb_gym.rewards import EpisodeScore, find_reward
from pkb_gym.rewards.examples import failed, timed
from tests.rewards.strategies import feedbacks
from tests.whole_tables import examples

DEFAULT = find_reward("default")
FAST, SLOW, BROKEN = timed(speedup_low=2.0), timed(speedup_low=1.0), failed("compile_error")


def after(*feedbacks: Feedback | None, max_turns: int | None = None, **options: float) -> Episode:
    """An episode with a submission for each feedback; sources are numbered from 1."""
    episode = Episode(DEFAULT, max_turns, **options)
    for number, feedback in enumerate(feedbacks, start=1):
        episode.record(f"source {number}", feedback)
    return episode


def test_examples_in_docstrings_hold():
    result = doctest.testmod(module)
    assert result.attempted and not result.failed


@pytest.mark.parametrize("name", envs.__all__)
def test_every_name_of_the_package_can_be_had(name):
    """`add_evaluator` named a module that had been renamed."""
    assert getattr(envs, name).__name__ == name


def test_a_turn_has_all_that_was_found_and_paid():
    episode = Episode(DEFAULT)
    first, second = episode.record("a", BROKEN), episode.record("b", FAST)
    assert episode.turns == [first, second] and episode.feedback is FAST
    assert (first.number, first.source, first.feedback, first.value, first.reward) == (1, "a", BROKEN, 0.01, 0.01)
    assert (second.number, second.source, round(second.value, 3), second.speedup) == (2, "b", 1.27, 2.0)
    assert second.reward == pytest.approx(1.26) and second.is_valid
    assert second.parts == {"ladder": 1.0, "performance": pytest.approx(0.27)}


def test_the_first_feedback_on_a_source_is_found_again():
    episode = after(BROKEN, FAST)
    episode.record("source 1", FAST)
    assert episode.earlier_feedback("source 1") is BROKEN
    assert episode.earlier_feedback("source 3") is None
    assert episode.earlier_feedback("source  1  // once more") is BROKEN, "noise is not paid to who adds a comment"
    episode.record("source 3", failed("infrastructure"))
    assert episode.earlier_feedback("source 3") is None, "no verdict"


@settings(max_examples=examples(30))
@given(st.lists(feedbacks(), max_size=6))
def test_rewards_are_those_of_the_score(found):
    score = EpisodeScore(DEFAULT)
    assert [turn.reward for turn in after(*found).turns] == [score.add(feedback).reward for feedback in found]


def test_the_best_stays_whatever_follows():
    episode = after(SLOW, FAST, BROKEN)
    assert (episode.best.source, episode.best.number, episode.best_value) == ("source 2", 2, pytest.approx(1.27))
    assert episode.episode_value == pytest.approx(1.27)


def test_of_equal_submissions_the_first_is_the_best():
    assert after(BROKEN, FAST, FAST).best.number == 2


def test_the_best_may_have_a_lower_value_than_no_submission():
    episode = Episode(find_reward("cuda_agent"))
    episode.record("a", BROKEN)
    assert episode.best.number == 1 and episode.best_value == episode.episode_value == -1.0


def test_without_a_submission_there_is_no_best():
    episode = after()
    assert (episode.best, episode.best_value, episode.feedback, episode.refusal) == (None, None, None, None)
    assert episode.episode_value == 0.0 and after(empty_value=-1.0).episode_value == -1.0
    assert after(BROKEN, empty_value=-1.0).episode_value == 0.01
    with pytest.raises(IndexError):
        episode.message()


def test_submissions_are_limited():
    episode = after(BROKEN, max_turns=2)
    assert (episode.turns_left, episode.refusal) == (1, None)
    episode.record("b", FAST)
    assert episode.turns_left == 0
    assert episode.refusal == "All 2 submissions of this episode are spent; nothing more is judged."
    assert after(*[BROKEN] * 99).refusal is after().turns_left is None
    with pytest.raises(ValueError, match="max_turns must be at least 1, got 0"):
        after(max_turns=0)


@pytest.mark.parametrize("fault", [failed("infrastructure"), None])
def test_a_failure_of_the_evaluator_ends_the_episode_without_value(fault):
    episode = after(SLOW, fault, max_turns=9)
    turn = episode.turns[-1]
    assert (turn.is_valid, turn.value, turn.reward, turn.parts, turn.speedup) == (False, None, 0.0, {}, 0.0)
    assert episode.refusal == "The evaluator failed earlier in this episode; nothing more is judged."
    assert episode.episode_value is None
    assert episode.best.number == 1, "what was found before stays for the observation"


def test_messages_in_full_are_what_an_environment_shows():
    episode = Episode(DEFAULT)
    for feedback in (failed("runtime_error"), FAST, BROKEN):
        episode.record("source", feedback)
        assert episode.message() == chat_message(observe("task", episode))
        assert feedback_text(feedback) in episode.message()
    assert episode.message().startswith("Turn 3\n\nFAILED: compile_error")
    assert episode.message().endswith("\n\nBest so far: turn 2, value 1.27, speedup 2.")


def test_a_failure_of_the_evaluator_leaves_the_best_as_it_was():
    assert after(failed("infrastructure")).message().endswith("No submission counts yet.")
    assert after(BROKEN, failed("infrastructure")).message().endswith("Best so far: turn 1, value 0.01.")
    expected = "The evaluator failed; nothing more is judged in this episode."
    assert after(FAST, None).message("full") == after(None).message("brief") == expected


def test_brief_messages_are_brief_feedback():
    assert after(BROKEN, FAST).message("brief") == brief_feedback(FAST, 1.27)
    assert "value" not in after(failed("infrastructure")).message("brief")


def test_an_episode_can_be_pickled():
    episode = pickle.loads(pickle.dumps(after(SLOW, max_turns=2)))
    assert episode.record("b", FAST).reward == pytest.approx(0.27) and episode.turns_left == 0


def test_a_breach_after_a_right_kernel_costs_the_episode():
    """In the value of the episode, which frameworks take that see no turns, as in the reward of the turn."""
    episode = after(FAST, failed("race"))
    assert episode.turns[-1].reward == pytest.approx(-0.35 - 1.27)
    assert episode.best_value == pytest.approx(1.27) and episode.episode_value == pytest.approx(-0.35)
    assert after(failed("race")).episode_value == pytest.approx(-0.35)
    assert after(failed("race"), SLOW).episode_value == pytest.approx(0.65)
