"""One episode as a conversation, for foreign frameworks."""

from __future__ import annotations

import doctest

import gymnasium as gym
import pytest

from pkb_gym.engine.errors import ConfigError, InfrastructureError
from pkb_gym.envs import session as module
from pkb_gym.envs.session import SubmissionSession


@pytest.fixture
def session(evaluator):
    session = SubmissionSession(["AllReduce"], max_turns=4, evaluator="fake", device="cpu", world_size=2)
    session.reset("AllReduce", seed=1)
    return session


def test_examples_in_docstrings_hold():
    result = doctest.testmod(module)
    assert result.attempted and not result.failed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_turns": 0}, "max_turns must be a whole number, at least 1, got 0"),
        ({"max_turns": "8"}, "max_turns must be a whole number, at least 1, got '8'"),
        ({"max_turns": True}, "max_turns must be a whole number, at least 1, got True"),
        ({"problem": "AllReduce"}, r"problem='AllReduce' is for reset; split=\["),
        ({"devise": "cpu"}, r"no argument 'devise'; there are split, max_turns, .* Did you mean 'device'\?"),
    ],
)
def test_a_wrong_argument_is_named(arguments, message):
    """Errors were of `_LimitedSuite`, which no user has heard of."""
    with pytest.raises(ConfigError, match=f"^SubmissionSession: {message}"):
        SubmissionSession(**arguments)


def test_gains_add_up_to_the_value_of_the_best(session):
    sources = ("compile_error", "speedup 2", "speedup 1", "speedup 10")
    gains = [session.submit(source).gain for source in sources]
    assert gains[2] == 0 and sum(gains) == pytest.approx(session.episode.episode_value) == pytest.approx(1.3, abs=1e-3)
    late = session.submit("speedup 20")
    assert session.is_over and late.turn is None and late.gain == 0


def test_what_was_not_judged_has_no_gain(session, evaluator, monkeypatch):
    reply = session.submit("infrastructure")
    assert reply.gain is None and session.is_over and session.episode.episode_value is None

    def evaluate(*_: object) -> None:
        raise InfrastructureError("the service is gone")

    session.reset("AllReduce")
    monkeypatch.setattr(evaluator, "evaluate", evaluate)
    reply = session.submit("speedup 2")
    assert reply.gain is None and reply.turn.feedback is None and "the service is gone" in reply.text


@pytest.mark.parametrize("error", [ConfigError("this service judges on device 'cuda'"), ZeroDivisionError("a bug")])
def test_an_episode_with_an_exception_has_no_value(session, evaluator, monkeypatch, error):
    def evaluate(*_: object) -> None:
        raise error

    session.submit("speedup 2")
    monkeypatch.setattr(evaluator, "evaluate", evaluate)
    with pytest.raises(type(error)):
        session.submit("speedup 3")
    assert session.is_over and session.episode.episode_value is None
    assert "failed earlier" in session.submit("speedup 3").text


def test_a_source_that_is_no_text_has_no_value(session):
    """Models write arguments: with no value for the episode, they could have it forgotten."""
    with pytest.raises(gym.error.InvalidAction, match="got int"):
        session.submit(7)
    assert not session.is_over and session.episode.episode_value == 0.0


def test_sources_that_are_no_text_end_the_episode_as_others_do(session, evaluator):
    """A loop that goes on until the submissions are spent would never end."""
    value = session.submit("speedup 2").gain
    for _ in range(3):
        assert not session.is_over
        with pytest.raises(gym.error.InvalidAction):
            session.submit(7)
    assert session.is_over and session.episode.episode_value == value > 0
    assert "are spent" in session.submit("speedup 3").text and len(evaluator.requested) == 1
    session.reset("AllReduce")
    assert not session.is_over


def test_a_restored_session_goes_on_where_it_was(session, evaluator):
    for source in ("compile_error", "speedup 2"):
        session.submit(source)
    other = SubmissionSession(["AllReduce"], max_turns=4, evaluator="fake", device="cpu", world_size=2)
    other.reset("AllReduce", seed=1)
    other.restore((turn.source, turn.feedback) for turn in session.episode.turns)
    assert other.submit("speedup 3") == session.submit("speedup 3")
    assert evaluator.requested[-1] == evaluator.requested[-2]


def test_a_closed_session_judges_nothing(session, evaluator):
    session.close()
    session.close()
    assert session.is_over and session.submit("speedup 2").text.startswith("This episode has been closed")
    assert evaluator.requested == []
    session.reset("AllReduce")
    assert session.submit("speedup 2").turn.number == 1
