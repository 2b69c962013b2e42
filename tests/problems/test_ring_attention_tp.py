"""RingAttentionTP against ordinary attention over the whole sequence with all heads, in float64."""

import pytest
import torch

from pkb_gym.engine.errors import SizeError
from tests.problems.support import Run, find_problem, make_axes, run_reference


def oracle(run: Run) -> list[torch.Tensor]:
    """Every rank's output, without intermediate rounding."""
    ax = run.axes[0]
    tp, cp = ax.Tn, ax.C
    x = torch.cat([run.args[c * tp]["hidden_states"] for c in range(cp)], dim=1).double()
    scale = ax["softmax_scale"] or ax.d**-0.5
    total = 0
    for t in range(tp):
        w_q, w_k, w_v = run.args[t]["w_qkv"].double().chunk(3)
        w_o = run.args[t]["w_o"].double()
        for head in range(ax.hl):
            rows = slice(head * ax.d, (head + 1) * ax.d)
            q, k, v = (x @ w[rows].T for w in (w_q, w_k, w_v))
            scores = torch.einsum("bid,bjd->bij", q, k) * scale
            if ax["causal"]:
                positions = torch.arange(x.shape[1])
                scores[:, positions[:, None] < positions[None, :]] = -torch.inf
            total = total + scores.softmax(-1) @ v @ w_o[:, rows].T
    return [total[:, ax.c * ax.S : (ax.c + 1) * ax.S] for ax in run.axes]


@pytest.mark.parametrize(("world_size", "trial"), [(4, 0), (4, 1), (4, 2), (4, 3), (2, 2), (1, 1)])
def test_matches_whole_attention(world_size: int, trial: int) -> None:
    run = run_reference("RingAttentionTP", world_size=world_size, trial=trial, dtype="float32")
    for rank, expected in enumerate(oracle(run)):
        torch.testing.assert_close(run.outputs[rank]["out"].double(), expected, rtol=1e-5, atol=1e-5)
        assert not run.wrong(rank, "out", expected.float()).any()


def test_unrounded_intermediates_pass() -> None:
    run = run_reference("RingAttentionTP", size={"B": 2})
    for rank, expected in enumerate(oracle(run)):
        assert not run.wrong(rank, "out", expected.to(torch.bfloat16)).any()


def test_mean_of_the_values_and_missing_parts_are_refused() -> None:
    run = run_reference("RingAttentionTP", size={"B": 2})
    ax = run.axes[2]
    x = torch.cat([run.args[0]["hidden_states"], run.args[2]["hidden_states"]], dim=1).double()
    seen = torch.arange(1, x.shape[1] + 1)[None, :, None]
    mean = sum(
        (x @ run.args[t]["w_qkv"].double()[2 * ax.width :].T).cumsum(1) / seen @ run.args[t]["w_o"].double().T
        for t in range(2)
    )
    assert run.wrong(2, "out", mean[:, ax.S :].to(torch.bfloat16)).any()
    whole = run.outputs[2]["out"]
    assert run.wrong(2, "out", whole * 1.015).any()
    assert run.wrong(2, "out", whole.roll(1, dims=1)).any()


def test_published_inputs_agree_within_groups() -> None:
    run = run_reference("RingAttentionTP", protocol="published", trial=2)
    args = run.args
    assert torch.equal(args[0]["hidden_states"], args[1]["hidden_states"])
    assert not torch.equal(args[0]["hidden_states"], args[2]["hidden_states"])
    assert torch.equal(args[1]["w_qkv"], args[3]["w_qkv"]) and torch.equal(args[1]["w_o"], args[3]["w_o"])
    assert not torch.equal(args[0]["w_qkv"], args[1]["w_qkv"])
    generator = torch.Generator().manual_seed(42 + 56_000 + 10_000 + 1 + 2 * 1_000_003)
    expected = torch.randn((96, 48), generator=generator).bfloat16() * 0.02
    assert torch.equal(args[1]["w_qkv"], expected)
    run.assert_passes_own_checks()


def test_grid_of_ranks_and_modes() -> None:
    problem = find_problem("RingAttentionTP")
    eight = problem.axes(size="published", world_size=8, rank=5)
    assert eight["tp_group"] == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert eight["cp_group"] == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert (eight.S, eight.c, eight.t) == (4, 2, 1)
    axes = [make_axes(problem, size="published", trial=trial)[0] for trial in range(4)]
    assert {(ax["causal"], ax["softmax_scale"] is None, ax.Tn) for ax in axes} == {
        (True, True, 2),
        (False, False, 2),
        (True, False, 1),
        (False, True, 4),
    }
    assert {ax.h * ax.d == ax.D for ax in axes} == {True, False}
    with pytest.raises(SizeError, match="h=6 must be a multiple of Tn=4"):
        problem.axes(size={"h": 6, "Tn": 4}, world_size=4, rank=0)
