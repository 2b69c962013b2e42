"""The examples in the docstrings of agents run."""

from __future__ import annotations

import doctest
import importlib

import pytest

MODULES = ("agents.options", "agents.registry", "agents.run.identity", "agents.submissions", "envs.text.reply")


@pytest.mark.parametrize("name", [*MODULES, "rewards.empty_value"])
def test_examples(name):
    result = doctest.testmod(importlib.import_module(f"pkb_gym.{name}"))
    assert result.attempted > 0 and result.failed == 0
