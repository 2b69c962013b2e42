import torch
import torch.distributed as dist
import torch.nn.functional as F


def solution(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Attention over a sequence that is split over the P ranks of a group; keys and values travel around the ring.

    Args:
        q: (B, S, h, d), queries of positions r*S .. (r+1)*S-1 on rank r.
        k: (B, S, h, d), their keys.
        v: (B, S, h, d), their values.
        softmax_scale: None means d^(-1/2).
        causal: mask future positions.
        group: None means WORLD.

    Returns:
        (B, S, h, d), the output for this rank's queries, in the dtype of q.
    """
    P, r = dist.get_world_size(group), dist.get_rank(group)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale

    for t in range(P):  # holds keys and values of rank (r - t) mod P
        if t < P - 1:
            next_k, next_v = torch.empty_like(k), torch.empty_like(v)
            hop = dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.isend, k, group=group, group_peer=(r + 1) % P),
                    dist.P2POp(dist.isend, v, group=group, group_peer=(r + 1) % P),
                    dist.P2POp(dist.irecv, next_k, group=group, group_peer=(r - 1) % P),
                    dist.P2POp(dist.irecv, next_v, group=group, group_peer=(r - 1) % P),
                ]
            )
        if t == 0:
            out, lse = block_attention(q, k, v, scale, triangular=causal)
        elif not causal or t <= r:
            block_out, block_lse = block_attention(q, k, v, scale, triangular=False)
            out = out - torch.sigmoid(block_lse - lse) * (out - block_out)
            lse = lse - F.logsigmoid(lse - block_lse)
        if t < P - 1:
            for work in hop:
                work.wait()
            k, v = next_k, next_v
    return out.transpose(1, 2).to(q.dtype)


def block_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, triangular: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over one block, in float32: the output (B, h, S, d) and the logsumexp of the scores (B, h, S, 1)."""
    q, k, v = (x.transpose(1, 2).float() for x in (q, k, v))
    scores = (q @ k.transpose(-2, -1)) * scale
    if triangular:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(diagonal=1)
        scores = scores.masked_fill(future, float("-inf"))
    lse = torch.logsumexp(scores, dim=-1, keepdim=True)
    return torch.exp(scores - lse) @ v, lse
