"""Submits the known-good kernel that lies beside a problem."""

from __future__ import annotations

from collections.abc import Mapping

from pkb_gym.agents.fixed import FixedProvider
from pkb_gym.agents.options import NoOptions, parse_options
from pkb_gym.agents.protocol import AgentProvider, AgentTask, NotCovered, Reply
from pkb_gym.problems.catalogue import expert_source

SUFFIXES = {"cpu": "cpp", "cuda": "cu", "emulated": "cu"}
"""Suffix of native kernels by device."""


def open_provider(_argument: str, options: Mapping[str, str]) -> AgentProvider:
    """The provider of the expert kernels, for `registry.open_agent`."""
    parse_options("expert", NoOptions, options)
    return FixedProvider({}, _replies)


def _replies(task: AgentTask) -> tuple[Reply, ...]:
    suffix = SUFFIXES[task.config.device]
    source = expert_source(task.problem, suffix)
    if source is None:
        raise NotCovered(f"{task.problem.name} has no expert.{suffix}")
    return (Reply("", submission=source),)
