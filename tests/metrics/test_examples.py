"""The examples in docstrings are what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import pkb_gym.metrics

MODULES = [module.name for module in pkgutil.iter_modules(pkb_gym.metrics.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    assert doctest.testmod(importlib.import_module(f"pkb_gym.metrics.{name}")).failed == 0
