"""Several environments by a column of the data set; tests/doors/trl trains with them."""

from __future__ import annotations

import doctest

import pytest

from pkb_gym.adapters import trl as module
from pkb_gym.adapters.settings import EpisodeSettings
from pkb_gym.adapters.trl import environment_factories
from pkb_gym.engine.errors import ConfigError


def test_examples_in_docstrings_hold():
    result = doctest.testmod(module)
    assert result.attempted and not result.failed


def test_mistakes_are_refused_before_anything_is_trained():
    with pytest.raises(ConfigError, match="expected at least one environment"):
        environment_factories({})
    with pytest.raises(ConfigError, match="defualt"):
        environment_factories({"a": EpisodeSettings(split=["AllReduce"], device="cpu", reward="defualt")})
