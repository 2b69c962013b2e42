"""Submits the baseline itself: the floor of every comparison, and a measure of the noise at a speedup of one."""

from __future__ import annotations

from collections.abc import Mapping

from pkb_gym.agents.fixed import FixedProvider
from pkb_gym.agents.options import NoOptions, parse_options
from pkb_gym.agents.protocol import AgentProvider, AgentTask, Reply
from pkb_gym.problems.catalogue import reference_source


def open_provider(_argument: str, options: Mapping[str, str]) -> AgentProvider:
    """The provider of the reference solutions, for `registry.open_agent`."""
    parse_options("reference", NoOptions, options)
    return FixedProvider({}, _replies)


def _replies(task: AgentTask) -> tuple[Reply, ...]:
    return (Reply("", submission=reference_source(task.problem)),)
