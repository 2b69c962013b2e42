"""The examples in docstrings run."""

from __future__ import annotations

import doctest
import importlib

import pytest

MODULES = (
    "agents.options",
    "agents.registry",
    "agents.submissions",
    "engine.records.conditions",
    "engine.records.setting_differences",
    "envs.text.reply",
    "metrics.groups",
)


@pytest.mark.parametrize("name", [*MODULES, "rewards.empty_value"])
def test_examples(name):
    result = doctest.testmod(importlib.import_module(f"pkb_gym.{name}"))
    assert result.attempted > 0 and result.failed == 0
