import torch
import torch.distributed as dist


def exchange(x: torch.Tensor, cut: int, join: int, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Cuts x into one piece per rank along dimension `cut`, swaps them, and joins what came along dimension `join`."""
    send = torch.stack(x.chunk(dist.get_world_size(group), dim=cut))
    received = torch.empty_like(send)
    dist.all_to_all_single(received, send, group=group)
    return torch.cat(received.unbind(0), dim=join)


@torch.no_grad()
def solution(
    hidden_states: torch.Tensor,
    w_qkv: torch.Tensor,
    w_o: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    num_heads: int = 8,
    causal: bool = False,
) -> torch.Tensor:
    """Attention layer on a sequence-sharded activation, with exchanges from sequence to heads and back.

    The product contracts d with heads as rows and columns: within each token, the m = h / W heads of one rank attend to
    each other. Tokens do not mix.

    Args:
        hidden_states: (B, S, H), positions r*S .. (r+1)*S-1.
        w_qkv: (3*h*d, H), rows Q, K, V of h*d each, head-major; differs by rank. H = h*d where W = 1.
        w_o: (H_out, h*d), differs by rank.
        group: the ranks that share the sequence; None means all.
        num_heads: h, a multiple of W.
        causal: whether a head ignores the later heads of its rank.

    Returns:
        (B, S, H_out), positions as hidden_states.
    """
    B, S, _ = hidden_states.shape
    W, h = dist.get_world_size(group), num_heads
    m = h // W
    q, k, v = (hidden_states @ w_qkv.T).view(B, S, 3, h, -1).unbind(2)  # (B, S, h, d)

    q = exchange(q, cut=2, join=1, group=group)  # (B, W*S, m, d)
    kv = exchange(torch.stack([k, v], dim=3), cut=2, join=1, group=group)  # (B, W*S, m, 2, d)
    k, v = kv.unbind(3)

    scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5  # (B, W*S, m, m)
    if causal and W * S > 1:
        later = torch.ones(m, m, dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
    context = torch.softmax(scores, dim=-1, dtype=torch.float32).to(v.dtype) @ v  # (B, W*S, m, d)

    context = exchange(context, cut=1, join=2, group=group)  # (B, S, h, d)
    return context.flatten(2) @ w_o.T
