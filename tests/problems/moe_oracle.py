"""The mixture-of-experts layer in float64: every rank's MLP applied to every token, mixed by the router's weights."""

import torch

from tests.problems.support import Run


def routing(ax, args):
    """Probabilities (T, E) of one rank's tokens, the logits rounded once to bfloat16."""
    logits = args["hidden_states"].reshape(-1, ax.H).float() @ args["gate_weight"].float().T
    if args["gate_bias"] is not None:
        logits += args["gate_bias"].float()
    return logits.bfloat16().float().softmax(-1).bfloat16()


def layer(args, name, rows):
    """One linear layer of a rank, with its LoRA branch where it has one."""
    weight, bias = args[f"{name}_proj"]
    out = rows @ weight.double().T + bias.double()
    if f"lora_{name}_A" in args:
        out += rows @ args[f"lora_{name}_A"].double().T @ args[f"lora_{name}_B"].double().T
    return out


def members(ax):
    """The ranks of this rank's group, in order; E consecutive ones where there are fewer experts than ranks."""
    if ax["group"] is not None:
        return next(list(part) for part in ax["group"] if ax.r in part)
    size = min(ax.E, ax.W)
    return list(range(ax.r // size * size, ax.r // size * size + size))


def expected(run: Run, rank: int, keep: int | None = None) -> torch.Tensor:
    """One rank's output, of the `keep` (default K) most probable experts of each token."""
    ax, args = run.axes[rank], run.args[rank]
    group = members(ax)
    weights, experts = routing(ax, args).topk(keep or ax.K, dim=-1)
    rows = args["hidden_states"].reshape(-1, ax.H).double()
    out = torch.zeros(len(rows), ax.H, dtype=torch.float64)
    for place, host in enumerate(group):
        share = (weights.double() * (experts // (ax.E // len(group)) == place)).sum(-1, keepdim=True)
        gate, up = layer(run.args[host], "gate", rows), layer(run.args[host], "up", rows)
        out += share * layer(run.args[host], "down", gate * gate.sigmoid() * up)
    return out


def assert_rows_are_right(run: Run) -> None:
    """Rows are within 2 % of the oracle's, nearly all within 1 %: a logit may round the other way."""
    run.assert_passes_own_checks()
    for rank, outputs in enumerate(run.outputs):
        exact = expected(run, rank)
        assert outputs["out"].shape == exact.shape
        error = (outputs["out"].double() - exact).norm(dim=-1) / exact.norm(dim=-1)
        assert bool((error <= 2e-2).all())
        assert len(error) < 20 or float((error <= 1e-2).float().mean()) > 0.9
