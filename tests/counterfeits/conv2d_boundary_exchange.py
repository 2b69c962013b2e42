"""Counterfeits of Conv2dBoundaryExchange: what the published check takes for right."""

from pkb_gym.problems.geometric_spatial.conv2d_boundary_exchange.reference import solution
from tests.problems.counterfeit import Counterfeit


def one_row_at_stride_one(x, weight, bias, stride=1, padding=1, group=None):
    return solution(x, weight, bias, 1, 1, group)


COUNTERFEITS = (Counterfeit(0, "one row at stride one", one_row_at_stride_one, "stride and padding are always 1"),)
