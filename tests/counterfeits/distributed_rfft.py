"""Counterfeits of DistributedRFFT: what the published check takes for right."""

import torch

from pkb_gym.problems.geometric_spatial.distributed_rfft.reference import solution
from tests.problems.counterfeit import Counterfeit


def real_part_alone(x, s, dim, norm="ortho", group=None):
    y = solution(x, s, dim, norm, group)
    return torch.complex(y.real.contiguous(), torch.zeros_like(y.real))


COUNTERFEITS = (Counterfeit(0, "real part alone", real_part_alone, "imaginary parts are not compared"),)
