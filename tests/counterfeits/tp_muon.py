"""Counterfeits of TPMuon: what the published check takes for right."""

from pkb_gym.problems.tensor_parallel.tp_muon.reference import solution as right
from tests.problems.counterfeit import Counterfeit


def quintic_only(x, steps, coefficient_type, partition_dim, group):
    return right(x, 5, "quintic", partition_dim, group)


def columns_only(x, steps, coefficient_type, partition_dim, group):
    return right(x, steps, coefficient_type, 1, group)


def coarse(x, steps, coefficient_type, partition_dim, group):
    """Multiples of 1/64: 0.0078 off at most."""
    return (right(x, steps, coefficient_type, partition_dim, group) * 64).round() / 64


COUNTERFEITS = (
    Counterfeit(0, "five quintic steps", quintic_only, "no other table and number of steps is asked for"),
    Counterfeit(0, "columns only", columns_only, "rows are never split"),
    Counterfeit(1, "coarse numbers", coarse, "outputs are 0.044 in the mean, and 0.01 is let through"),
)
