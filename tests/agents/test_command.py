"""A program as an agent: what it reads, what it prints, and what becomes of it when it fails."""

from __future__ import annotations

import json
import shlex
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from pkb_gym.agents.command import as_text, evaluation_command, read_reply
from pkb_gym.agents.protocol import AgentError, Message, Reply
from pkb_gym.agents.registry import open_agent
from pkb_gym.cli.program import make_parser
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.attempt import TokenCounts
from tests.agents.conversations import CONVERSATION, answered, task
from tests.waiting import PATIENCE_S, until


@pytest.fixture
def program(tmp_path):
    """Makes a provider whose program is this Python code."""

    def make(code, **options):
        path = tmp_path / "program.py"
        path.write_text(f"import json, os, sys, time, subprocess\n{code}\n")
        return open_agent(f"command:{sys.executable} {path}", {name: str(value) for name, value in options.items()})

    return make


def test_text_in_and_text_out(program):
    reply = program("print('read', sys.stdin.read())").begin(task()).act(CONVERSATION)
    assert reply == Reply("read Write kernels.\n\n# AllReduce\n\n")


def test_json_in_and_json_out(program):
    code = """
episode = json.load(sys.stdin)
environment = [os.environ["PKB_" + name] for name in ("PROBLEM", "SAMPLE", "TURN")]
print(json.dumps({"content": json.dumps([episode, environment]), "source": "int a;", "reasoning": "why",
                  "tokens": {"prompt": 5, "completion": 6}, "cost_usd": 0.25}))
"""
    messages = [*CONVERSATION, *answered("int b;", 0.0)]
    reply = program(code, stdin="json").begin(task(sample=3)).act(messages)
    episode, environment = json.loads(reply.content)
    assert environment == ["AllReduce", "3", "1"]
    assert (episode["problem"], episode["sample"], episode["turn"]) == ("AllReduce", 3, 1)
    assert [message["role"] for message in episode["messages"]] == ["system", "user", "assistant", "tool"]
    assert episode["messages"][2]["source"] == "int b;"
    assert (reply.submission, reply.reasoning, reply.cost_usd) == ("int b;".replace("b", "a"), "why", 0.25)
    assert reply.tokens == TokenCounts(prompt=5, completion=6)


def test_the_command_that_judges_a_file_as_the_run_does_is_in_the_environment(program):
    """Device, ranks and size stood in prose alone."""
    words = shlex.split(program("print(os.environ['PKB_EVAL'])").begin(task()).act(CONVERSATION).content)
    assert words[:4] == [sys.executable, "-m", "pkb_gym.cli", "eval"]
    args = make_parser("eval").parse_args([*words[3:], "kernel.cpp"])
    assert (args.problem, str(args.file), args.world_size, args.size) == ("AllReduce", "kernel.cpp", 2, "tiny")
    axes = replace(task(), config=task().config.model_copy(update={"size": {"M": 8, "counts": (1, 2)}}))
    assert make_parser("eval").parse_args([*evaluation_command(axes)[3:], "a.cpp"]).size == axes.config.size


def test_the_turns_of_an_episode_share_a_folder_that_goes_with_it(program):
    agent = program("notes = open('notes', 'a+'); notes.seek(0); print('notes:', notes.read()); notes.write('x')")
    one, other = agent.begin(task()), agent.begin(task(sample=1))
    replies = [
        one.act(CONVERSATION).content.strip(),
        one.act(CONVERSATION).content.strip(),
        other.act(CONVERSATION).content.strip(),
    ]
    assert replies == ["notes:", "notes: x", "notes:"]
    folder = one._folder
    assert folder.is_dir()
    del one
    assert not folder.exists()


def test_no_output_ends_the_episode(program):
    assert program("print()").begin(task()).act(CONVERSATION) is None


def test_a_failure_is_the_agents_and_is_reported_without_control_characters(program):
    """A program's words reach the terminal."""
    with pytest.raises(AgentError, match=r"ended with status 3: no \\x1b\[31mkey"):
        program("sys.stderr.write('no \\x1b[31mkey'); sys.exit(3)").begin(task()).act(CONVERSATION)


def test_a_late_program_is_ended_with_all_that_it_started(program, tmp_path):
    code = f"child = subprocess.Popen(['sleep', '60']); open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))"
    began = time.monotonic()
    with pytest.raises(AgentError, match="did not reply within 1 s"):
        program(f"{code}\ntime.sleep(60)", timeout_s=1).begin(task()).act(CONVERSATION)
    assert time.monotonic() - began < 30
    ended(int((tmp_path / "pid").read_text()))


def test_a_reply_does_not_wait_for_what_the_program_leaves_behind(program, tmp_path):
    """A server in the background held the output open: the run waited for it, an hour at most."""
    code = f"child = subprocess.Popen(['sleep', '60']); open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))"
    began = time.monotonic()
    reply = program(f"{code}\nprint('int a;')", timeout_s=50).begin(task()).act(CONVERSATION)
    assert reply is not None and reply.content.strip() == "int a;"
    assert time.monotonic() - began < 30
    ended(int((tmp_path / "pid").read_text()))


def ended(pid):
    try:
        process = psutil.Process(pid)
        process.wait(PATIENCE_S)
    except psutil.NoSuchProcess:
        pass


def test_close_ends_a_program_that_runs(program, tmp_path):
    provider = program(f"open({str(tmp_path / 'up')!r}, 'w').close()\ntime.sleep(60)")
    errors = []

    def act():
        try:
            provider.begin(task()).act(CONVERSATION)
        except AgentError as error:
            errors.append(str(error))

    thread = threading.Thread(target=act)
    thread.start()
    until((tmp_path / "up").exists)
    provider.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive() and "ended with status -9" in errors[0]


def test_a_missing_program_is_wrong_usage():
    with pytest.raises(ConfigError, match="no program 'pkb-no-such-program' on PATH"):
        open_agent("command:pkb-no-such-program --fast")
    with pytest.raises(ConfigError, match="No closing quotation"):
        open_agent("command:echo 'a")


def test_an_entry_that_is_not_understood_is_an_error():
    with pytest.raises(AgentError, match="sauce: Extra inputs are not permitted; entries are content, source"):
        read_reply('{"sauce": "int a;"}')
    assert read_reply("{not json").content == "{not json"


@pytest.mark.parametrize(
    "text", ['loading\n{"source": "int a;"}\n', '{"source": "int a;"}\ndone', '{"x": 1}\n{"source": "int a;"}']
)
def test_a_json_line_may_have_neighbours(text):
    """Submitted as text, it had no fenced block."""
    reply = read_reply(text)
    assert reply.submission == "int a;" and reply.content.strip() in text
    assert read_reply("```cpp\n{\n}\n```").submission is None


def test_the_conversation_as_text():
    text = as_text(
        [*CONVERSATION, Message("assistant", "Mine:", submission="int a;\n"), Message("tool", "Turn 1: wrong")]
    )
    expected = "Write kernels.\n\n# AllReduce\n\n# Your reply\n\nMine:\n```\nint a;\n```\n\n# What was found\n\n"
    assert text == f"{expected}Turn 1: wrong\n"


def test_programs_are_found_from_another_folder(monkeypatch, tmp_path):
    """It is started in the episode's folder, where a relative path would lead nowhere."""
    (tmp_path / "here.sh").write_text("#!/bin/sh\necho hello\n")
    (tmp_path / "here.sh").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    assert open_agent("command:./here.sh").begin(task()).act(CONVERSATION).content == "hello\n"
    assert Path.cwd() == tmp_path
