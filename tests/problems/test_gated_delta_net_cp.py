"""GatedDeltaNetCP against the recurrence of one head at a time, in float64."""

import pytest
import torch

from pkb_gym.engine.errors import SizeError
from tests.problems.support import Run, find_problem, make_axes, run_reference

NAME = "GatedDeltaNetCP"


def oracle(run: Run, *, restart: int | None = None) -> list[torch.Tensor]:
    """Every rank's output, without intermediate rounding; the state is forgotten every `restart` positions."""
    ax = run.axes[0]
    q, k, v, gate, beta = (
        torch.cat([args[name] for args in run.args], dim=1).double() for name in ("q", "k", "v", "gate", "beta")
    )
    a_log, bias = (torch.cat([args[name] for args in run.args]).double() for name in ("a_log", "dt_bias"))
    out = torch.zeros_like(v)
    for h in range(ax.Hv):
        keys, queries = (x[:, :, h * ax.Hq // ax.Hv] for x in (k, q))
        state = torch.zeros(ax.B, ax.K, ax.D, dtype=torch.float64)
        for t in range(v.shape[1]):
            if restart and t % restart == 0:
                state = torch.zeros_like(state)
            rate = a_log[h].exp() * torch.log1p((gate[:, t, h] + bias[h]).exp())
            state = torch.exp(-rate)[:, None, None] * state
            key = keys[:, t] / keys[:, t].norm(dim=-1, keepdim=True).clamp(min=1e-6)
            query = queries[:, t] / queries[:, t].norm(dim=-1, keepdim=True).clamp(min=1e-6) * ax.K**-0.5
            u = beta[:, t, h, None] * (v[:, t, h] - torch.einsum("bk,bkd->bd", key, state))
            state = state + key[:, :, None] * u[:, None, :]
            out[:, t, h] = torch.einsum("bk,bkd->bd", query, state)
    return list(out.split(ax.L, dim=1))


@pytest.mark.parametrize("protocol", ["robust", "published"])
@pytest.mark.parametrize(("world_size", "trial"), [(4, 0), (4, 2), (2, 1), (2, 3), (1, 0)])
def test_matches_one_head_at_a_time(protocol: str, world_size: int, trial: int) -> None:
    run = run_reference(NAME, world_size=world_size, trial=trial, protocol=protocol, dtype="float32")
    for rank, expected in enumerate(oracle(run)):
        torch.testing.assert_close(run.outputs[rank]["out"].double(), expected, rtol=1e-4, atol=1e-6)
        assert not run.wrong(rank, "out", expected.float()).any()


@pytest.mark.parametrize("trial", [0, 3])
def test_sums_rounded_once_pass_and_near_misses_do_not(trial: int) -> None:
    run = run_reference(NAME, trial=trial)
    forgetful = oracle(run, restart=run.axes[0].L)
    for rank, expected in enumerate(oracle(run)):
        assert not run.wrong(rank, "out", expected.bfloat16()).any()
        good = run.outputs[rank]["out"]
        for bad in (good * 1.02, good.roll(1, dims=1), good.roll(1, dims=2), torch.zeros_like(good)):
            assert run.wrong(rank, "out", bad).any()
        if rank:
            assert run.wrong(rank, "out", forgetful[rank].bfloat16()).any()


@pytest.mark.parametrize("timed", [False, True])
def test_every_trial_has_queries_and_keys_of_zeros(timed: bool) -> None:
    run = run_reference(NAME, timed=timed)
    run.assert_passes_own_checks()
    for args, outputs in zip(run.args, run.outputs, strict=True):
        assert all((args[name] == 0).all(dim=-1).any() for name in ("q", "k"))
        (out,) = outputs.values()
        assert out.isfinite().all()


def test_rows_of_zeros_normalise_to_zero() -> None:
    run = run_reference(NAME, world_size=2)
    args = [dict(each) for each in run.args]
    args[0]["k"] = torch.zeros_like(args[0]["k"])
    args[1]["q"] = torch.zeros_like(args[1]["q"])
    outputs = run_reference(NAME, world_size=2, args=args).outputs
    assert (outputs[0]["out"] == 0).all()  # nothing was ever written
    assert (outputs[1]["out"] == 0).all()  # nothing is read


def test_modes_and_numbers_of_heads() -> None:
    problem = find_problem(NAME)
    assert [problem.axes(size="published", world_size=w, rank=0).Hv for w in (1, 2, 4, 8)] == [6, 6, 8, 8]
    axes = [make_axes(problem, size="published", trial=trial)[0] for trial in range(4)]
    assert [(ax.Hq, ax.Hv, ax.D) for ax in axes] == [(8, 8, 512), (8, 16, 256), (8, 8, 512), (8, 32, 128)]
    assert make_axes(problem, size="published", trial=1, timed=True)[0].Hv == 8
    published = make_axes(problem, protocol="published")[0]
    assert published.Hq == published.Hv == 8
    with pytest.raises(SizeError, match="Hv=20 must be a multiple of Hq=8"):
        problem.axes(size={"Hq": 8, "Hv": 20}, world_size=4, rank=0)
    with pytest.raises(SizeError, match="Hq=6 must be a multiple of W=4"):
        problem.axes(size={"Hq": 6, "Hv": 12}, world_size=4, rank=0)


def test_published_inputs() -> None:
    run = run_reference(NAME, protocol="published", world_size=2)
    whole = torch.cat([args["a_log"] for args in run.args])
    assert torch.equal(whole, torch.linspace(0.0, 0.2, 8).bfloat16())
    assert all(args["beta"].min() > 0 and args["beta"].max() < 1 for args in run.args)
