"""docs/agents.md: its tables are complete, its commands are understood, and its agents play."""

from __future__ import annotations

import json
import re
import shlex
import sys

import pytest

from pkb_gym.agents.command import CommandOptions
from pkb_gym.agents.evolve import EvolveOptions
from pkb_gym.agents.local_model import LocalOptions
from pkb_gym.agents.openai_chat import ChatOptions
from pkb_gym.agents.protocol import Message
from pkb_gym.agents.registry import AGENTS, open_agent
from pkb_gym.agents.workspace.coding_clis import CODING_CLIS
from pkb_gym.agents.workspace.process import Usage
from pkb_gym.agents.workspace.provider import WorkspaceOptions
from pkb_gym.cli.program import COMMANDS, make_parser
from pkb_gym.envs.episode import Episode
from pkb_gym.problems.catalogue import find_problem, reference_source
from pkb_gym.rewards import find_reward
from pkb_gym.rewards.examples import timed
from tests.agents.conversations import CONVERSATION, task
from tests.docs.pages import DOCS, code_blocks

FILE = DOCS / "agents.md"
PAGE = FILE.read_text(encoding="utf-8")


OPTIONS = {
    "openai": ChatOptions,
    "transformers": LocalOptions,
    "command": CommandOptions,
    "workspace": WorkspaceOptions,
    "evolve": EvolveOptions,
}


def table(head: str) -> list[list[str]]:
    """Cells of the rows below a head."""
    (rows,) = re.findall(rf"^{re.escape(head)}\n\|[-|]+\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return [[cell.strip() for cell in row.strip("|\n").split("|")] for row in rows.splitlines()]


def commands() -> list[list[str]]:
    lines = "".join(re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)).splitlines()
    return [words[1:] for line in lines if (words := shlex.split(line, comments=True))[:1] == ["pkb"]]


def test_every_agent_has_a_row():
    named = [re.findall(r"^`(\w+)(?::([\w :]+))?`", row[0])[0] for row in table("| agent | submits |")]
    assert dict(named) == {name: kind.argument or "" for name, kind in AGENTS.items()}


def test_every_option_has_a_row():
    documented: dict[str, set[str]] = {}
    for agent, options, _ in table("| agent | option | meaning |"):
        name = agent.strip("`") or list(documented)[-1]
        documented.setdefault(name, set()).update(re.findall(r"`(\w+)`", options))
    assert documented == {name: set(record.model_fields) for name, record in OPTIONS.items()}


@pytest.mark.parametrize("record", OPTIONS.values(), ids=OPTIONS)
def test_every_option_has_a_description(record):
    """The words stand in errors."""
    assert all(field.description for field in record.model_fields.values())


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_pkb_takes_its_commands(words):
    if words[0] not in COMMANDS:
        pytest.skip(f"`pkb {words[0]}` is not part of this version")
    make_parser(words[0]).parse_args(words)


def test_there_are_runs_among_the_commands():
    assert [words[0] for words in commands()].count("run") == 5


def test_the_coding_agents_are_those_of_the_table_and_the_line_reports_tokens():
    listed = re.findall(r"^(`aider`.*) stand for the command lines", PAGE, re.MULTILINE)[0]
    assert re.findall(r"`(\w+)`", listed) == list(CODING_CLIS)
    (line,) = re.findall(r'`(\{"usage".*?\}, *\n"total_cost_usd".*?\})`', PAGE)
    assert Usage.model_validate(json.loads(line)["usage"]).tokens.completion == 80


def test_the_program_plays(tmp_path):
    ((name, program),) = code_blocks(FILE, "program").items()
    (tmp_path / name).write_text(program)
    provider = open_agent(f"command:{sys.executable} {tmp_path / name}", {"stdin": "json"})
    agent = provider.begin(task("ReduceScatter"))
    reply = agent.act(CONVERSATION)
    assert reply.content == "A starter." and "TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution" in reply.submission
    later = [*CONVERSATION, Message("assistant", reply.content, submission=reply.submission), Message("tool", "Turn 1")]
    assert agent.act(later) is None


def test_the_agent_in_python_plays(tmp_path, monkeypatch):
    ((name, code),) = code_blocks(FILE, "agent").items()
    (command,) = re.findall(r"`pkb run --agent (python:\S+)`", PAGE)
    (tmp_path / name).write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "my_agents", raising=False)
    agent, episode = open_agent(command).begin(task()), Episode(find_reward("default"))
    first = agent.act(CONVERSATION).submission
    assert first == "# 0\n" + reference_source(find_problem("AllReduce"))
    turns = [episode.record(f"kernel {speedup}", timed(speedup=speedup)) for speedup in (1.0, 3.0, 2.0)]
    messages = [*CONVERSATION, *(Message("tool", "", turn=turn) for turn in turns)]
    assert agent.act(messages).submission == "# 3\nkernel 3.0"


def test_the_error_is_that_of_the_command():
    from pkb_gym.engine.records.setting_differences import differences

    (quoted,) = re.findall(r"another configuration: (.*)\. Give the same", PAGE)
    (found,) = differences({"settings": {"temperature": 0.8}}, {"settings": {"temperature": 1.0}})
    assert quoted == str(found)
