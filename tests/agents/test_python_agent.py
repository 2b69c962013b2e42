"""Agents of users, by module and function."""

from __future__ import annotations

import sys

import pytest

from pkb_gym.agents.registry import open_agent
from pkb_gym.engine.errors import ConfigError
from tests.agents.conversations import CONVERSATION, task

CODE = """
from pkb_gym.agents.protocol import Reply

class Named:
    def __init__(self, task):
        self.task = task

    def act(self, messages):
        return Reply(f"{self.task.problem.name} {self.task.sample} {len(messages)}")

def nothing(task):
    return None

number = 5
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "own_agents_of_a_test.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("own_agents_of_a_test", None)


def test_a_class_is_a_function_of_the_task():
    provider = open_agent("python:own_agents_of_a_test:Named")
    assert provider.begin(task("Scatter", sample=2)).act(CONVERSATION).content == "Scatter 2 2"
    assert provider.settings == {"function": "own_agents_of_a_test:Named"}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("own_agents_of_a_test:Nmaed", "has no 'Nmaed'. Did you mean 'Named'"),
        ("own_agents_of_a_test:number", "is no function of a task; it is int"),
        ("own_agents_of_a_test", "expected module:function"),
        ("no_such_agents:begin", "no module 'no_such_agents', neither installed nor in"),
    ],
)
def test_what_is_wrong_with_a_name(name, words):
    with pytest.raises(ConfigError, match=words):
        open_agent(f"python:{name}")


def test_what_is_no_agent():
    with pytest.raises(ConfigError, match="returned NoneType, which has no method `act`"):
        open_agent("python:own_agents_of_a_test:nothing").begin(task())
