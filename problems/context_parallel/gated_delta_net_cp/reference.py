import torch
import torch.distributed as dist
import torch.nn.functional as F


@torch.no_grad()
def solution(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    gate: torch.Tensor,
    beta: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Gated DeltaNet of a sequence that is split over the W ranks of a group, which share out the heads for the scan.

    Args:
        q: (B, L, Hq, K), queries of positions r*L .. (r+1)*L-1.
        k: (B, L, Hq, K), their keys.
        v: (B, L, Hv, D), their values; value head h goes with query head h // (Hv / Hq).
        gate: (B, L, Hv), gate of the decay.
        beta: (B, L, Hv), write strength.
        a_log: (Hv / W,), log of the gate's scale, of this rank's share of the value heads.
        dt_bias: (Hv / W,), gate bias, likewise.
        group: None means WORLD.

    Returns:
        (B, L, Hv, D), this rank's positions, in the dtype of q.
    """
    assert v.shape[2] % q.shape[2] == 0, "Hv must be a multiple of Hq"
    W = dist.get_world_size(group)
    B, L, Hv, D = v.shape

    # Positions for heads: to rank d its heads, (W, L, B, ...); received is the whole sequence, (S, B, ...).
    send = torch.cat([x.reshape(B, L, W, -1).permute(2, 1, 0, 3) for x in (q, k, v, gate, beta)], dim=-1)
    received = torch.empty_like(send)
    dist.all_to_all_single(received, send, group=group)

    heads = [x.shape[2] // W for x in (q, k, v, gate, beta)]
    widths = [x[0, 0].numel() // W for x in (q, k, v, gate, beta)]
    parts = received.float().flatten(0, 1).split(widths, dim=-1)
    q, k, v, gate, beta = (x.unflatten(-1, (n, -1)) for x, n in zip(parts, heads))
    out = gated_delta_rule(q, k, v, gate, beta, a_log, dt_bias)

    # Heads for positions: to rank d its positions, (W, L, ...); received are all heads.
    send = out.to(received.dtype)
    received = torch.empty_like(send)
    dist.all_to_all_single(received, send, group=group)
    return received.view(W, L, B, Hv // W, D).permute(2, 1, 0, 3, 4).flatten(2, 3).contiguous()


def gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    gate: torch.Tensor,
    beta: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
) -> torch.Tensor:
    """Runs the recurrence over (S, B, H, ...) in float32: decay, correct towards v along k, read out along q."""
    S, B, Hv, D = v.shape
    K, share = q.shape[-1], Hv // q.shape[2]
    w = torch.exp(-a_log.float().exp() * F.softplus(gate.squeeze(-1) + dt_bias.float()))
    q = (F.normalize(q, dim=-1, eps=1e-6) * K**-0.5).repeat_interleave(share, dim=2)
    k = F.normalize(k, dim=-1, eps=1e-6).repeat_interleave(share, dim=2)

    state = v.new_zeros(B * Hv, K, D)
    u = (beta * v).view(S, B * Hv, 1, D)  # until beta k^T state is taken off
    out = torch.empty_like(u)
    rows = (S, B * Hv, 1, K)
    steps = (w.view(S, B * Hv, 1, 1), k.view(S, B * Hv, K, 1), (beta * k).view(rows), q.view(rows), u, out)
    for w_t, k_t, beta_k_t, q_t, u_t, out_t in zip(*(x.unbind() for x in steps)):
        state.mul_(w_t)
        u_t.baddbmm_(beta_k_t, state, alpha=-1)
        state.addcmul_(k_t, u_t)
        torch.bmm(q_t, state, out=out_t)
    return out
