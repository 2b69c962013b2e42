"""Shares of a node's GPUs and processors, one for each of several evaluation services."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.support import env_vars

MIN_PROCESSORS_PER_GANG = 4
"""Processors of each gang from which on one more is kept for the service that spreads requests."""


@dataclass(frozen=True)
class Share:
    """The share of one gang in a node.

    Attributes:
        gpus: Entries of CUDA_VISIBLE_DEVICES; none on a node without GPUs.
        processors: Numbers of the processors.
    """

    gpus: tuple[str, ...]
    processors: tuple[int, ...]


def share_out_node(gangs: int) -> tuple[list[Share], tuple[int, ...]]:
    """The shares of several gangs in the GPUs and processors of this process, and the processors that are left.

    Args:
        gangs: Number of gangs, at least 1.

    Raises:
        ConfigError: The GPUs cannot be divided equally, or there are fewer processors than gangs.
    """
    available = sorted(os.sched_getaffinity(0))
    kept = 1 if len(available) > MIN_PROCESSORS_PER_GANG * gangs else 0
    of_gpus, of_processors = share_out_gpus(gangs, visible_gpus()), share_out_processors(gangs, available[kept:])
    shares = [Share(*own) for own in zip(of_gpus, of_processors, strict=True)]
    return shares, tuple(sorted(set(available).difference(*of_processors)))


def visible_gpus() -> list[str]:
    """Entries of CUDA_VISIBLE_DEVICES that name the GPUs of this process, in their order."""
    count, listed = len(gpus.names()), env_vars.visible_devices()
    entries = map(str, range(count)) if listed is None else map(str.strip, listed.split(","))
    return list(entries)[:count]


def share_out_processors(services: int, available: Sequence[int] | None = None) -> list[tuple[int, ...]]:
    """Processors of each service: equal shares, from the last on; what is left over is the trainer's.

    Args:
        services: Number of services.
        available: Processors to share out; by default those of this process.

    Raises:
        ConfigError: there are fewer processors than services.

    Example:
        >>> share_out_processors(2, [0, 1, 2, 3, 4])
        [(1, 2), (3, 4)]
    """
    processors = sorted(os.sched_getaffinity(0)) if available is None else list(available)
    each = len(processors) // services
    if each == 0:
        raise ConfigError(f"{services} evaluation services need a processor each; there are {len(processors)}")
    mine = processors[len(processors) - services * each :]
    return [tuple(mine[at * each : (at + 1) * each]) for at in range(services)]


def share_out_gpus(services: int, gpus: Sequence[str]) -> list[tuple[str, ...]]:
    """GPUs of each service: equal shares of neighbours; empty shares where there are none.

    Args:
        services: Number of services.
        gpus: Entries of CUDA_VISIBLE_DEVICES.

    Raises:
        ConfigError: they cannot be divided equally.

    Example:
        >>> share_out_gpus(2, ["0", "1", "2", "3"])
        [('0', '1'), ('2', '3')]
    """
    each, left = divmod(len(gpus), services)
    if left:
        raise ConfigError(f"{len(gpus)} GPUs cannot be divided equally among {services} evaluation services")
    return [tuple(gpus[at * each : (at + 1) * each]) for at in range(services)]
