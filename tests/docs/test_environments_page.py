"""docs/environments.md is what docs/generate_environments.py writes; it shows every public name, and its code runs."""

from __future__ import annotations

import doctest
import os
import re

import pytest

from pkb_gym import envs
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.envs import evaluator_registry
from pkb_gym.envs.spaces import observation_space
from pkb_gym.problems.loading import load_module
from tests.docs.pages import DOCS

generator = load_module(DOCS / "generate_environments.py", "tests.docs.generate_environments")
PAGE = generator.PAGE.read_text(encoding="utf-8")
SESSIONS = re.findall(r"^```pycon\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_page_is_fresh():
    assert generator.PAGE == DOCS / "environments.md"
    assert generator.render() == PAGE, "docs/environments.md is stale: run `python docs/generate_environments.py`"


def test_every_public_name_and_every_entry_is_shown():
    assert not [name for name in envs.__all__ if f"`{name}" not in PAGE and f".{name}`" not in PAGE]
    assert not [entry for entry in observation_space() if PAGE.count(f"`{entry}`") < 2], "its meaning and its space"


def test_the_code_runs(evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(evaluator_registry._started, (os.getpid(), "local"), evaluator)
    monkeypatch.setattr(evaluator_registry, "_factories", dict(evaluator_registry._factories))
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 6
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/environments.md", "exec"), names)


@pytest.mark.parametrize("session", SESSIONS, ids=lambda session: session.splitlines()[0].split()[-1])
def test_sessions_show_what_the_interpreter_prints(session):
    test = doctest.DocTestParser().get_doctest(session, {}, "docs/environments.md", None, 0)
    result = doctest.DocTestRunner().run(test)
    assert result.attempted and not result.failed


def test_a_public_name_without_a_section_gets_one(monkeypatch):
    monkeypatch.setattr(envs, "__all__", [*envs.__all__, "Unlisted"])
    monkeypatch.setattr(envs, "Unlisted", LocalEvaluator, raising=False)
    assert "## `Unlisted`" in generator.render()
