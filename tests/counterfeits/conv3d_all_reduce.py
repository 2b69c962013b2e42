"""Counterfeits of Conv3dAllReduce: what the published check takes for right."""

import torch

from pkb_gym.problems.tensor_parallel.conv3d_all_reduce.reference import solution
from tests.problems.counterfeit import Counterfeit


def stored_bias(x, weight, bias, stride, padding, dilation, groups=1, group=None):
    stored = torch.linspace(-0.1, 0.1, weight.shape[0]).to(x.dtype)
    return solution(x, weight, stored, stride, padding, dilation, groups, group)


def plain_convolution(x, weight, bias, stride, padding, dilation, groups=1, group=None):
    return solution(x, weight, bias, 1, 0, 1, groups, group)


COUNTERFEITS = (
    Counterfeit(0, "stored bias", stored_bias, "the bias never changes"),
    Counterfeit(0, "plain convolution", plain_convolution, "stride, padding and dilation never change"),
)
