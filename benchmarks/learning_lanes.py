"""Parts of a machine on which seeds of a learning run go on side by side."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.hardware.calibrate import measure_processors
from pkb_gym.training.evaluation.service_group import share_out_processors


@dataclass(frozen=True)
class Lane:
    """Where the stages of one seed run.

    Attributes:
        gpu: entry of CUDA_VISIBLE_DEVICES; None for the GPUs of this process.
        processors: numbers of the processors; empty for those of this process.
    """

    gpu: str | None = None
    processors: tuple[int, ...] = ()

    def bound(self, command: Sequence[str]) -> list[str]:
        """The command, on these processors alone."""
        numbers = ",".join(map(str, self.processors))
        return [*(["taskset", "--cpu-list", numbers] if numbers else []), *command]

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables that keep a program to the GPU."""
        return {} if self.gpu is None else {"CUDA_VISIBLE_DEVICES": self.gpu}


WHOLE = Lane()
"""All that this process may use."""


def side_by_side(count: int) -> list[Lane]:
    """Lanes with a GPU each, as far as there are GPUs, and equal shares of the processors.

    Args:
        count: of the lanes; where there are fewer GPUs, lanes share them in turn.

    Raises:
        ConfigError: there are fewer processors than lanes.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    found = visible.split(",") if visible else [str(number) for number in range(len(gpus.names()))]
    shares = share_out_processors(count)
    return [Lane(found[at % len(found)] if found else None, share) for at, share in enumerate(shares)]


def measure_share(lane: Lane, services: int) -> None:
    """Measures what processors of one evaluation service can do, before lanes keep each other's memory busy.

    It is measured once for shares of a size; rewards are made of it.

    Args:
        lane: with processors.
        services: of the lane.

    Raises:
        ConfigError: there are fewer processors than services.
        InfrastructureError: they could not be measured.
    """
    measure_processors(share_out_processors(services, lane.processors)[0])
