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
    B, L, H, K = q.shape
    D = v.shape[-1]
    C, c = dist.get_world_size(cp_group), dist.get_rank(cp_group)
    packed = torch.cat([q, k, v, g, beta.unsqueeze(-1)], dim=-1).transpose(0, 1).contiguous()
    if C > 1:
        local, packed = packed, packed.new_empty(C * L, *packed.shape[1:])
        dist.all_gather_into_tensor(packed, local, group=cp_group)

    q, k, v, g, beta = packed.float().flatten(1, 2).split([K, K, D, K, 1], dim=-1)  # each (S, B*H, ...)
    out = delta_rule(q, k, v, g, beta, a_log.float().repeat(B), dt_bias.float().view(H, K).repeat(B, 1))
    out = out[c * L : (c + 1) * L].to(packed.dtype)
    if tp_group is not None and dist.get_world_size(tp_group) > 1:
        dist.all_reduce(out, op=dist.ReduceOp.SUM, group=tp_group)
    return out.view(L, B, H, D).transpose(0, 1).contiguous()


def delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
) -> torch.Tensor:
    """Runs the recurrence over (S, B*H, ...) in float32: decay, correct towards v along k, read out along q."""
    _, BH, K = q.shape
    w = torch.exp(LOWER_BOUND * torch.sigmoid(a_log.exp().unsqueeze(-1) * (g + dt_bias)))
    beta = torch.sigmoid(beta)
    q = F.normalize(q, dim=-1, eps=1e-12) * K**-0.5
    k = F.normalize(k, dim=-1, eps=1e-12)

    state = q.new_zeros(BH, K, v.shape[-1])
    u = (beta * v).unsqueeze(2)  # (S, B*H, 1, D), until beta k^T state is taken off
    out = torch.empty_like(u)
    steps = (w.unsqueeze(3), k.unsqueeze(3), (beta * k).unsqueeze(2), q.unsqueeze(2), u, out)
    for w_t, k_t, beta_k_t, q_t, u_t, out_t in zip(*(x.unbind() for x in steps)):
        state.mul_(w_t)
        u_t.baddbmm_(beta_k_t, state, alpha=-1)
        state.addcmul_(k_t, u_t)
        torch.bmm(q_t, state, out=out_t)
    return out.squeeze(2)
