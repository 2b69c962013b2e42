import torch
import torch.distributed as dist
import torch.nn.functional as F


def solution(
    hidden_states: torch.Tensor,
    w_qkv: torch.Tensor,
    w_o: torch.Tensor,
    num_heads: int,
    softmax_scale: float | None = None,
    causal: bool = False,
    cp_group: dist.ProcessGroup | None = None,
    pp_group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """One attention layer per pipeline stage; within a stage the sequence is split over cp_group (C ranks).

    Args:
        hidden_states: (B, S, D), positions c*S .. (c+1)*S-1 on cp rank c; only stage 0 reads the values.
        w_qkv: (3*h*d, D), rows Q, K, V of this stage, head-major.
        w_o: (D_out, h*d) of this stage; D_out = D where there are several stages.
        num_heads: h.
        softmax_scale: None means d^(-1/2).
        causal: mask future positions.
        cp_group: the ranks of this stage; None means WORLD.
        pp_group: the ranks at this place of every stage, in order of stages; None means a single stage.

    Returns:
        (B, S, D_out), the output of this rank's own stage, sharded as hidden_states.
    """
    stages = 1 if pp_group is None else dist.get_world_size(pp_group)
    stage = 0 if pp_group is None else dist.get_rank(pp_group)
    x = hidden_states
    if stage > 0:
        x = torch.empty_like(hidden_states)
        dist.recv(x, group=pp_group, group_src=stage - 1)

    B, S, _ = x.shape
    d = w_qkv.shape[0] // 3 // num_heads
    scale = d**-0.5 if softmax_scale is None else softmax_scale
    q, k, v = (x @ w_qkv.T).view(B, S, 3, num_heads, d).unbind(dim=2)
    ctx = ring_attention(q, k, v, scale, causal, cp_group)
    y = ctx.reshape(B, S, num_heads * d) @ w_o.T

    if stage < stages - 1:
        dist.send(y, group=pp_group, group_dst=stage + 1)
    return y


def ring_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool, group: dist.ProcessGroup | None
) -> torch.Tensor:
    """Attention of this rank's queries over all ranks' keys and values, which travel around the ring.

    q, k, v: (B, S, h, d). Returns (B, S, h, d) in their dtype.
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
            out = out - torch.sigmoid(block_lse - lse) * (out - block_out)
            lse = lse - F.logsigmoid(lse - block_lse)
        if step < C - 1:
            for work in hop:
                work.wait()
            kv = incoming
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
