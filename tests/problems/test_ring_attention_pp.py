"""RingAttentionPP against a stack of ordinary attention layers over the whole sequence, in float64."""

import pytest
import torch

from pkb_gym.engine.errors import SizeError
from tests.problems.support import Run, find_problem, make_axes, run_reference

NAME = "RingAttentionPP"


def layer(x: torch.Tensor, run: Run, rank: int, *, uniform: bool = False) -> torch.Tensor:
    """One attention layer on (B, T, D) with the weights of `rank`; `uniform` replaces softmax by a plain mean."""
    ax, args = run.axes[rank], run.args[rank]
    total = torch.zeros(*x.shape[:2], ax.D_out, dtype=torch.float64)
    position = torch.arange(x.shape[1])
    for head in range(ax.h):
        rows = slice(head * ax.d, (head + 1) * ax.d)
        q, k, v = (x @ w[rows].T for w in args["w_qkv"].double().chunk(3))
        scores = torch.einsum("bid,bjd->bij", q, k) * (0 if uniform else ax["softmax_scale"] or ax.d**-0.5)
        if ax["causal"]:
            scores[:, position[:, None] < position] = -torch.inf
        total += scores.softmax(-1) @ v @ args["w_o"].double()[:, rows].T
    return total


def oracle(run: Run) -> list[torch.Tensor]:
    """Every rank's output, without intermediate rounding."""
    ring, stages = run.axes[0].C, run.axes[0].stages
    x = torch.cat([args["hidden_states"] for args in run.args[:ring]], dim=1).double()
    outs: list[torch.Tensor] = []
    for stage in range(stages):
        x = layer(x, run, stage * ring)
        outs += x.chunk(ring, dim=1)
    return outs


@pytest.mark.parametrize("protocol", ["robust", "published"])
@pytest.mark.parametrize(("world_size", "trial"), [(4, 0), (4, 1), (4, 2), (4, 3), (2, 1), (1, 2)])
def test_matches_a_stack_of_layers(protocol: str, world_size: int, trial: int) -> None:
    run = run_reference(NAME, world_size=world_size, trial=trial, protocol=protocol, dtype="float32")
    for rank, expected in enumerate(oracle(run)):
        torch.testing.assert_close(run.outputs[rank]["out"].double(), expected, rtol=1e-5, atol=1e-5)
        assert not run.wrong(rank, "out", expected.float()).any()


@pytest.mark.parametrize("trial", [0, 3])
def test_unrounded_intermediates_pass(trial: int) -> None:
    run = run_reference(NAME, size={"B": 2}, trial=trial)
    for rank, expected in enumerate(oracle(run)):
        assert not run.wrong(rank, "out", expected.bfloat16()).any()


def test_mean_of_the_values_in_the_last_stage_and_near_misses_are_refused() -> None:
    run = run_reference(NAME, size={"B": 2})
    first = torch.cat([run.outputs[0]["out"], run.outputs[1]["out"]], dim=1).double()
    mean = layer(first, run, 2, uniform=True)[:, run.axes[3].S :]
    assert run.wrong(3, "out", mean.bfloat16()).any()
    good = run.outputs[3]["out"]
    for bad in (good * 1.02, good.roll(1, dims=1), run.outputs[1]["out"], run.outputs[2]["out"]):
        assert run.wrong(3, "out", bad).any()


def test_later_stages_hold_unrelated_hidden_states() -> None:
    even, odd = (run_reference(NAME, trial=trial) for trial in (0, 1))
    assert not torch.equal(even.args[0]["hidden_states"], even.args[2]["hidden_states"])
    assert odd.args[2]["hidden_states"].isnan().all() and not odd.args[0]["hidden_states"].isnan().any()
    assert not odd.outputs[3]["out"].isnan().any()


def test_published_inputs_agree_within_groups() -> None:
    run = run_reference(NAME, protocol="published", trial=2)
    args = run.args
    assert torch.equal(args[0]["hidden_states"], args[2]["hidden_states"])
    assert not torch.equal(args[0]["hidden_states"], args[1]["hidden_states"])
    assert torch.equal(args[2]["w_qkv"], args[3]["w_qkv"]) and not torch.equal(args[0]["w_qkv"], args[2]["w_qkv"])
    generator = torch.Generator().manual_seed(42 + 57_000 + 20_000 + 1 + 2 * 1_000_003)
    assert torch.equal(args[2]["w_qkv"], torch.randn((96, 48), generator=generator).bfloat16() * 0.02)
    assert torch.equal(args[2]["w_o"], torch.randn((48, 32), generator=generator).bfloat16() * 0.02)


def test_grid_of_ranks_and_modes() -> None:
    problem = find_problem(NAME)
    eight = problem.axes(size="published", world_size=8, rank=6)
    assert eight["cp_group"] == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert eight["pp_group"] == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert (eight.S, eight.p, eight.c) == (4, 1, 2)
    assert problem.axes(size="published", world_size=1, rank=0)["pp_group"] == ((0,),)
    axes = [make_axes(problem, size="published", trial=trial)[0] for trial in range(4)]
    assert [(ax["causal"], ax["softmax_scale"] is None, ax.stages, ax.C) for ax in axes] == [
        (True, True, 2, 2),
        (False, False, 2, 2),
        (True, False, 1, 4),
        (False, True, 4, 1),
    ]
    assert axes[2]["pp_group"] is None and axes[2].D_out > axes[2].D
    with pytest.raises(SizeError, match="D_out=64 must equal D=512"):
        problem.axes(size={"D_out": 64}, world_size=4, rank=0)
