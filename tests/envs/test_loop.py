"""The loop of an episode: limits of its replies, and evaluations that fail. Its users are tested where they are."""

from __future__ import annotations

import doctest

import pytest

from pkb_gym.engine.errors import ConfigError, InfrastructureError
from pkb_gym.envs import loop as module
from pkb_gym.envs.episode import Episode
from pkb_gym.envs.loop import EpisodeLoop
from pkb_gym.rewards import find_reward
from pkb_gym.rewards.examples import failed, timed


def new_loop(**limits: int) -> EpisodeLoop:
    return EpisodeLoop(Episode(find_reward("default")), "full", **limits)


def test_examples_in_docstrings_hold():
    result = doctest.testmod(module)
    assert result.attempted and not result.failed


def test_replies_with_and_without_a_submission_count_alike():
    loop = new_loop(max_replies=2)
    assert loop.not_submitted("no source").text == "no source" and not loop.is_over
    loop.judged("source", timed())
    assert loop.is_over and len(loop.episode.turns) == 1


def test_a_plateau_counts_replies_since_the_best():
    loop = new_loop(plateau=2)
    for speedup, is_over in ((1.0, False), (None, False), (2.0, False), (1.5, False), (None, True)):
        if speedup is None:
            loop.not_submitted("no source")
        else:
            loop.judged(f"speedup {speedup}", timed(speedup=speedup))
        assert loop.is_over is is_over


def test_gains_add_up_and_an_equal_source_is_not_judged_again():
    loop = new_loop()
    asked: list[str] = []

    def evaluate(source: str):
        asked.append(source)
        return timed(speedup=2.0) if source == "fast" else failed("compile_error")

    gains = [loop.submit(source, evaluate).gain for source in ("wrong", "fast", "fast  // again", "wrong")]
    assert sum(gains) == loop.episode.episode_value and gains[2:] == [0.0, 0.0]
    assert asked == ["wrong", "fast"]


@pytest.mark.parametrize("error", [InfrastructureError("no such host"), ConfigError("no such device")])
def test_after_an_evaluation_that_raises_nothing_more_is_judged(error):
    loop = new_loop()

    def evaluate(source: str):
        raise error

    if isinstance(error, InfrastructureError):
        result = loop.submit("source", evaluate)
        assert (result.gain, result.turn.feedback) == (None, None) and "no such host" in result.text
    else:
        with pytest.raises(ConfigError, match="no such device"):
            loop.submit("source", evaluate)
    assert loop.is_over and loop.episode.episode_value is None
    assert "failed earlier" in loop.submit("source", evaluate).text


def test_gains_add_up_with_a_penalty():
    loop = new_loop()
    verdicts = (failed("compile_error"), failed("race"), timed(), failed("race"), timed(speedup=2.0))
    gains = [loop.judged(f"source {number}", feedback).gain for number, feedback in enumerate(verdicts)]
    assert gains == pytest.approx([0.01, -0.36, 0.99, -1.35, 0.27])
    assert sum(gains) == pytest.approx(loop.episode.episode_value)
