"""Arguments that name files of results."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pkb_gym.engine.errors import ConfigError

if TYPE_CHECKING:
    from pkb_gym.engine.records.attempt import Attempt
    from pkb_gym.metrics.results import AgentResults

RESULTS_HELP = "file of attempts, or folder of a run; AGENT=PATH selects or names an agent"


def add_results_argument(parser: argparse.ArgumentParser) -> None:
    """Adds `RESULTS...`, which `read_results` reads."""
    parser.add_argument("results", metavar="RESULTS", nargs="+", help=RESULTS_HELP)


def read_agent(argument: str) -> tuple[AgentResults, list[Attempt]]:
    """The results of a file of one agent, and the attempts that they are made of.

    Raises:
        ConfigError: the file cannot be read, or has several agents.
    """
    from pkb_gym.metrics.results import results_by_agent
    from pkb_gym.metrics.sources import read_results

    attempts = read_results([argument])
    agents = results_by_agent(attempts)
    if len(agents) > 1:
        names = ", ".join(each.agent for each in agents)
        raise ConfigError(f"{argument} holds results of several agents: {names}. Choose one by AGENT={argument}")
    return agents[0], attempts
