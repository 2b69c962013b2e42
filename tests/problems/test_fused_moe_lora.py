"""FusedMoELoRA: oracle, merged weights, branches left out."""

import pytest
import torch

from tests.problems.moe_oracle import assert_rows_are_right, expected
from tests.problems.support import Run, find_problem, run_reference

BRANCHES = ("gate", "up", "down")


@pytest.mark.parametrize(("world_size", "trial"), [(1, 0), (1, 1), (2, 0), (2, 2), (4, 0), (4, 1), (4, 5), (8, 3)])
def test_every_row(world_size, trial):
    assert_rows_are_right(run_reference("FusedMoELoRA", world_size=world_size, trial=trial))


@pytest.mark.parametrize("size", [{"K": 8}, {"T": 0}, {"rank": 1}])
def test_edge_sizes(size):
    tiny = dict(find_problem("FusedMoELoRA").sizes["tiny"])
    assert_rows_are_right(run_reference("FusedMoELoRA", size=tiny | size, world_size=2))


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_published(world_size):
    run_reference("FusedMoELoRA", world_size=world_size, protocol="published").assert_passes_own_checks()


def changed(run, name, value):
    """The run with one argument of every rank replaced."""
    args = [one | {name: value(one)} for one in run.args]
    return Run(run.problem, run.axes, args, run.outputs)


def test_merged_weights_pass():
    run = run_reference("FusedMoELoRA")
    for name in BRANCHES:

        def merge(args, name=name):
            weight, bias = args[f"{name}_proj"]
            branch = args[f"lora_{name}_B"].float() @ args[f"lora_{name}_A"].float()
            return (weight.float() + branch).bfloat16(), bias

        run = changed(run, f"{name}_proj", merge)
        run = changed(run, f"lora_{name}_B", lambda args, name=name: torch.zeros_like(args[f"lora_{name}_B"]))
    assert not run.wrong(0, "out", expected(run, 0).bfloat16()).any()
    assert run.wrong(0, "out", 1.02 * run.outputs[0]["out"]).any()


@pytest.mark.parametrize("name", BRANCHES)
def test_a_missing_branch_or_layer_is_refused(name):
    run = run_reference("FusedMoELoRA", world_size=1)
    without_branch = changed(run, f"lora_{name}_B", lambda args: torch.zeros_like(args[f"lora_{name}_B"]))
    without_layer = changed(run, f"{name}_proj", lambda args: tuple(0 * part for part in args[f"{name}_proj"]))
    without_bias = changed(run, f"{name}_proj", lambda args: (args[f"{name}_proj"][0], 0 * args[f"{name}_proj"][1]))
    for fake in (without_branch, without_layer, without_bias):
        assert run.wrong(0, "out", expected(fake, 0).bfloat16()).all(-1).float().mean() > 0.9
