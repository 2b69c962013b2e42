"""UlyssesAttention against attention of each token's heads, token by token, in float64."""

import pytest
import torch

from pkb_gym.engine.errors import SizeError
from pkb_gym.engine.problem.rules import allclose
from tests.problems.support import Run, find_problem, make_axes, run_reference

NAME = "UlyssesAttention"


def oracle(run: Run, rank: int, *, masked: bool | None = None) -> torch.Tensor:
    """Rank's output from its own tokens and weights alone, without rounding."""
    ax = run.axes[rank]
    x, w_qkv, w_o = (run.args[rank][name].double() for name in ("hidden_states", "w_qkv", "w_o"))
    d, m = ax.d, ax.h // ax.W
    masked = ax["causal"] and ax.W * ax.S > 1 if masked is None else masked
    heads = []
    for head in range(ax.h):
        block = head // m * m
        q = x @ w_qkv[head * d : (head + 1) * d].T
        scores, values = [], []
        for other in range(block, head + 1 if masked else block + m):
            k, v = (x @ w_qkv[(part * ax.h + other) * d :][:d].T for part in (1, 2))
            scores.append((q * k).sum(-1) / d**0.5)
            values.append(v)
        weights = torch.stack(scores).softmax(0)
        heads.append((weights[..., None] * torch.stack(values)).sum(0))
    return torch.cat(heads, dim=-1) @ w_o.T


@pytest.mark.parametrize(("world_size", "trial"), [(1, 1), (2, 2), (4, 0), (4, 1), (4, 2), (4, 3), (8, 2)])
def test_matches_attention_among_heads(world_size, trial):
    run = run_reference(NAME, world_size=world_size, trial=trial, dtype="float32")
    for rank, outputs in enumerate(run.outputs):
        expected = oracle(run, rank)
        torch.testing.assert_close(outputs["out"].double(), expected, rtol=1e-5, atol=1e-5)
        assert not run.wrong(rank, "out", expected.float()).any()


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_unrounded_intermediates_pass(world_size):
    run = run_reference(NAME, size={"B": 2}, world_size=world_size, trial=world_size % 2)
    run.assert_passes_own_checks()
    for rank in range(world_size):
        assert not run.wrong(rank, "out", oracle(run, rank).to(torch.bfloat16)).any()


def test_a_missing_or_wrong_mask_and_other_weights_are_refused():
    run = run_reference(NAME, world_size=2, trial=1)
    assert run.wrong(1, "out", oracle(run, 1, masked=False).to(torch.bfloat16)).any()
    run.args[1] = run.args[1] | {"w_o": run.args[0]["w_o"]}
    assert run.wrong(1, "out", oracle(run, 1).to(torch.bfloat16)).any()


def test_published_weights_make_the_published_rule_refuse_exact_results():
    run = run_reference(NAME, protocol="published", world_size=2, size="published")
    generator = torch.Generator().manual_seed(42 + 39_000 + 1)
    assert torch.equal(run.args[1]["hidden_states"], torch.randn((16, 8, 512), generator=generator).bfloat16())
    assert torch.equal(run.args[1]["w_qkv"], torch.randn((1536, 512), generator=generator).bfloat16())
    run.assert_passes_own_checks()
    exact = oracle(run, 1).to(torch.bfloat16)
    assert run.wrong(1, "out", exact).float().mean() > 0.02
    robust = run_reference(NAME, world_size=2, size="published")
    exact = oracle(robust, 1).to(torch.bfloat16)
    assert not robust.wrong(1, "out", exact).any()
    assert allclose().describe() == find_problem(NAME).outputs[0].published.describe()


def test_one_token_on_one_rank_is_not_masked():
    size = {"B": 3, "S": 1, "H": 16, "h": 2, "d": 8, "D_out": 8, "causal": True}
    run = run_reference(NAME, size=size, world_size=1, timed=True, dtype="float32")
    torch.testing.assert_close(run.outputs[0]["out"].double(), oracle(run, 0, masked=False), rtol=1e-5, atol=1e-5)


def test_trials_cover_masks_widths_and_heads():
    problem = find_problem(NAME)
    axes = [make_axes(problem, size="published", world_size=8, trial=trial)[0] for trial in range(4)]
    assert {(ax.m, ax["causal"]) for ax in axes} == {(1, False), (1, True), (2, False), (2, True)}
    assert {ax.H - ax.width for ax in axes} == {0, 16} and {ax.H - ax.D_out for ax in axes} == {0, 16, -8}
    assert make_axes(problem, trial=1, protocol="published")[0]["causal"] is False
    with pytest.raises(SizeError, match="must be h\\*d=512"):
        problem.axes(size={"H": 256}, world_size=1, rank=0)
    with pytest.raises(SizeError, match="h=6 must be a multiple of W=4"):
        problem.axes(size={"h": 6}, world_size=4, rank=0)
