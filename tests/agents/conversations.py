"""Conversations for agents, and agents whose replies are given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pkb_gym.agents.protocol import Agent, AgentTask, Message, Reply
from pkb_gym.engine.records.config import EvalConfig, resolve
from pkb_gym.envs.episode import Turn
from pkb_gym.problems.catalogue import find_problem

CONVERSATION = (Message("system", "Write kernels."), Message("user", "# AllReduce"))
"""The beginning of a conversation."""


def task(
    problem: str = "AllReduce", *, sample: int = 0, seed: int = 1, device: str = "cpu", dtype: str | None = None
) -> AgentTask:
    found = find_problem(problem)
    config = resolve(
        EvalConfig(world_size=2, size="tiny", dtype=dtype),
        found,
        device=device,
        language="cuda" if device == "cuda" else "cpp",
        memory_total_bytes=1 << 34,
    )
    return AgentTask(found, config, sample, seed)


def answered(source: str, value: float | None, number: int = 1) -> tuple[Message, Message]:
    """A submission and what was found of it."""
    turn = Turn(reward=0.0, value=value, parts={}, number=number, source=source, feedback=None)
    return Message("assistant", "", submission=source), Message("tool", f"Turn {number}", turn=turn)


@dataclass
class Scripted:
    """A provider whose agents reply by a function of task and conversation.

    Attributes:
        script: Function that returns a reply or None, or raises.
        begun: (problem, sample) of each episode.
        read: Conversations, in the order of the replies.
    """

    script: Callable[[AgentTask, Sequence[Message]], Reply | None]
    settings: dict[str, str] = field(default_factory=dict)
    begun: list[tuple[str, int]] = field(default_factory=list)
    read: list[tuple[Message, ...]] = field(default_factory=list)
    closed: bool = False

    def begin(self, task: AgentTask) -> Agent:
        self.begun.append((task.problem.name, task.sample))
        return _ScriptedAgent(self, task)

    def close(self) -> None:
        self.closed = True


@dataclass
class _ScriptedAgent:
    provider: Scripted
    task: AgentTask

    def act(self, messages: Sequence[Message]) -> Reply | None:
        self.provider.read.append(tuple(messages))
        return self.provider.script(self.task, messages)


def turn_of(messages: Sequence[Message]) -> int:
    return sum(message.role == "assistant" for message in messages)
