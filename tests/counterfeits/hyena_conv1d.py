"""Counterfeits of HyenaConv1d: what the published check takes for right."""

import torch
import torch.distributed as dist

from pkb_gym.problems.context_parallel.hyena_conv1d.reference import solution as reference
from tests.problems.counterfeit import Counterfeit


def seven_taps(x: torch.Tensor, weight: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """Halo and filter length are built in."""
    return reference(x, weight[..., -7:], group)


COUNTERFEITS = (Counterfeit(0, "seven taps built in", seven_taps, why="there are never more"),)
NOT_SHOWN: dict[int, str] = {}
