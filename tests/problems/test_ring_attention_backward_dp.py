"""RingAttentionBackwardDP against autograd and explicit float64 formulas over each replica's whole sequence."""

import pytest
import torch

from tests.problems.support import Run, find_problem, make_axes, run_reference

NAME = "RingAttentionBackwardDP"
GRADS = ("dq", "dk", "dv")


def replica(run: Run, g: int) -> dict[str, torch.Tensor]:
    """A replica's tensors, whole sequences, as (B, h, T, d) float64; logsumexp as (B, h, T, 1)."""
    ring = run.axes[0].C
    args = run.args[g * ring : (g + 1) * ring]
    whole = {
        name: torch.cat([a[name] for a in args], dim=1).double().transpose(1, 2)
        for name in ("dout", "q", "k", "v", "out")
    }
    return whole | {"lse": torch.cat([a["softmax_lse"] for a in args], dim=2).double()[..., None]}


def scores(run: Run, x: dict[str, torch.Tensor]) -> torch.Tensor:
    """Scaled and masked scores (B, h, T, T)."""
    ax = run.axes[0]
    s = x["q"] @ x["k"].transpose(2, 3) * (ax["softmax_scale"] or ax.d**-0.5)
    position = torch.arange(s.shape[-1])
    return s.masked_fill(position[:, None] < position, -torch.inf) if ax["causal"] else s


def oracle(run: Run) -> list[dict[str, torch.Tensor]]:
    """Every rank's gradients, without intermediate rounding."""
    ax = run.axes[0]
    scale = ax["softmax_scale"] or ax.d**-0.5
    mean = dict.fromkeys(GRADS, 0)
    own = []
    for g in range(ax.G):
        x = replica(run, g)
        p = torch.exp(scores(run, x) - x["lse"])
        ds = p * (x["dout"] @ x["v"].transpose(2, 3) - (x["dout"] * x["out"]).sum(-1, keepdim=True))
        grads = (scale * ds @ x["k"], scale * ds.transpose(2, 3) @ x["q"], p.transpose(2, 3) @ x["dout"])
        own.append({name: grad.transpose(1, 2) for name, grad in zip(GRADS, grads, strict=True)})
        mean = {name: mean[name] + own[-1][name] / ax.G for name in GRADS}
    return [
        {name: (mean if a["averaged"] else own[a.g])[name][:, a.c * a.S : (a.c + 1) * a.S] for name in GRADS}
        for a in run.axes
    ]


@pytest.mark.parametrize("protocol", ["robust", "published"])
@pytest.mark.parametrize(("world_size", "trial"), [(4, 0), (4, 1), (4, 2), (4, 3), (2, 7), (1, 1)])
def test_matches_explicit_formulas(protocol: str, world_size: int, trial: int) -> None:
    run = run_reference(NAME, world_size=world_size, trial=trial, protocol=protocol, dtype="float32")
    for rank, expected in enumerate(oracle(run)):
        for name in GRADS:
            torch.testing.assert_close(run.outputs[rank][name].double(), expected[name], rtol=1e-5, atol=1e-5)
            assert not run.wrong(rank, name, expected[name].float()).any()


@pytest.mark.parametrize("trial", [0, 1, 2])
def test_inputs_are_those_of_the_whole_attention(trial: int) -> None:
    """Then autograd of ordinary attention gives the same gradients."""
    run = run_reference(NAME, trial=trial, dtype="float32")
    ax = run.axes[0]
    x = replica(run, 0)
    leaves = [x[name].requires_grad_() for name in ("q", "k", "v")]
    s = scores(run, x)
    torch.testing.assert_close(s.logsumexp(-1, keepdim=True).detach(), x["lse"], rtol=1e-6, atol=1e-6)
    grads = torch.autograd.grad(s.softmax(-1) @ x["v"], leaves, x["dout"])
    if ax.G == 1:
        for rank in range(4):
            for name, grad in zip(GRADS, grads, strict=True):
                expected = grad.transpose(1, 2)[:, rank * ax.S : (rank + 1) * ax.S]
                torch.testing.assert_close(run.outputs[rank][name].double(), expected, rtol=1e-4, atol=1e-5)


def test_bfloat16_probabilities_pass_and_near_misses_do_not() -> None:
    run = run_reference(NAME, trial=2, size="published")  # one replica of four ranks, causal
    x, ax = replica(run, 0), run.axes[2]

    def gradients(p: torch.Tensor) -> dict[str, torch.Tensor]:
        ds = p * (x["dout"] @ x["v"].transpose(2, 3) - (x["dout"] * x["out"]).sum(-1, keepdim=True))
        p, ds = p.bfloat16().double(), ds.bfloat16().double()
        grads = (ds @ x["k"] * ax.d**-0.5, ds.transpose(2, 3) @ x["q"] * ax.d**-0.5, p.transpose(2, 3) @ x["dout"])
        mine = slice(2 * ax.S, 3 * ax.S)
        return {name: g.transpose(1, 2)[:, mine].bfloat16() for name, g in zip(GRADS, grads, strict=True)}

    p = torch.exp(scores(run, x) - x["lse"])
    for name, value in gradients(p).items():
        assert not run.wrong(2, name, value).any(), name
    p[..., -ax.S :, :] = 0  # queries of the last rank never come by
    bad = gradients(p)
    assert run.wrong(2, "dk", bad["dk"]).any() and run.wrong(2, "dv", bad["dv"]).any()
    for name in GRADS:
        assert run.wrong(2, name, run.outputs[2][name] * 1.02).any()
        assert run.wrong(2, name, run.outputs[1][name]).any()


def test_grid_of_ranks_and_modes() -> None:
    problem = find_problem(NAME)
    eight = problem.axes(size="published", world_size=8, rank=6)
    assert eight["cp_group"] == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert eight["dp_group"] == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert (eight.S, eight.g, eight.c) == (4, 1, 2)
    axes = [make_axes(problem, size="published", trial=trial)[0] for trial in (0, 1, 2, 3, 7)]
    assert [(ax["causal"], ax["softmax_scale"] is None, ax.G) for ax in axes] == [
        (False, True, 2),
        (True, False, 2),
        (True, True, 1),
        (False, False, 2),
        (False, False, 4),
    ]
    assert axes[2]["dp_group"] is None


def test_published_inputs_are_local() -> None:
    run = run_reference(NAME, protocol="published", trial=1)
    generator = torch.Generator().manual_seed(42 + 58_000 + 100 + 1 + 1_000_003)  # rank 3: g = c = 1
    for name in ("q", "k", "v", "dout"):
        assert torch.equal(run.args[3][name], torch.randn((2, 4, 8, 16), generator=generator).bfloat16())
    q, k = (run.args[3][name].float() for name in ("q", "k"))
    local = (torch.einsum("bihd,bjhd->bhij", q, k) / 4).logsumexp(-1)
    torch.testing.assert_close(run.args[3]["softmax_lse"], local)
    run.assert_passes_own_checks()
