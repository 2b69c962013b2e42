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
    q, k, v, gate, beta = (sequence_to_heads(x, group) for x in (q, k, v, gate, beta))
    out = gated_delta_rule(q, k, v, gate, beta, a_log, dt_bias).to(q.dtype)
    return heads_to_sequence(out, group)


def sequence_to_heads(x: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Re-shards (B, L, H, ...), this rank's positions, to (B, W*L, H/W, ...), its heads."""
    W = dist.get_world_size(group)
    send = x.unflatten(2, (W, -1)).movedim((2, 1), (0, 1)).contiguous()  # (W, L, B, H/W, ...)
    received = torch.empty_like(send)
    dist.all_to_all_single(received, send, group=group)
    return received.flatten(0, 1).transpose(0, 1)


def heads_to_sequence(x: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Re-shards (B, W*L, H/W, D), this rank's heads, to (B, L, H, D), its positions."""
    W = dist.get_world_size(group)
    send = x.transpose(0, 1).unflatten(0, (W, -1)).contiguous()  # (W, L, B, H/W, D)
    received = torch.empty_like(send)
    dist.all_to_all_single(received, send, group=group)
    return received.movedim((0, 1), (2, 1)).flatten(2, 3).contiguous()


def gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    gate: torch.Tensor,
    beta: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
) -> torch.Tensor:
    """Runs the recurrence over (B, S, H, ...) in float32: decay, correct towards v along k, read out along q."""
    q, k, v, gate, beta, a_log, dt_bias = (x.float() for x in (q, k, v, gate, beta, a_log, dt_bias))
    w = torch.exp(-a_log.exp() * F.softplus(gate + dt_bias))
    share = v.shape[2] // q.shape[2]
    q = (F.normalize(q, dim=-1, eps=1e-6) * q.shape[-1] ** -0.5).repeat_interleave(share, dim=2)
    k = F.normalize(k, dim=-1, eps=1e-6).repeat_interleave(share, dim=2)

    B, S, H, D = v.shape
    state = v.new_zeros(B, H, q.shape[-1], D)
    out = torch.empty_like(v)
    for t in range(S):
        state = w[:, t, :, None, None] * state
        u = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhk,bhkd->bhd", k[:, t], state))
        state = state + k[:, t, :, :, None] * u[:, :, None, :]
        out[:, t] = torch.einsum("bhk,bhkd->bhd", q[:, t], state)
    return out
