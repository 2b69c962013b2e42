"""Settings of episodes, as JSON."""

from __future__ import annotations

import doctest

import pytest

from pkb_gym.adapters import settings as module
from pkb_gym.adapters.settings import EpisodeSettings
from pkb_gym.engine.errors import ConfigError, ProblemNotFound


def test_examples_in_docstrings_hold():
    result = doctest.testmod(module)
    assert result.attempted and not result.failed


def test_they_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("PKB_EPISODE", '{"split": "test", "world_size": 2, "max_turns": 3}')
    assert EpisodeSettings.from_environment() == EpisodeSettings(split="test", world_size=2, max_turns=3)
    monkeypatch.delenv("PKB_EPISODE")
    assert EpisodeSettings.from_environment() == EpisodeSettings()


@pytest.mark.parametrize(
    ("text", "words"), [("{", "PKB_EPISODE is no JSON"), ("[1]", "expected a JSON object"), ('{"a": 1}', "a: Extra")]
)
def test_mistakes_there_are_named(monkeypatch, text, words):
    monkeypatch.setenv("PKB_EPISODE", text)
    with pytest.raises(ConfigError, match=words):
        EpisodeSettings.from_environment()


def test_a_session_is_for_one_problem_or_for_a_split():
    settings = EpisodeSettings(split=["AllReduce", "Gather"], device="cpu", world_size=2, max_turns=3)
    session = settings.open_session("Gather")
    assert session.reset().startswith("# Gather") and session.episode.turns_left == 3
    both = settings.open_session()
    assert {both.reset(seed=seed).splitlines()[0] for seed in range(8)} == {"# AllReduce", "# Gather"}
    with pytest.raises(ProblemNotFound, match="Did you mean"):
        settings.open_session("Gathre")
    with pytest.raises(ConfigError, match="max_turns: Input should be greater"):
        EpisodeSettings.of({"max_turns": 0})
