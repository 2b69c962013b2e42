"""KimiDeltaAttention against the recurrence of one head at a time, in float64."""

import pytest
import torch

from pkb_gym.engine.errors import SizeError
from tests.problems.support import Run, find_problem, make_axes, run_reference

NAME = "KimiDeltaAttention"


def recurrence(run: Run, p: int, *, restart: int | None = None) -> torch.Tensor:
    """Output (B, S, H, D) of the p-th cp_group; the state is forgotten every `restart` positions."""
    ax = run.axes[p]
    args = run.args[p :: ax.P]
    q, k, v, g, beta = (torch.cat([a[name] for a in args], 1).double() for name in ("q", "k", "v", "g", "beta"))
    a_log, bias = args[0]["a_log"].double(), args[0]["dt_bias"].double()
    out = torch.zeros_like(v)
    for b in range(ax.B):
        for h in range(ax.H):
            state = torch.zeros(ax.K, ax.D, dtype=torch.float64)
            for t in range(q.shape[1]):
                if restart and t % restart == 0:
                    state.zero_()
                gate = a_log[h].exp() * (g[b, t, h] + bias[h * ax.K : (h + 1) * ax.K])
                state = torch.exp(-5 / (1 + torch.exp(-gate)))[:, None] * state
                key = k[b, t, h] / k[b, t, h].norm().clamp(min=1e-12)
                query = q[b, t, h] / q[b, t, h].norm().clamp(min=1e-12) * ax.K**-0.5
                u = (v[b, t, h] - key @ state) / (1 + torch.exp(-beta[b, t, h]))
                state = state + torch.outer(key, u)
                out[b, t, h] = query @ state
    return out


def oracle(run: Run, *, restart: int | None = None) -> list[torch.Tensor]:
    """Every rank's output, without intermediate rounding."""
    total = sum(recurrence(run, p, restart=restart) for p in range(run.axes[0].P))
    return [total[:, ax.c * ax.L : (ax.c + 1) * ax.L] for ax in run.axes]


@pytest.mark.parametrize("protocol", ["robust", "published"])
@pytest.mark.parametrize(("world_size", "trial"), [(4, 0), (4, 1), (4, 3), (2, 0), (1, 1)])
def test_matches_one_head_at_a_time(protocol: str, world_size: int, trial: int) -> None:
    run = run_reference(NAME, world_size=world_size, trial=trial, protocol=protocol, dtype="float32")
    for rank, expected in enumerate(oracle(run)):
        torch.testing.assert_close(run.outputs[rank]["out"].double(), expected, rtol=1e-4, atol=1e-6)
        assert not run.wrong(rank, "out", expected.float()).any()


@pytest.mark.parametrize("trial", [0, 1, 3])
def test_sums_rounded_once_pass_and_near_misses_do_not(trial: int) -> None:
    run = run_reference(NAME, trial=trial)
    forgetful = oracle(run, restart=run.axes[0].L)
    for rank, expected in enumerate(oracle(run)):
        assert not run.wrong(rank, "out", expected.bfloat16()).any()
        good = run.outputs[rank]["out"]
        for bad in (good * 1.02, good.roll(1, dims=1), good.flip(2), torch.zeros_like(good)):
            assert run.wrong(rank, "out", bad).any()
        if run.axes[rank].c:
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
    args[0]["q"] = args[0]["q"].clone()
    args[0]["q"][:, 3] = 0
    args[0]["k"] = torch.zeros_like(args[0]["k"])
    outputs = run_reference(NAME, world_size=2, args=args).outputs
    assert (outputs[0]["out"] == 0).all()  # nothing was ever written
    assert outputs[1]["out"].isfinite().all()


def test_grid_of_ranks_and_modes() -> None:
    problem = find_problem(NAME)
    eight = problem.axes(size="published", world_size=8, rank=5)
    assert eight["tp_group"] == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert eight["cp_group"] == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert (eight.c, eight.p) == (2, 1)
    two = problem.axes(size="published", world_size=2, rank=0)
    assert (two.C, two["cp_group"], two["tp_group"]) == (2, None, None)
    assert [make_axes(problem, trial=trial)[0].P for trial in (0, 1, 2, 3, 7)] == [2, 1, 2, 4, 2]
    assert make_axes(problem, trial=1, timed=True)[0].P == 2
    run = run_reference(NAME)
    assert torch.equal(run.args[1]["a_log"], run.args[3]["a_log"])
    assert not torch.equal(run.args[0]["dt_bias"], run.args[1]["dt_bias"])
    with pytest.raises(SizeError, match="P=3 must divide W=4"):
        problem.axes(size={"P": 3}, world_size=4, rank=0)
