"""An agent of the user's own, in Python: a function that is given the episode's task and returns its agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

from pkb_gym.agents.options import NoOptions, parse_options
from pkb_gym.agents.protocol import Agent, AgentProvider, AgentTask, Setting
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.support.user_objects import load_object


@dataclass(frozen=True)
class PythonProvider:
    """Agents that a function makes.

    Attributes:
        reference: Place of the function, as module:function.
        make: Function or class that makes an agent.
    """

    reference: str
    make: Callable[[AgentTask], Agent]

    @property
    def settings(self) -> Mapping[str, Setting]:
        """Place of the function."""
        return {"function": self.reference}

    def begin(self, task: AgentTask) -> Agent:
        """The agent of one episode.

        Raises:
            ConfigError: The function returns no agent.
        """
        agent = self.make(task)
        if not callable(getattr(agent, "act", None)):
            raise ConfigError(f"agent {self.reference!r} returned {type(agent).__name__}, which has no method `act`")
        return agent

    def close(self) -> None:
        """Nothing was started here."""


def open_provider(argument: str, options: Mapping[str, str]) -> AgentProvider:
    """The provider of agents by a Python function, for `registry.open_agent`.

    Raises:
        ConfigError: There is no such function.
    """
    parse_options("python", NoOptions, options)
    found = load_object(argument, "agent")
    if not callable(found):
        raise ConfigError(f"agent {argument!r} is no function of a task; it is {type(found).__name__}")
    return PythonProvider(argument, cast(Callable[[AgentTask], Agent], found))
