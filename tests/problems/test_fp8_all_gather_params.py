"""FP8AllGatherParams against the list of all 8-bit floats."""

import pytest
import torch

from tests.problems.fp8_oracle import E4M3, all_rounded, new_history
from tests.problems.support import run_reference, same

NAME = "FP8AllGatherParams"


def test_the_oracle_knows_all_codes():
    codes = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn)
    assert torch.equal(codes.double(), E4M3)


@pytest.mark.parametrize(
    ("world_size", "protocol", "trial"),
    [
        (1, "robust", 0),
        (2, "robust", 1),
        (4, "robust", 0),
        (8, "robust", 3),
        (2, "robust", 6),
        (4, "robust", 14),
        (2, "published", 1),
        (4, "published", 0),
    ],
)
def test_all_slices_rounded(world_size, protocol, trial):
    run = run_reference(NAME, world_size=world_size, protocol=protocol, trial=trial)
    run.assert_passes_own_checks()
    expected = all_rounded(run.args, "flat_param_shard").view(-1)
    for outputs, args in zip(run.outputs, run.args, strict=True):
        assert same(outputs["full"] + 0.0, expected + 0.0)
        assert same(outputs["updated_history"], new_history(args["flat_param_shard"], args["amax_history"]))


def test_a_reciprocal_scale_is_right_and_shortcuts_are_not():
    for trial in range(4):
        run = run_reference(NAME, world_size=2, trial=trial)
        slices = []
        for args, outputs in zip(run.args, run.outputs, strict=True):
            reciprocal = 448 / outputs["updated_history"].max().float()
            codes = (args["flat_param_shard"].float() * reciprocal).to(torch.float8_e4m3fn)
            slices.append((codes.float() / reciprocal).bfloat16())
        assert not run.wrong(0, "full", torch.cat(slices)).any()
        unrounded = torch.cat([args["flat_param_shard"] for args in run.args])
        assert run.wrong(0, "full", unrounded).any()
        assert run.wrong(0, "full", torch.cat([slices[0], run.args[1]["flat_param_shard"]])).any()
        assert run.wrong(0, "updated_history", run.outputs[0]["updated_history"].flip(0)).any()


def test_a_scale_without_its_least_value_is_refused():
    run = run_reference(NAME, world_size=2, trial=6)
    assert not run.args[0]["flat_param_shard"].any() and not run.outputs[0]["full"].isnan().any()
    small = run.args[1]["flat_param_shard"].float()
    scale = run.outputs[1]["updated_history"].max().float() / 448
    assert 0 < scale < 1e-12 / 448
    unbounded = ((small / scale).to(torch.float8_e4m3fn).float() * scale).bfloat16()
    assert run.wrong(1, "full", torch.cat([run.args[0]["flat_param_shard"], unbounded])).any()


@pytest.mark.parametrize("length", [1, 3])
def test_zeros_and_short_histories(length):
    args = [
        {"flat_param_shard": torch.zeros(2).bfloat16(), "amax_history": torch.zeros(length).bfloat16()}
        for _ in range(2)
    ]
    args[1]["flat_param_shard"] += torch.tensor([-448.0, 1.0])
    run = run_reference(NAME, world_size=2, size={"p": 2, "L": length}, args=args)
    assert run.outputs[0]["full"].tolist() == [0, 0, -448, 1]
    assert run.outputs[0]["updated_history"].tolist() == [0] * length
    assert run.outputs[1]["updated_history"].tolist() == [0] * (length - 1) + [448]
