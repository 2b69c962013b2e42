import torch
import torch.distributed as dist
import torch.nn.functional as F

LOWER_BOUND = -5.0  # of the log decay


@torch.no_grad()
def solution(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    cp_group: dist.ProcessGroup | None = None,
    tp_group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Kimi Delta Attention of a sequence that is split over cp_group (C ranks), summed over tp_group (P ranks).

    Args:
        q: (B, L, H, K), queries of positions c*L .. (c+1)*L-1 on cp rank c.
        k: (B, L, H, K), their keys.
        v: (B, L, H, D), their values.
        g: (B, L, H, K), gate of the decay, per key channel.
        beta: (B, L, H), write strength before the sigmoid.
        a_log: (H,), log of the gate's scale.
        dt_bias: (H*K,), gate bias.
        cp_group: None means WORLD.
        tp_group: None means no sum.

    Returns:
        (B, L, H, D), this rank's positions, in the dtype of q.
    """
    L = q.shape[1]
    C, c = dist.get_world_size(cp_group), dist.get_rank(cp_group)
    if C > 1:
        q, k, v, g, beta = (all_gather_sequence(x, cp_group) for x in (q, k, v, g, beta))

    out = delta_rule(q, k, v, g, beta, a_log, dt_bias).to(q.dtype)
    if tp_group is not None and dist.get_world_size(tp_group) > 1:
        dist.all_reduce(out, op=dist.ReduceOp.SUM, group=tp_group)
    return out[:, c * L : (c + 1) * L].contiguous()


def all_gather_sequence(x: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Concatenates (B, L, ...) of all ranks along dim 1."""
    C = dist.get_world_size(group)
    local = x.transpose(0, 1).contiguous()
    whole = local.new_empty(C * local.shape[0], *local.shape[1:])
    dist.all_gather_into_tensor(whole, local, group=group)
    return whole.transpose(0, 1)


def delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
) -> torch.Tensor:
    """Runs the recurrence over (B, S, H, ...) in float32: decay, correct towards v along k, read out along q."""
    q, k, v, g, beta, a_log, dt_bias = (x.float() for x in (q, k, v, g, beta, a_log, dt_bias))
    B, S, H, K = q.shape
    gate = a_log.exp()[:, None] * (g + dt_bias.view(H, K))
    w = torch.exp(LOWER_BOUND * torch.sigmoid(gate))
    beta = torch.sigmoid(beta)
    q = F.normalize(q, dim=-1, eps=1e-12) * K**-0.5
    k = F.normalize(k, dim=-1, eps=1e-12)

    state = q.new_zeros(B, H, K, v.shape[-1])
    out = torch.empty_like(v)
    for t in range(S):
        state = w[:, t, :, :, None] * state
        u = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhk,bhkd->bhd", k[:, t], state))
        state = state + k[:, t, :, :, None] * u[:, :, None, :]
        out[:, t] = torch.einsum("bhk,bhkd->bhd", q[:, t], state)
    return out
