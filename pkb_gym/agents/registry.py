"""Agents by name; the module of one is imported when it is asked for."""

from __future__ import annotations

import importlib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.support.suggestions import did_you_mean

if TYPE_CHECKING:
    from pkb_gym.agents.protocol import AgentProvider
    from pkb_gym.agents.workspace.provider import WorkspaceProvider


@dataclass(frozen=True)
class AgentKind:
    """A kind of agent.

    Attributes:
        module: Name of a module in this folder, whose `open_provider(argument, options)` makes the provider.
        argument: Placeholder of the text after the name and a colon; None for an agent without one.
        about: Description in one line.
        jobs: Default number of episodes at a time, for agents that mostly wait; None for one on each core.
        turns: Default number of turns of an episode.
    """

    module: str
    argument: str | None
    about: str
    jobs: int | None = None
    turns: int = 1


AGENTS = {
    "reference": AgentKind("reference", None, "submits the baseline: the floor"),
    "expert": AgentKind("expert", None, "submits the known-good kernel of a problem, where there is one"),
    "nearest": AgentKind("nearest", "CORPUS", "submits the kernel of the nearest problem in a corpus: a control"),
    "replay": AgentKind("replay", "PATH", "submits the sources of a folder, or of a file of results, again"),
    "openai": AgentKind("openai_chat", "MODEL", "a model behind an OpenAI-compatible endpoint", jobs=16),
    "transformers": AgentKind("local_model", "PATH", "a model whose weights are loaded here", jobs=16),
    "command": AgentKind("command", "PROGRAM ARGS", "a program that reads the conversation and prints its reply"),
    "workspace": AgentKind(
        "workspace.provider", "PROGRAM ARGS", "a program that edits, evaluates and submits in a folder", turns=40
    ),
    "python": AgentKind("python_agent", "MODULE:FUNCTION", "an agent of your own: a function of the episode's task"),
    "evolve": AgentKind("evolve", None, "searches the kernel families of the corpus, without a model"),
}
"""Kind of agent by name."""

SYNONYMS = {"baseline": "reference", "hf": "transformers", "gpt": "openai", "cmd": "command", "search": "evolve"}
"""Other names for some of them."""


def open_agent(text: str, options: Mapping[str, str] | None = None) -> AgentProvider | WorkspaceProvider:
    """The agent of a name.

    Args:
        text: "reference", or a name and its argument: "openai:gpt-5", "replay:runs/first".
        options: Value by name, as text; the agent's module describes them.

    Raises:
        ConfigError: There is no such agent, its argument is missing or wrong, or a package that it needs is missing.
    """
    kind, argument = split_name(text)
    module = importlib.import_module(f".{kind.module}", __package__)
    provider: AgentProvider | WorkspaceProvider = module.open_provider(argument, options or {})
    return provider


def split_name(text: str) -> tuple[AgentKind, str]:
    """The kind of an agent and its argument, which is empty where it takes none; imports nothing.

    Raises:
        ConfigError: There is no such agent, its argument is missing, or it takes none.

    Example:
        >>> split_name("openai:gpt-5")[1]
        'gpt-5'
        >>> split_name("expret")
        Traceback (most recent call last):
        ...
        pkb_gym.engine.errors.ConfigError: no agent 'expret'; there are reference, expert, nearest:CORPUS, \
replay:PATH, openai:MODEL, transformers:PATH, command:PROGRAM ARGS, workspace:PROGRAM ARGS, python:MODULE:FUNCTION and \
evolve. Did you mean 'expert'?
    """
    name, colon, argument = text.partition(":")
    if name not in AGENTS:
        *others, last = (f"{known}:{kind.argument}" if kind.argument else known for known, kind in AGENTS.items())
        hint = did_you_mean(name, AGENTS, SYNONYMS)
        raise ConfigError(f"no agent {text!r}; there are {', '.join(others)} and {last}.{hint}")
    kind = AGENTS[name]
    if kind.argument is None and colon:
        raise ConfigError(f"agent {name} takes nothing after its name, got {argument!r}")
    if kind.argument is not None and not argument.strip():
        raise ConfigError(f"agent {name} needs {kind.argument.lower()}: write {name}:{kind.argument}")
    return kind, argument


def default_label(text: str) -> str:
    """The default name of an agent in tables: without the folders of a path.

    Example:
        >>> default_label("openai:org/model"), default_label("command:/opt/tools/coder --fast"), default_label("evolve")
        ('openai:org/model', 'command:coder', 'evolve')
    """
    name, _, argument = text.partition(":")
    if name in ("nearest", "replay", "transformers"):
        return f"{name}:{PurePath(argument).name}"
    if name in ("command", "workspace"):
        return f"{name}:{PurePath(shlex.split(argument)[0]).name}"
    return text
