"""Any program as an agent: it reads the conversation from standard input and prints its reply.

The program is started once for each turn, in a folder that the turns of an episode share and that is removed
afterwards: a coding agent keeps its notes and its session there. It reads the conversation as text, or as JSON with
`stdin=json`:

    {"problem": "AllReduce", "sample": 0, "turn": 1, "messages": [{"role": "system", "content": "..."}, ...]}

It prints a reply as a model would write it, with the source in a fenced block of code, or one JSON object:

    {"content": "...", "source": "...", "reasoning": "...", "tokens": {"prompt": 1, "completion": 2}, "cost_usd": 0.1}

of which every entry may be left out. No output at all ends the episode. PKB_PROBLEM, PKB_SAMPLE and PKB_TURN are set in
its environment, and PKB_EVAL, the command that judges a file as the run does. Exit statuses other than 0 are failures
of the agent, not wrong answers.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from pkb_gym.agents.options import parse_options
from pkb_gym.agents.protocol import Agent, AgentError, AgentProvider, AgentTask, Message, Reply, Setting
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.attempt import TokenCounts
from pkb_gym.engine.records.base import Record, Text
from pkb_gym.engine.support import env_vars
from pkb_gym.engine.support.printable import printable

MAX_OUTPUT_BYTES = 16 << 20
MAX_ERROR_CHARS = 500


class CommandOptions(Record):
    """Options of the agent."""

    stdin: Literal["text", "json"] = "text"
    """Form of the conversation: text or json."""
    timeout_s: float = Field(default=3600.0, gt=0)
    """Deadline of one turn; the program and all that it started are ended then."""


class CommandReply(Record):
    """The JSON object that a program may print in place of text."""

    content: Text = ""
    """Text of the reply; the source is taken from it where there is no `source`."""
    source: Text | None = None
    """The submitted source."""
    reasoning: Text | None = None
    """Reasoning of the agent, for the record."""
    tokens: TokenCounts | None = None
    """Read and written for this reply."""
    cost_usd: float | None = Field(default=None, ge=0)
    """Price of the reply."""


def open_provider(argument: str, options: Mapping[str, str]) -> AgentProvider:
    """The provider of agents by a program, for `registry.open_agent`.

    Raises:
        ConfigError: There is no such program.
    """
    chosen = parse_options("command", CommandOptions, options)
    try:
        command = shlex.split(argument)
    except ValueError as error:
        raise ConfigError(f"agent command: {argument!r}: {error}") from None
    program = shutil.which(command[0])
    if program is None:
        raise ConfigError(f"agent command: no program {command[0]!r} on PATH, or it cannot be executed")
    return CommandProvider((str(Path(program).absolute()), *command[1:]), argument, chosen)


@dataclass(frozen=True)
class CommandProvider:
    """Agents that are one program.

    Attributes:
        program: Path of the program, then its arguments.
        command: Command line as it was given.
        options: Options of the agent.
    """

    program: tuple[str, ...]
    command: str
    options: CommandOptions
    _running: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def settings(self) -> Mapping[str, Setting]:
        """The command, and whether it reads standard input."""
        return {"command": self.command, "stdin": self.options.stdin}

    @property
    def warning(self) -> str:
        """The warning that the program can read the answers."""
        return (
            "NOTHING IS HIDDEN from the program: it runs with your rights, and the known-good kernels lie on this "
            "machine. --agent workspace:PROGRAM hides them, and records what it evaluates"
        )

    def begin(self, task: AgentTask) -> Agent:
        """The agent of one episode."""
        return CommandAgent(self, task)

    def close(self) -> None:
        """Ends programs that still run."""
        with self._lock:
            for process in self._running.values():
                _kill(process)

    def call(self, conversation: bytes, folder: Path, variables: Mapping[str, str]) -> bytes:
        """The output of the program.

        Raises:
            AgentError: The program failed, printed too much, or was late.
        """
        try:
            process = subprocess.Popen(
                self.program,
                cwd=folder,
                env=env_vars.with_changes(**variables),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise AgentError(f"{self.program[0]} could not be started: {error.strerror}") from None
        with self._lock:
            self._running[process.pid] = process
        threading.Thread(target=_end_what_it_leaves, args=(process.pid,), daemon=True).start()
        try:
            out, err = process.communicate(conversation, timeout=self.options.timeout_s)
        except subprocess.TimeoutExpired:
            raise AgentError(f"{self.program[0]} did not reply within {self.options.timeout_s:g} s") from None
        finally:
            with self._lock:
                del self._running[process.pid]
            _end(process)
        if process.returncode != 0:
            printed = err if err.strip() else out  # some programs report their errors on standard output
            reason = printable(" ".join(printed[-4 * MAX_ERROR_CHARS :].decode(errors="replace").split()[-60:]))
            raise AgentError(f"{self.program[0]} ended with status {process.returncode}: {reason[-MAX_ERROR_CHARS:]}")
        if len(out) > MAX_OUTPUT_BYTES:
            raise AgentError(f"{self.program[0]} printed {len(out)} bytes; at most {MAX_OUTPUT_BYTES} are read")
        return out


class CommandAgent:
    """One episode of a program.

    Args:
        provider: Provider that starts the program.
        task: Description of the episode.
    """

    def __init__(self, provider: CommandProvider, task: AgentTask) -> None:
        self._provider, self._task = provider, task
        self._folder: Path | None = None

    def act(self, messages: Sequence[Message]) -> Reply | None:
        """Starts the program on the conversation; None where it prints nothing."""
        turn = sum(message.role == "assistant" for message in messages)
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="pkb-agent-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        variables = {
            "PKB_PROBLEM": self._task.problem.name,
            "PKB_SAMPLE": str(self._task.sample),
            "PKB_TURN": str(turn),
            "PKB_EVAL": shlex.join(evaluation_command(self._task)),
        }
        conversation = self._as_json(messages, turn) if self._provider.options.stdin == "json" else as_text(messages)
        printed = self._provider.call(conversation.encode("utf-8", "surrogatepass"), self._folder, variables)
        text = printed.decode("utf-8", "surrogateescape")
        return read_reply(text) if text.strip() else None

    def _as_json(self, messages: Sequence[Message], turn: int) -> str:
        each = [
            {"role": message.role, "content": message.content}
            | ({} if message.submission is None else {"source": message.submission})
            for message in messages
        ]
        episode = {"problem": self._task.problem.name, "sample": self._task.sample, "turn": turn}
        return json.dumps({**episode, "messages": each}) + "\n"


def evaluation_command(task: AgentTask) -> list[str]:
    """The command that judges a file, which is to be added, as the run does."""
    config = task.config
    size = config.size if isinstance(config.size, str) else ",".join(f"{a}={v!r}" for a, v in config.size.items())
    options = {
        "--device": config.device,
        "--world-size": config.world_size,
        "--ranks-per-gpu": config.ranks_per_gpu,
        "--size": size,
        "--dtype": config.dtype,
        "--protocol": config.protocol,
        "--until": config.until,
    }
    words = [str(word) for option in options.items() for word in option]
    return [sys.executable, "-m", "pkb_gym.cli", "eval", *words, task.problem.name]


def as_text(messages: Sequence[Message]) -> str:
    """A conversation as one text: the first messages as they are, later ones below a line that names the author."""
    parts: list[str] = []
    for message in messages:
        if message.role == "assistant":
            source = "" if message.submission is None else f"\n```\n{message.submission.rstrip()}\n```"
            parts.append(f"# Your reply\n\n{message.content}{source}")
        elif any(earlier.startswith("# Your reply") for earlier in parts):
            parts.append(f"# What was found\n\n{message.content}")
        else:
            parts.append(message.content)
    return "\n\n".join(part.strip() for part in parts) + "\n"


def read_reply(text: str) -> Reply:
    r"""The output of a program: an object of JSON, also between other lines, or the reply itself.

    Raises:
        AgentError: The output is an object with unknown entries.

    Example:
        >>> read_reply('loading the model\n{"source": "int a;"}\n')
        Reply(content='loading the model', reasoning=None, submission='int a;', tokens=None, cost_usd=None, \
finish_reason=None)
    """
    try:
        found = json.loads(text) if text.lstrip().startswith("{") else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        return _reply_between_lines(text) or Reply(text)
    try:
        reply = CommandReply.model_validate(found)
    except ValidationError as error:
        wrong = error.errors()[0]
        place = ".".join(map(str, wrong["loc"]))
        known = ", ".join(CommandReply.model_fields)
        raise AgentError(f"the program's reply: {place}: {wrong['msg']}; entries are {known}") from None
    return Reply(reply.content, reply.reasoning, reply.source, reply.tokens, reply.cost_usd)


def _reply_between_lines(text: str) -> Reply | None:
    """The last line that is a reply in JSON; its neighbours, such as a log, are the content where it has none."""
    lines = text.splitlines()
    for number in reversed(range(len(lines))):
        if not lines[number].lstrip().startswith("{"):
            continue
        try:
            reply = CommandReply.model_validate(json.loads(lines[number]))
        except (ValueError, RecursionError):  # also of pydantic
            continue
        if reply.model_fields_set:
            content = reply.content or "\n".join(lines[:number] + lines[number + 1 :])
            return Reply(content, reply.reasoning, reply.source, reply.tokens, reply.cost_usd)
    return None


def _end_what_it_leaves(pid: int) -> None:
    """Waits for the end of a program, and ends what it has left in its session: that may hold its output open."""
    with suppress(ChildProcessError, ProcessLookupError, PermissionError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # its id stays taken, for nobody else is to be ended
        os.killpg(pid, signal.SIGKILL)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Ends a program and whatever it started in its session."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _end(process: subprocess.Popen[bytes]) -> None:
    """The same, and gives up its pipes, which what ignores its end may still hold."""
    _kill(process)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=5)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
