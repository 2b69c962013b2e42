"""Inputs of the four training steps of a two-layer network."""

import pytest
import torch

from tests.problems.mlp_oracle import split
from tests.problems.support import run_reference

STEPS = ("DDP", "ZeRO1", "ZeRO2", "FSDPStep")


@pytest.mark.parametrize("name", STEPS)
def test_no_hidden_unit_is_so_near_to_zero_that_a_rounded_product_changes_its_sign(name):
    """A kernel that adds the bias to a product of 16 bits would lack a row of the few in that unit's gradient."""
    for trial in range(12):
        run = run_reference(name, world_size=2, trial=trial)
        root = run.args[0]
        if name == "FSDPStep":
            flat = torch.cat([args["flat_param_shard"] for args in run.args])
            root = dict(zip(("W1", "b1", "W2", "b2"), split(flat, run.axes[0]), strict=True))
        for args in run.args:
            product = args["X_local"].float() @ root["W1"].float().T
            fused, rounded = product + root["b1"].float(), product.bfloat16() + root["b1"]
            assert ((fused > 0) == (rounded > 0)).all()


@pytest.mark.parametrize("name", STEPS)
def test_ranks_differ_in_rows_and_parameters(name):
    mine, other = run_reference(name, world_size=2).args
    for leaf in ("X_local", "y_local", "flat_param_shard" if name == "FSDPStep" else "W1"):
        assert (mine[leaf] != other[leaf]).any(), leaf
