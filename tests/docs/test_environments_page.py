"""docs/environments.md: its code runs, its tables are complete, and examples of docstrings print what they show."""

from __future__ import annotations

import doctest
import importlib
import os
import re

import pytest

from docs.generate import environments
from pkb_gym import envs
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.envs import evaluator_registry
from pkb_gym.envs.spaces import observation_space
from tests.docs.pages import DOCS, ROOT

PAGE = (DOCS / "environments.md").read_text(encoding="utf-8")
WITH_EXAMPLES = [path.stem for path in (ROOT / "envs").glob("*.py") if ">>> " in path.read_text(encoding="utf-8")]


def test_the_code_runs(evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(evaluator_registry._started, (os.getpid(), "local"), evaluator)
    monkeypatch.setattr(evaluator_registry, "_factories", dict(evaluator_registry._factories))
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 8
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/environments.md", "exec"), names)


def test_every_entry_has_a_meaning_and_a_space():
    shown = environments.observation()
    assert not [entry for entry in observation_space() if shown.count(f"`{entry}`") < 2]


def test_every_argument_is_listed():
    shown = environments.arguments()
    names = re.findall(r"^\| `(\w+)`", shown, re.MULTILINE)
    assert set(names) >= {"problem", "device", "world_size", "size", "reward", "evaluator", "render_mode"}
    assert shown.startswith("| argument")


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_print_what_they_show(name):
    result = doctest.testmod(importlib.import_module(f"{envs.__name__}.{name}"))
    assert result.attempted and not result.failed
