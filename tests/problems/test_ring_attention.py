"""RingAttention against ordinary attention over the whole sequence, in float64."""

import pytest
import torch

from tests.problems.support import Run, find_problem, make_axes, run_reference

NAME = "RingAttention"


def oracle(run: Run) -> list[torch.Tensor]:
    """Every rank's output, without intermediate rounding."""
    ax = run.axes[0]
    q, k, v = (torch.cat([args[name] for args in run.args], dim=1).double() for name in ("q", "k", "v"))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * (ax["softmax_scale"] or ax.d**-0.5)
    if ax["causal"]:
        position = torch.arange(q.shape[1])
        scores[:, :, position[:, None] < position] = -torch.inf
    out = torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v)
    return list(out.split(ax.S, dim=1))


@pytest.mark.parametrize("protocol", ["robust", "published"])
@pytest.mark.parametrize(("world_size", "trial"), [(4, 0), (4, 1), (2, 2), (1, 3)])
def test_matches_whole_attention(protocol: str, world_size: int, trial: int) -> None:
    run = run_reference(NAME, world_size=world_size, trial=trial, protocol=protocol, dtype="float32")
    for rank, expected in enumerate(oracle(run)):
        torch.testing.assert_close(run.outputs[rank]["out"].double(), expected, rtol=1e-5, atol=1e-5)
        assert not run.wrong(rank, "out", expected.float()).any()


def test_bfloat16_probabilities_pass_and_near_misses_do_not() -> None:
    run = run_reference(NAME, size="published", trial=0)
    ax = run.axes[3]
    q = run.args[3]["q"].float()
    k, v = (torch.cat([args[name] for args in run.args], dim=1).float() for name in ("k", "v"))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * ax.d**-0.5
    seen = torch.arange(4 * ax.S) <= torch.arange(3 * ax.S, 4 * ax.S)[:, None]
    p = torch.exp(scores - scores.amax(-1, keepdim=True)).masked_fill(~seen, 0)

    def normalised(p: torch.Tensor) -> torch.Tensor:
        out = torch.einsum("bhij,bjhd->bhid", p.bfloat16().float(), v) / p.sum(-1, keepdim=True)
        return out.transpose(1, 2).bfloat16()

    assert not run.wrong(3, "out", normalised(p)).any()
    without_last_block = p.clone()
    without_last_block[..., : ax.S] = 0
    off_by_one = p.roll(1, dims=-1)
    good = run.outputs[3]["out"]
    for bad in (normalised(without_last_block), normalised(off_by_one), good * 1.02, run.outputs[2]["out"]):
        assert run.wrong(3, "out", bad).any()


def test_nan_in_one_key_reaches_the_rows_that_see_it() -> None:
    args = [{name: torch.ones(1, 1, 8, 2, dtype=torch.bfloat16) for name in ("q", "k", "v")} for _ in range(2)]
    args[1]["k"][0, 0, 3] = float("nan")
    run = run_reference(NAME, world_size=2, args=args, size={"B": 1, "S": 1, "d": 2})
    assert not run.outputs[0]["out"].isnan().any()
    assert run.outputs[1]["out"].isnan().any(-1).squeeze().tolist() == [False] * 3 + [True] + [False] * 4


def test_modes_and_sizes() -> None:
    problem = find_problem(NAME)
    axes = [make_axes(problem, size="published", trial=trial)[0] for trial in range(4)]
    assert {(ax["causal"], ax["softmax_scale"] is None) for ax in axes} == {
        (True, True),
        (True, False),
        (False, True),
        (False, False),
    }
    timed = make_axes(problem, size="published", trial=1, timed=True)[0]
    assert (timed["causal"], timed["softmax_scale"], timed.S) == (True, None, 4)
    assert problem.axes(size="published", world_size=8, rank=0).S == 2


def test_published_inputs_come_from_the_published_seed() -> None:
    run = run_reference(NAME, protocol="published", trial=2)
    generator = torch.Generator().manual_seed(42 + 54_000 + 1 + 2 * 1_000_003)
    for name in ("q", "k", "v"):
        assert torch.equal(run.args[1][name], torch.randn((2, 4, 8, 16), generator=generator).bfloat16())
