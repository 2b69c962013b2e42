"""The protocol of agents: an agent reads a conversation and replies.

An agent keeps nothing that the conversation does not hold, so that an episode that was broken off goes on from its
records as if it had not been.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from pkb_gym.engine.errors import ConfigError, InfrastructureError
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.attempt import TokenCounts
from pkb_gym.engine.records.config import ResolvedConfig
from pkb_gym.envs.episode import Turn

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]

Setting: TypeAlias = str | int | float | bool | None
"""A setting of an agent, as it is recorded."""

SUBMIT = "submit"
"""Name of the tool that submits a source."""


class AgentError(InfrastructureError):
    """Raised when an agent could not reply, for a reason that may pass: its endpoint is down, its program crashed."""


class RequestRefused(AgentError):
    """Raised when the endpoint refuses one conversation: it is too long for the model, or a filter rejects it."""


class NotCovered(ConfigError):
    """Raised when an agent has nothing to offer for a problem."""


@dataclass(frozen=True)
class Message:
    """One message of the conversation.

    Attributes:
        role: Role of the author; "tool" for the answer to a call of the tool `submit`.
        content: Text of the message.
        submission: Source that an assistant handed to the tool `submit`; None where the text holds it.
        turn: Submission that the message answers, with its feedback; None where it answers none.
    """

    role: Role
    content: str
    submission: str | None = None
    turn: Turn | None = None


@dataclass(frozen=True)
class Reply:
    """The reply of an agent.

    Attributes:
        content: Text of the reply, without reasoning.
        reasoning: Reasoning that came apart from the text.
        submission: Source for the tool `submit`; None for a source that stands in `content`.
        tokens: Numbers of tokens read and written for this reply; None where they are not counted.
        cost_usd: Price of the reply in US dollars; None where no prices are known.
        finish_reason: Why the reply ended, as endpoints name it: "stop", "length"; None where it is not known.
    """

    content: str
    reasoning: str | None = None
    submission: str | None = None
    tokens: TokenCounts | None = None
    cost_usd: float | None = None
    finish_reason: str | None = None


@dataclass(frozen=True)
class AgentTask:
    """The description of one episode that its agent receives.

    Attributes:
        problem: Problem to solve.
        config: Configuration of evaluations, where the source does not decide it.
        sample: Number of the episode among those on the same problem, from 0.
        seed: Seed of the agent's random choices.
    """

    problem: Problem
    config: ResolvedConfig
    sample: int
    seed: int


class Agent(Protocol):
    """The author of the submissions of one episode."""

    def act(self, messages: Sequence[Message]) -> Reply | None:
        """Replies to a conversation.

        Args:
            messages: Whole conversation, the system's message first; the last one asks for this reply.

        Returns:
            The reply; None where the agent ends the episode.

        Raises:
            AgentError: The agent could not reply; the episode is taken up again when the run is resumed.
            RequestRefused: The endpoint refuses this conversation, which ends the episode.
            ConfigError: No episode of the agent can succeed: a wrong key, a model that does not exist.
        """


class AgentProvider(Protocol):
    """Makes the agents of a run; safe to use from several threads, as are its agents."""

    @property
    def settings(self) -> Mapping[str, Setting]:
        """All that the replies depend on, for the record; no secrets."""

    def begin(self, task: AgentTask) -> Agent:
        """The agent of one episode.

        Raises:
            NotCovered: The agent has nothing to offer for the problem.
        """

    def close(self) -> None:
        """Ends what the agents started, also what they are waiting for; calling it again changes nothing."""


@runtime_checkable
class WarnsUser(Protocol):
    """A provider about which its user should know something before the run begins."""

    @property
    def warning(self) -> str | None:
        """The warning; None where there is none."""
