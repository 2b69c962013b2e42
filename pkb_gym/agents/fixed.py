"""An agent that submits one source and then ends the episode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pkb_gym.agents.protocol import Agent, AgentTask, Message, Reply, Setting


@dataclass(frozen=True)
class FixedAgent:
    """Submits these sources, one a turn.

    Attributes:
        replies: Replies, in order.
    """

    replies: tuple[Reply, ...]

    def act(self, messages: Sequence[Message]) -> Reply | None:
        """The next of the replies; None after the last."""
        number = sum(message.role == "assistant" for message in messages)
        return self.replies[number] if number < len(self.replies) else None


@dataclass(frozen=True)
class FixedProvider:
    """Agents whose replies are known before.

    Attributes:
        settings: Settings of the agent, for the record.
        replies: Function from an episode's task to its replies; it raises `NotCovered` where there are none.
    """

    settings: Mapping[str, Setting]
    replies: Callable[[AgentTask], tuple[Reply, ...]]

    def begin(self, task: AgentTask) -> Agent:
        """The agent of one episode."""
        return FixedAgent(self.replies(task))

    def close(self) -> None:
        """Nothing was started."""
