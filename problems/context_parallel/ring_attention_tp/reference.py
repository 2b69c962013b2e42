import torch
import torch.distributed as dist


def solution(
    hidden_states: torch.Tensor,
    w_qkv: torch.Tensor,
    w_o: torch.Tensor,
    num_heads: int,
    softmax_scale: float | None = None,
    causal: bool = False,
    tp_group: dist.ProcessGroup | None = None,
    cp_group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """One attention layer: heads split over tp_group (Tn ranks), the sequence over cp_group (C ranks).

    Args:
        hidden_states: (B, S, D), positions c*S .. (c+1)*S-1 on cp rank c; equal on all ranks of a tp_group.
        w_qkv: (3*hl*d, D), rows Q, K, V of this tp rank's hl = num_heads / Tn heads, head-major.
        w_o: (D_out, hl*d), columns of the same heads.
        num_heads: heads over all tp ranks.
        softmax_scale: None means d^(-1/2).
        causal: mask future positions.
        tp_group: None means WORLD.
        cp_group: None means WORLD.

    Returns:
        (B, S, D_out), sharded as hidden_states.
    """
    B, S, _ = hidden_states.shape
    hl = num_heads // dist.get_world_size(tp_group)
    d = w_qkv.shape[0] // 3 // hl
    scale = d**-0.5 if softmax_scale is None else softmax_scale

    q, k, v = (hidden_states @ w_qkv.T).view(B, S, 3, hl, d).unbind(dim=2)
    ctx = ring_attention(q, k, v, scale, causal, cp_group)
    out = ctx.reshape(B, S, hl * d) @ w_o.T
    if dist.get_world_size(tp_group) > 1:
        dist.all_reduce(out, op=dist.ReduceOp.SUM, group=tp_group)
    return out


def ring_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool, group: dist.ProcessGroup | None
) -> torch.Tensor:
    """Attention of this rank's queries over all ranks' keys and values, which travel around the ring.

    q, k, v: (B, S, hl, d). Returns (B, S, hl, d) in their dtype.
    """
    C, c = dist.get_world_size(group), dist.get_rank(group)
    kv = torch.stack((k, v))
    for step in range(C):  # holds the block of cp rank (c - step) mod C
        if step < C - 1:
            incoming = torch.empty_like(kv)
            hop = dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.isend, kv, group=group, group_peer=(c + 1) % C),
                    dist.P2POp(dist.irecv, incoming, group=group, group_peer=(c - 1) % C),
                ]
            )
        if step == 0:
            out, lse = block_attention(q, k, v, scale, triangular=causal)
        elif not causal or step <= c:
            block_out, block_lse = block_attention(q, kv[0], kv[1], scale, triangular=False)
            merged = torch.logaddexp(lse, block_lse)
            out = out * torch.exp(lse - merged) + block_out * torch.exp(block_lse - merged)
            lse = merged
        if step < C - 1:
            for work in hop:
                work.wait()
            kv = incoming
    return out.transpose(1, 2).to(q.dtype)


def block_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, triangular: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over one block, in float32: the output (B, hl, S, d) and the logsumexp of the scores (B, hl, S, 1)."""
    q, k, v = (x.transpose(1, 2).float() for x in (q, k, v))
    scores = (q @ k.transpose(-2, -1)) * scale
    if triangular:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(diagonal=1)
        scores = scores.masked_fill(future, float("-inf"))
    lse = torch.logsumexp(scores, dim=-1, keepdim=True)
    return torch.exp(scores - lse) @ v, lse
