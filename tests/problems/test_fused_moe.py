"""FusedMoE: oracle, counterfeits, modes, edge cases."""

import pytest
import torch

from pkb_gym.engine.errors import SizeError
from tests.problems.moe_oracle import assert_rows_are_right, expected, routing
from tests.problems.support import Run, find_problem, make_axes, run_reference


@pytest.mark.parametrize(
    ("world_size", "trial"), [(1, 0), (1, 1), (2, 0), (2, 2), (4, 0), (4, 1), (4, 2), (4, 5), (8, 3)]
)
def test_every_row(world_size, trial):
    assert_rows_are_right(run_reference("FusedMoE", world_size=world_size, trial=trial))


@pytest.mark.parametrize("size", [{"K": 8}, {"K": 4, "E": 16}, {"T": 0}, {"K": 1}])
def test_edge_sizes(size):
    tiny = dict(find_problem("FusedMoE").sizes["tiny"])
    assert_rows_are_right(run_reference("FusedMoE", size=tiny | size, world_size=2))


def test_more_dimensions_come_back_as_rows():
    run = run_reference("FusedMoE", world_size=2)
    for args in run.args:
        args["hidden_states"] = args["hidden_states"].view(4, 16, 64)
    again = run_reference("FusedMoE", world_size=2, args=run.args)
    assert all(torch.equal(one["out"], two["out"]) for one, two in zip(run.outputs, again.outputs, strict=True))


def test_counterfeits_are_refused():
    run = run_reference("FusedMoE")
    shift = {rank: run.args[(rank + 1) % 4] for rank in range(4)}
    elsewhere = [args | {"down_proj": shift[rank]["down_proj"]} for rank, args in enumerate(run.args)]
    moved = Run(run.problem, run.axes, elsewhere, run.outputs)
    for fake in (expected(run, 0, keep=1), expected(run, 0, keep=3), expected(moved, 0)):
        assert run.wrong(0, "out", fake.bfloat16()).all(-1).float().mean() > 0.6
    assert not run.wrong(0, "out", expected(run, 0).bfloat16()).any()


def test_choices_are_far_apart_and_all_weights_matter():
    run = run_reference("FusedMoE", size="published", world_size=1, trial=0)
    ordered = routing(run.axes[0], run.args[0]).float().sort(-1, descending=True).values
    assert bool((ordered[:, 1] > ordered[:, 2] * (1 + 2**-7)).all())
    assert float(ordered[:, 1].median()) > 0.05


def test_another_order_of_the_routers_sums_passes():
    run = run_reference("FusedMoE", size={"I": 32}, world_size=1)
    order = torch.randperm(run.args[0]["hidden_states"].shape[-1], generator=torch.Generator().manual_seed(1))
    turned = {name: run.args[0][name][..., order] for name in ("hidden_states", "gate_weight")}
    turned |= {name: (run.args[0][name][0][..., order], run.args[0][name][1]) for name in ("gate_proj", "up_proj")}
    again = run_reference("FusedMoE", size={"I": 32}, world_size=1, args=[run.args[0] | turned])
    assert not torch.equal(again.outputs[0]["out"], run.outputs[0]["out"])
    assert not run.wrong(0, "out", again.outputs[0]["out"]).any()


def test_modes():
    problem = find_problem("FusedMoE")
    trials = [make_axes(problem, trial=trial) for trial in range(6)]
    assert {axes[0]["biased"] for axes in trials} == {True, False}
    assert {axes[0]["group"] for axes in trials} == {None, ((0, 2), (1, 3))}
    assert any(0 in {ax.T for ax in axes} and len({ax.T for ax in axes}) > 1 for axes in trials)
    assert [len(axes[0]["idle"]) for axes in trials] == [0, 2, 0, 0, 0, 4]  # a whole rank of 4, and of a group of 2
    timed = make_axes(problem, trial=5, timed=True)
    assert timed[0]["biased"] and timed[0]["group"] is None and [ax.T for ax in timed] == [64] * 4
    run = run_reference("FusedMoE", trial=1)
    idle = list(run.axes[0]["idle"])
    chosen = [routing(ax, args).topk(2, dim=-1).indices for ax, args in zip(run.axes, run.args, strict=True)]
    assert not torch.isin(torch.cat(chosen), torch.tensor(idle)).any()


def test_sizes_that_do_not_fit():
    problem = find_problem("FusedMoE")
    with pytest.raises(SizeError, match="FusedMoE: axis E=6 must be a multiple of G=4"):
        problem.axes(size={"E": 6}, world_size=4, rank=0)
    with pytest.raises(SizeError, match="axis K=9 must be at most E=8"):
        problem.axes(size={"K": 9}, world_size=4, rank=0)
