"""FP8ReduceScatterGrads against the list of all 8-bit floats."""

import pytest
import torch

from tests.problems.fp8_oracle import all_rounded, new_history
from tests.problems.support import run_reference, same

NAME = "FP8ReduceScatterGrads"


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
def test_mean_of_rounded_gradients(world_size, protocol, trial):
    run = run_reference(NAME, world_size=world_size, protocol=protocol, trial=trial)
    run.assert_passes_own_checks()
    mean = all_rounded(run.args, "flat_grads").double().mean(0).view(world_size, -1)
    for rank, outputs in enumerate(run.outputs):
        args = run.args[rank]
        assert same(outputs["updated_history"], new_history(args["flat_grads"], args["amax_history"]))
        # float32 sums, and bfloat16 ones in another order, are right too.
        assert not run.wrong(rank, "out_shard", mean[rank].bfloat16()).any()
        backwards = sum(reversed(all_rounded(run.args, "flat_grads").view(world_size, world_size, -1)[:, rank]))
        assert not run.wrong(rank, "out_shard", backwards / world_size).any()


def test_shortcuts_are_refused():
    for trial in range(4):
        run = run_reference(NAME, world_size=2, trial=trial)
        exact = torch.stack([args["flat_grads"] for args in run.args]).double().mean(0).view(2, -1)
        assert run.wrong(0, "out_shard", exact[0].bfloat16()).any()
        assert run.wrong(0, "out_shard", 2 * run.outputs[0]["out_shard"]).any()
        history = run.outputs[0]["updated_history"]
        assert run.wrong(0, "updated_history", history.roll(1)).any()


def test_inputs_decide_the_scale_on_half_of_the_ranks():
    run = run_reference(NAME, world_size=4)
    stale = []
    for args in run.args:
        current, history = args["flat_grads"].abs().max(), args["amax_history"]
        significand = current.item() / 2.0 ** (torch.frexp(current.double()).exponent.item() - 8)
        assert significand % 2 == 1 and significand % 7
        stale.append(bool(history[1:].max() > 1.4 * current))
        assert stale[-1] or history[0] > 5 * current
    assert stale == [False, True, False, True]


def test_a_scale_without_its_least_value_is_refused():
    run = run_reference(NAME, world_size=2, trial=6)
    assert not run.args[0]["flat_grads"].any()
    small = run.args[1]["flat_grads"].float().view(2, -1)
    scale = run.outputs[1]["updated_history"].max().float() / 448
    for rank in range(2):
        assert not run.outputs[rank]["out_shard"].isnan().any()
        unbounded = ((small[rank] / scale).to(torch.float8_e4m3fn).float() * scale).bfloat16() / 2
        assert run.wrong(rank, "out_shard", unbounded).any()


@pytest.mark.parametrize("length", [1, 3])
def test_zeros_and_short_histories(length):
    args = [{"flat_grads": torch.zeros(4).bfloat16(), "amax_history": torch.zeros(length).bfloat16()} for _ in range(2)]
    args[1]["flat_grads"] += torch.tensor([0.0, 0.0, 448.0, 1.0])
    run = run_reference(NAME, world_size=2, size={"p": 2, "L": length}, args=args)
    assert run.outputs[0]["out_shard"].tolist() == [0, 0] and run.outputs[1]["out_shard"].tolist() == [224, 0.5]
    assert run.outputs[0]["updated_history"].tolist() == [0] * length
    assert run.outputs[1]["updated_history"].tolist() == [0] * (length - 1) + [448]
